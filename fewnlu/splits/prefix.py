"""Outputs of frozen lower layers, computed once per row and kept for all splits and all h of a pattern.

Exact where every input, weight and mode below the cut is fixed (`Backbone.prefix_is_fixed`). A table is always computed
whole and in the same batches, so a row's values do not depend on which run asked first.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewnlu.splits.datamodule import Table

BATCH_ROWS = 16  # part of what makes values reproducible to the bit: not a setting


class Prefix:
    """States entering the first trained layer for all sequences of a table, stored without padding.

    Args:
        states: [tokens of all sequences, H].
        lengths: tokens per sequence.
    """

    def __init__(self, states: Tensor, lengths: Sequence[int]) -> None:
        self.states, self.lengths = states, list(lengths)
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)]).tolist()

    @property
    def nbytes(self) -> int:
        return self.states.numel() * self.states.element_size()

    def batch(self, rows: Sequence[int]) -> Tensor:
        """[R, T, H], zeros where a row is shorter than the longest."""
        longest = max(self.lengths[r] for r in rows)
        out = self.states.new_zeros((len(rows), longest, self.states.shape[1]))
        for i, row in enumerate(rows):
            out[i, : self.lengths[row]] = self.states[self.starts[row] : self.starts[row] + self.lengths[row]]
        return out


class Joined:
    """Sequences of several prefixes as one.

    Args:
        parts: (prefix, its sequences to take) in order.
    """

    def __init__(self, parts: Sequence[tuple[Prefix, Sequence[int]]]) -> None:
        self.places = [(prefix, sequence) for prefix, sequences in parts for sequence in sequences]

    def __reduce__(self) -> Any:
        """For another process: only what was taken."""
        states = [prefix.states[prefix.starts[s] : prefix.starts[s + 1]] for prefix, s in self.places]
        return Prefix, (torch.cat(states), [len(one) for one in states])

    def batch(self, rows: Sequence[int]) -> Tensor:
        """As `Prefix.batch`."""
        places = [self.places[r] for r in rows]
        longest = max(prefix.lengths[s] for prefix, s in places)
        first = places[0][0].states
        out = first.new_zeros((len(rows), longest, first.shape[1]))
        for i, (prefix, s) in enumerate(places):
            out[i, : prefix.lengths[s]] = prefix.states[prefix.starts[s] : prefix.starts[s + 1]]
        return out


_kept: dict[Any, Prefix] = {}


def prefix_of(
    key: Any, backbone: Any, table: Table, cache_gb: float, context: AbstractContextManager[Any] | None = None
) -> Prefix | None:
    """The table's prefix, computed at most once a process.

    Args:
        key: says what the values depend on: weights, cut, pattern, rows, precision.
        cache_gb: memory that all prefixes together may take; what goes beyond lies in a memory-mapped file that the
            operating system removes with the process. 0: no cache, returns None.
        context: what the model runs in: a mixed precision.
    """
    if cache_gb <= 0 or not backbone.prefix_is_fixed:
        return None
    if key not in _kept:
        with context or nullcontext():
            _kept[key] = _compute(backbone, table, cache_gb * 2**30 - sum(p.nbytes for p in _kept.values()))
    return _kept[key]


def _compute(backbone: Any, table: Table, room: float) -> Prefix:
    lengths = [len(s.input_ids) for s in table.sequences]
    device = next(backbone.parameters()).device
    states: Tensor | None = None
    starts = np.concatenate([[0], np.cumsum(lengths)]).tolist()
    for positions, batch in table.sequence_batches(BATCH_ROWS):
        kinds = batch.get("token_type_ids")
        out = backbone.prefix(
            batch["input_ids"].to(device),
            batch["attention_mask"].to(device),
            kinds.to(device) if kinds is not None else None,
        )
        if states is None:
            states = _storage(sum(lengths), out.shape[-1], out.dtype, room)
        for i, position in enumerate(positions):
            states[starts[position] : starts[position + 1]] = out[i, : lengths[position]].to(states.device)
    assert states is not None
    return Prefix(states, lengths)


def _storage(tokens: int, hidden: int, dtype: torch.dtype, room: float) -> Tensor:
    size = tokens * hidden * dtype.itemsize
    if size <= room:
        return torch.empty((tokens, hidden), dtype=dtype)
    with tempfile.NamedTemporaryFile(prefix="fewnlu-prefix-") as file:  # unlinked now, gone with the mapping
        print(f"outputs of frozen layers: {size / 1e6:,.0f} MB in {tempfile.gettempdir()}", file=sys.stderr)
        os.posix_fallocate(
            file.fileno(), 0, size
        )  # a full disk is an error now, not a fatal signal at some later write
        raw = np.memmap(file.name, dtype=np.uint8, mode="r+", shape=(size,))
    return torch.from_numpy(raw).view(dtype).view(tokens, hidden)
