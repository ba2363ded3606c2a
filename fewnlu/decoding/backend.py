"""What a decoder asks of a model: to keep prompts open and score what may follow paths of tokens behind them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from fewnlu.decoding.constraint import Vocabulary

Path = tuple[int, tuple[int, ...]]  # (row of the batch, token ids after its prompt)


class Forest:
    """A batch of prompts, each read once, with the token paths of their answers growing from them."""

    def evaluate(
        self, paths: Sequence[Path], tokens: np.ndarray, whole: bool = False
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Scores of the next token after each path; a path's parent must have been evaluated before.

        Args:
            paths: distinct; () after a row is its prompt's end.
            tokens: ids [n] to score.
            whole: also return the log-normaliser over the whole vocabulary.

        Returns:
            (logits [paths, n] as float64, log-sum-exp [paths] or None).
        """
        raise NotImplementedError

    def keep(self, rows: Collection[int]) -> None:
        """Only these rows will be asked about from now on; what is kept of the others may be given up."""


class Backend:
    """A model with its tokenizer.

    Attributes:
        vocabulary: what its tokens write.
        max_length: tokens of prompt and answer that it can read; None: no bound known.
    """

    vocabulary: Vocabulary
    max_length: int | None = None

    def encode(self, text: str) -> list[int]:
        """Ids of a whole prompt with exactly one start token, if the model has one (fault I038)."""
        raise NotImplementedError

    def open(self, prompts: Sequence[Sequence[int]], prefix: Sequence[int] = ()) -> Forest:
        """Read prompts (token ids).

        Args:
            prefix: ids that all of them begin with and that other batches begin with, too; read once and kept.
        """
        raise NotImplementedError
