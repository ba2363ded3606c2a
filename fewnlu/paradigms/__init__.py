"""Paradigms: how often a method is trained, and on what."""
