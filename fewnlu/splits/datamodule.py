"""Rows as batches: a table of encoded rows, and one LightningDataModule per split."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from fewnlu.prompts.encoding import Encoded, collate, length_sorted_batches
from fewnlu.splits.strategy import Split

MAX_BATCH_TOKENS = 16384  # bounds the memory of an evaluation batch of long rows


class Table:
    """One set of rows under one pattern, encoded once and shared by all splits and trainings.

    Attributes:
        encoded: one encoding per row.
        gold: label id per row, -1 where a row has no label.
        prefix: outputs of frozen layers per row, or None.
    """

    def __init__(self, encoded: Sequence[Encoded], gold: Sequence[int], pad_id: int, prefix: Any = None) -> None:
        self.encoded, self.gold, self.pad_id, self.prefix = list(encoded), list(gold), pad_id, prefix

    def __len__(self) -> int:
        return len(self.encoded)

    @property
    def ids(self) -> list[str]:
        return [e.row_id for e in self.encoded]

    def batch(self, rows: Sequence[int]) -> dict[str, Any]:
        """Right-padded tensors of these rows: input_ids, attention_mask [R, T], read [R, M], gold [R], rows."""
        out: dict[str, Any] = collate([self.encoded[r] for r in rows], self.pad_id)
        out["gold"] = torch.tensor([self.gold[r] for r in rows])
        out["rows"] = list(rows)
        if self.prefix is not None:
            out["prefix"] = self.prefix.batch(rows)
        return out

    def batches(self, rows: Sequence[int], max_rows: int) -> Iterator[tuple[list[int], dict[str, Any]]]:
        """(positions within `rows`, batch), sorted by length so that little is padding."""
        lengths = [len(self.encoded[r].input_ids) for r in rows]
        for positions in length_sorted_batches(lengths, max_rows, MAX_BATCH_TOKENS):
            yield positions, self.batch([rows[p] for p in positions])


class RowStream(torch.utils.data.Sampler[list[int]]):
    """Micro-batches of a whole training as one stream: permutation after permutation of the rows.

    The order depends on nothing but the seed: not on when dev is looked at, and not on the micro-batch. Batches run
    on across permutations, so every update has exactly `batch_size` rows.
    """

    def __init__(self, rows: Sequence[int], updates: int, batch_size: int, micro_batch: int, seed: int) -> None:
        self.rows, self.updates, self.batch_size, self.micro_batch, self.seed = (
            list(rows),
            updates,
            batch_size,
            micro_batch,
            seed,
        )

    def __len__(self) -> int:
        return self.updates * (self.batch_size // self.micro_batch)

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(self.seed)
        stream: list[int] = []
        for _ in range(len(self)):
            while len(stream) < self.micro_batch:
                stream.extend(self.rows[i] for i in torch.randperm(len(self.rows), generator=generator).tolist())
            yield stream[: self.micro_batch]
            del stream[: self.micro_batch]


class FewShotData(pl.LightningDataModule):
    """The k-th split as a DataModule; `connect` hands it what only the model and the run know.

    Args:
        k: index of the split.
        split: row positions of train and dev within the labelled table.
    """

    def __init__(self, k: int, split: Split) -> None:
        super().__init__()
        self.k, self.split = k, split

    def connect(self, labeled: Table, *, updates: int, batch_size: int, micro_batch: int, seed: int) -> FewShotData:
        """Set the encoded rows and the run's batches; returns itself."""
        self.labeled = labeled
        self.stream = RowStream(self.split.train, updates, batch_size, micro_batch, seed)
        return self

    def train_dataloader(self) -> DataLoader[Any]:
        # A generator of its own: a loader without one draws from the global state that dropout uses.
        return DataLoader(
            list(range(len(self.labeled))),  # type: ignore[arg-type]
            batch_sampler=self.stream,
            collate_fn=self.labeled.batch,
            generator=torch.Generator().manual_seed(0),
            num_workers=0,
        )
