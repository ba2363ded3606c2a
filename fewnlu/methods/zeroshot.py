"""Prompting without training: rows are asked as questions and answered by a decoder, many rows and runs at a time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence

from fewnlu.decoding.decoder import Decoder, Reading, derive_seed
from fewnlu.methods.memory import give_back, out_of_memory
from fewnlu.prompts.question import Question

SHARD = 64  # rows whose answers are kept together: what a killed job loses at most


class Method:
    """Answers questions; not trained, so no LightningModule.

    Args:
        decoder: how answers are drawn or ranked.
        questions: one per row.
        seed: (row id, run) -> seed of that draw.
        batch: rows read at a time; halved as long as memory runs out.
    """

    name = "zeroshot"

    def __init__(
        self, decoder: Decoder, questions: Sequence[Question], seed: Callable[[str, int], int], batch: int = 32
    ) -> None:
        self.decoder, self.questions, self.seed, self.batch = decoder, list(questions), seed, batch

    def prepare(self) -> None:
        """Find what prompts share, refuse what can't be answered, and order the rows by length.

        Raises:
            ConfigError: before anything is computed.
        """
        prompts = [q.prompt for q in self.questions]
        self.decoder.prepare(prompts, [q.choices for q in self.questions])
        self.tokens = self.decoder.lengths(prompts)

    def shards(self) -> Iterator[list[int]]:
        """Positions of the rows in groups of about equal length, the longest first: what can fail fails at once."""
        order = sorted(range(len(self.questions)), key=lambda i: (-self.tokens[i], i))
        for start in range(0, len(order), SHARD):
            yield order[start : start + SHARD]

    def answer(
        self, rows: Sequence[int], runs: Sequence[int], done: Callable[[int], None] | None = None
    ) -> list[Reading]:
        """Readings of these rows, one draw per run each.

        Args:
            rows: positions.
            runs: numbers of the runs.
            done: told the number of rows after each batch.
        """
        found: list[Reading] = []
        start = 0
        while start < len(rows):
            some = [self.questions[i] for i in rows[start : start + self.batch]]
            try:
                readings = self.decoder.read(
                    [q.prompt for q in some],
                    [q.choices for q in some],
                    [[self.seed(q.id, run) for run in runs] for q in some],
                )
            except (MemoryError, RuntimeError) as error:
                if not out_of_memory(error) or len(some) == 1:
                    raise
                self.batch = len(some) // 2
                print(f"out of memory with {len(some)} rows at a time: going on with {self.batch}", file=sys.stderr)
                give_back()
                continue
            found += readings
            start += len(some)
            if done is not None:
                done(len(some))
        return found


def row_seed(model: str, task: str, seed: int, row_id: str, run: int) -> int:
    """Seed of one row's draw in one run: the same whatever rows and batches there are."""
    return derive_seed(model, task, seed, row_id, run)
