"""The answers of a batch as tokens, in one form for all readers: what losses over the whole vocabulary compare."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fewnlu.prompts.readers.tokens import log_probs, states_at


@dataclass
class Texts:
    """All texts that a batch's rows could be answered with.

    Attributes:
        row, column, sequence: [n], the row a text answers, its score column, the sequence that reads it.
        weight: [n], its share in its column (a label with several words).
        target: [n, tokens], token ids, -1 beyond a text's end.
        right: [n], whether it is a right answer.
    """

    row: Tensor
    column: Tensor
    sequence: Tensor
    weight: Tensor
    target: Tensor
    right: Tensor

    @property
    def real(self) -> Tensor:
        """[n, tokens], where a text has a token."""
        return self.target >= 0

    def contested(self, causal: bool) -> Tensor:
        """[n, tokens], tokens that a right and a wrong text of one row share at one place.

        Such a token says nothing of the label and would be asked to be likely and unlikely at once. A causal model
        reads a token after the ones before it, so there the texts must agree up to it.
        """
        same = (self.target.unsqueeze(1) == self.target.unsqueeze(0)) & self.real.unsqueeze(1)
        if causal:
            same = same.cumprod(-1).bool()
        rivals = (self.row.unsqueeze(1) == self.row.unsqueeze(0)) & (self.right.unsqueeze(1) != self.right.unsqueeze(0))
        return (same & rivals.unsqueeze(-1)).any(1)

    def log_probs(self, backbone: Any, batch: dict[str, Any]) -> Tensor:
        """log p(token | its place) over the whole vocabulary, [n, tokens], 0 beyond a text's end."""
        text, token = self.real.nonzero(as_tuple=True)
        sequence, width = self.sequence[text], batch["input_ids"].shape[1]
        places, place = torch.unique(sequence * width + batch["read"][sequence, token], return_inverse=True)
        states = states_at(backbone, batch, places // width, places % width)
        values = log_probs(backbone, states, place, self.target[text, token])
        return torch.zeros(self.target.shape, device=values.device).masked_scatter(self.real, values)


def texts_of(reader: Any, batch: dict[str, Any]) -> Texts:
    """The texts of a batch, from what the reader put into it."""
    device = batch["input_ids"].device
    if "of_row" in batch:  # choices
        row, column = batch["of_row"], batch["column"]
        right = batch["right"][row, column]
        return Texts(row, column, batch["sequence"], batch["weight"], batch["target"], right)
    rows = torch.arange(len(batch["gold"]), device=device)
    if "target" in batch:  # a span: its only text is the right one
        column = torch.full_like(rows, reader.positive)
        return Texts(rows, column, rows, torch.ones(len(rows), device=device), batch["target"], rows >= 0)
    weight, column = reader.mean.to(device).max(1)  # label words
    row = rows.repeat_interleave(len(column))
    column, target = column.repeat(len(rows)), reader.tokens.to(device).repeat(len(rows)).unsqueeze(1)
    return Texts(row, column, row, weight.repeat(len(rows)), target, column == batch["gold"][row])
