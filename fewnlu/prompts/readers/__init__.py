"""Readers: how answers are read off a model. The pattern chooses; methods and runners name no task.

    words     one mask (or the next token of a causal model) and fixed label words of one piece
    choices   several masks (or the following tokens) and texts of any length, the row's own or fixed ones
    span      a free text at several masks, compared with one of the row's fields
    none      nothing: the plain input of a classifier

This package is imported by name from methods and protocol; torch is loaded when a batch is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fewnlu.prompts.readers.base import Plain, Reader, Reading
from fewnlu.tasks.task import Pattern, Row, Task

__all__ = ["Plain", "Reader", "Reading", "reader_for"]


def reader_for(
    tokenizer: Any, kind: str, pattern: Pattern, task: Task, reading: Reading, labeled: Sequence[Row] = ()
) -> Reader:
    """The reader of a pattern.

    Args:
        kind: ``masked`` or ``causal``.
        reading: settings of readers of several masks.
        labeled: all labelled rows; the longest span among them decides the number of masks of a free span.

    Raises:
        ConfigError: words that this tokenizer or model cannot read so.
    """
    if pattern.answer == "none":
        return Plain(tokenizer, kind, pattern, task, reading)
    if pattern.answer == "words":
        from fewnlu.prompts.readers.words import Words

        return Words(tokenizer, kind, pattern, task, reading)
    if pattern.answer == "choices":
        from fewnlu.prompts.readers.choices import CausalChoices, MaskedChoices

        return (CausalChoices if kind == "causal" else MaskedChoices)(tokenizer, kind, pattern, task, reading)
    from fewnlu.prompts.readers.span import CausalSpan, MaskedSpan

    return (CausalSpan if kind == "causal" else MaskedSpan)(tokenizer, kind, pattern, task, reading, labeled)
