"""Rows as batches: a table of encoded rows, and one LightningDataModule per split."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from fewnlu.errors import DataError
from fewnlu.prompts.encoding import Encoded, collate, length_sorted_batches
from fewnlu.splits.strategy import Split

MAX_BATCH_TOKENS = 16384  # bounds the memory of an evaluation batch of long rows


class Table:
    """One set of rows under one pattern, encoded once and shared by all splits and trainings.

    Args:
        encoded: one encoding per row.
        gold: score column per row, -1 where a row has no label.
        prefix: outputs of frozen layers per sequence, or None.
        reader: makes the batches (`fewnlu.prompts.readers.Reader`); None: plain ones.
        trains: whether rows may be trained on, so that their training sequences are needed.

    Attributes:
        sequences: what a model is run on, one or several sequences a row.
        most_rows: rows of an evaluation batch that memory suffices for, where that was found out.
    """

    def __init__(
        self,
        encoded: Sequence[Encoded],
        gold: Sequence[int],
        pad_id: int,
        prefix: Any = None,
        reader: Any = None,
        trains: bool = True,
    ) -> None:
        self.encoded, self.gold, self.pad_id, self.prefix = list(encoded), list(gold), pad_id, prefix
        self.reader = reader
        self.most_rows: int | None = None
        self.sequences: list[Encoded] = []
        self._own: dict[bool, list[list[int]]] = {False: [], True: []}  # train -> row -> indices of its sequences
        for row in self.encoded:
            evaluated, trained = row.evaluate or (row,), (row.train or (row,)) if trains else ()
            start = len(self.sequences)
            self.sequences += evaluated
            self._own[False].append(list(range(start, len(self.sequences))))
            if trained and (len(trained) != len(evaluated) or trained[0] is not evaluated[0]):
                start = len(self.sequences)
                self.sequences += trained
            self._own[True].append(list(range(start, start + len(trained))))

    def __len__(self) -> int:
        return len(self.encoded)

    def joined(self, other: Table, picks: Sequence[tuple[int, int]]) -> Table:
        """This table's rows, then rows of another one under given gold columns.

        Args:
            picks: (row of `other`, gold column); a row may be there several times.
        """
        encoded = [*self.encoded, *(other.encoded[row] for row, _ in picks)]
        out = Table(encoded, [*self.gold, *(gold for _, gold in picks)], self.pad_id, reader=self.reader)
        if self.prefix is not None and other.prefix is not None:
            from fewnlu.splits.prefix import Joined

            taken = [s for row, _ in picks for s in sorted({*other._own[False][row], *other._own[True][row]})]
            out.prefix = Joined([(self.prefix, range(len(self.sequences))), (other.prefix, taken)])
        return out

    @property
    def ids(self) -> list[str]:
        return [e.row_id for e in self.encoded]

    def batch(self, rows: Sequence[int], train: bool = False) -> dict[str, Any]:
        """Right-padded tensors of these rows: input_ids, attention_mask [S, T], read [S, M] of their S sequences (one a
        row, unless the reader needs more), gold [R], rows, and what the reader adds."""
        encoded, gold = [self.encoded[r] for r in rows], [self.gold[r] for r in rows]
        if self.reader is not None:
            out: dict[str, Any] = self.reader.collate(encoded, gold, self.pad_id, train)
        else:
            out = {**collate(encoded, self.pad_id), "gold": torch.tensor(gold)}
        out["rows"] = list(rows)
        if self.prefix is not None:
            out["prefix"] = self.prefix.batch([s for r in rows for s in self._own[train][r]])
        return out

    def train_batch(self, rows: Sequence[int]) -> dict[str, Any]:
        """A batch of the sequences that training reads."""
        return self.batch(rows, train=True)

    def batches(self, rows: Sequence[int], max_rows: int) -> Iterator[tuple[list[int], dict[str, Any]]]:
        """(positions within `rows`, batch) for evaluation, sorted by length so that little is padding."""
        lengths = [sum(len(self.sequences[s].input_ids) for s in self._own[False][r]) for r in rows]
        for positions in length_sorted_batches(lengths, max_rows, MAX_BATCH_TOKENS):
            yield positions, self.batch([rows[p] for p in positions])

    def sequence_batches(self, max_rows: int) -> Iterator[tuple[list[int], dict[str, Any]]]:
        """(indices, tensors) of all sequences, whatever row they belong to."""
        lengths = [len(s.input_ids) for s in self.sequences]
        for positions in length_sorted_batches(lengths, max_rows, MAX_BATCH_TOKENS):
            yield positions, dict(collate([self.sequences[p] for p in positions], self.pad_id))


class Share:
    """A micro-batch that another process trains on; made only where somebody asks."""

    def __init__(self, table: Table, rows: Sequence[int]) -> None:
        self.table, self.rows = table, rows

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self) -> dict[str, Any]:
        """As it is trained on there."""
        return self.table.train_batch(self.rows)


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

    Attributes:
        devices / rank: processes that train together, and which of them this is.
    """

    devices, rank = 1, 0

    def __init__(self, k: int, split: Split) -> None:
        super().__init__()
        self.k, self.split = k, split

    def connect(
        self, labeled: Table, *, updates: int, batch_size: int, micro_batch: int, seed: int, devices: int = 1
    ) -> FewShotData:
        """Set the encoded rows and the run's batches; returns itself.

        Args:
            micro_batch: rows per forward, on each of the `devices`.

        Raises:
            DataError: the reader can train on none of the split's train rows.
        """
        self.labeled, self.devices = labeled, devices
        reader = labeled.reader
        rows = [r for r in self.split.train if reader is None or reader.trains_on(labeled.gold[r])]
        if not rows and updates:
            notes = reader.notes([labeled.gold[r] for r in self.split.train]) if reader else []
            raise DataError(f"split {self.k} has no row to train on{': ' if notes else ''}{'; '.join(notes)}")
        self.stream = RowStream(rows, updates, batch_size, micro_batch * devices, seed)
        return self

    def train_dataloader(self) -> DataLoader[Any]:
        # A generator of its own: a loader without one draws from the global state that dropout uses.
        return DataLoader(
            list(range(len(self.labeled))),  # type: ignore[arg-type]
            batch_sampler=self.stream,
            collate_fn=self.labeled.train_batch if self.devices == 1 else self._own_batch,
            generator=torch.Generator().manual_seed(0),
            num_workers=0,
        )

    def _own_batch(self, rows: list[int]) -> dict[str, Any]:
        """This process's part of the rows of all; `elsewhere` has those of the processes before and after it."""
        size = len(rows) // self.devices
        parts = [rows[i * size : (i + 1) * size] for i in range(self.devices)]
        others = [Share(self.labeled, part) for part in parts]
        batch = self.labeled.train_batch(parts[self.rank])
        return {**batch, "elsewhere": (others[: self.rank], others[self.rank + 1 :])}
