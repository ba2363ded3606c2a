"""Errors that a user can act on: each says which key or file, which value, what was expected and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FewnluError(Exception):
    """Base of all errors that end a command with a message instead of a traceback."""


class ConfigError(FewnluError):
    """A configuration that cannot be run; found before any model is read, exit status 2."""


class DataError(FewnluError):
    """Rows that cannot be used; the message names file and line."""


def interrupted(error: BaseException | None) -> bool:
    """Whether an error is Ctrl-C, or what a library made of it."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def choices(value: object, known: Iterable[object]) -> str:
    """Say what could have been meant by `value`.

    Returns:
        ``did you mean 'x'? choose one of: a, b, c`` (the first half only when something is close).
    """
    names = [str(k) for k in known]
    close = difflib.get_close_matches(str(value), names, n=1, cutoff=0.6)
    hint = f"did you mean '{close[0]}'? " if close else ""
    return f"{hint}choose one of: {', '.join(names) if names else '(none available)'}"
