"""fewnlu: honest evaluation of few-shot language understanding."""

__version__ = "0.1.0"
