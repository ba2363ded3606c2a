"""Tasks: where rows come from, their labels, metrics, units and patterns. Imports nothing heavy."""
