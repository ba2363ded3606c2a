"""Decoding: answers from an allowed set, drawn as a constrained sampler would draw them, or ranked by probability."""
