"""The plain paradigm: a run is one training on its split's train rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fewnlu.splits.strategy import Split


@dataclass(frozen=True)
class Training:
    """How a training differs from the plain one of a run (`lab.train`); every default is the plain one.

    Attributes:
        split: rows of the labelled set to train on and select with.
        pseudo: (row of the pool, label column) to train on besides.
        seed: training seed.
        word_dropout: see `fewnlu.methods.method.Context`.
        after: called with the method while it has the chosen weights; its answer becomes `Fitted.after`.
        logged: whether it is a run, which the logger sees, and not a teacher's training.
    """

    split: Split | None = None
    pseudo: Sequence[tuple[int, int]] = ()
    seed: int | None = None
    word_dropout: float = 0.0
    after: Callable[[Any], Any] | None = None
    logged: bool = True


class Paradigm:
    """Base and simplest case; others are a new file with a subclass named `Paradigm`.

    Args:
        options: the config's `paradigm` section.

    Attributes:
        needs_pool: whether it reads unlabelled rows.
    """

    needs_pool = False

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options

    @property
    def reps(self) -> int:
        """Repetitions of a run, each with a seed of its own."""
        return 1

    def check(self, setup: Any) -> None:
        """Refuse a trial (`fewnlu.protocol.setup.Setup`) that makes no sense under this paradigm; no model is read yet.

        Raises:
            ConfigError: names the key and what would do.
        """

    def depends(self, setup: Any) -> dict[str, Any]:
        """What results depend on beside the options; part of the study's identity."""
        return {}

    def cost(self, setup: Any) -> str:
        """A line on what a trial takes, where that is more than its runs; else empty."""
        return ""

    def run(self, lab: Any, k: int, rep: int, hs: Sequence[dict[str, Any]]) -> list[Any]:
        """One result per h (`fewnlu.methods.fit.Fitted`); all hs share one training.

        Args:
            lab: trains on request (`fewnlu.protocol.lab.Lab`).
            k, rep: which run.
            hs: points of H that differ in when dev is looked at alone.
        """
        return lab.train(k, rep, hs)
