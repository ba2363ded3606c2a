"""Backbones: tokenizer and weights of a language model, read once a process, frozen, restored in memory."""
