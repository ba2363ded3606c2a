"""Prompts: templates, verbalizers and the encoding of rows as token ids."""
