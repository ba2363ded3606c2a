"""The plain paradigm: a run is one training on its split's train rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Paradigm:
    """Base and simplest case; others are a new file with a subclass named `Paradigm`.

    Args:
        options: the config's `paradigm` section.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options

    @property
    def reps(self) -> int:
        """Repetitions of a run, each with a seed of its own."""
        return 1

    def run(self, lab: Any, k: int, rep: int, hs: Sequence[dict[str, Any]]) -> list[Any]:
        """One result per h (`fewnlu.methods.fit.Fitted`); all hs share one training.

        Args:
            lab: trains on request (`fewnlu.protocol.lab.Lab`).
            k, rep: which run.
            hs: points of H that differ in when dev is looked at alone.
        """
        return lab.train(k, rep, hs)
