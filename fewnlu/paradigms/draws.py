"""Repeated draws: the same method scored several times; what differs between runs is chance alone."""

from __future__ import annotations

from typing import Any

from fewnlu.errors import ConfigError
from fewnlu.paradigms.single import Paradigm as Single


class Paradigm(Single):
    """`reps` runs per split, each with draws of its own.

    Raises:
        ConfigError: reps is no whole number above 0.
    """

    name = "draws"

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        reps = options.get("reps")
        if isinstance(reps, bool) or not isinstance(reps, int) or reps < 1:
            raise ConfigError(f"paradigm.reps={reps!r}: expected a whole number, 1 or more")
        self._reps = reps

    @property
    def reps(self) -> int:
        return self._reps
