"""Answers of any length, the row's own or fixed ones, scored jointly at several masks or as following tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fewnlu.errors import ConfigError, DataError
from fewnlu.prompts.encoding import Encoded, Encoder, collate
from fewnlu.prompts.readers.base import Reader, Reading, sequences_of
from fewnlu.prompts.readers.tokens import log_probs, states_at, states_of
from fewnlu.prompts.template import Template, Text, parse
from fewnlu.prompts.verbalizer import answer_ids, render, word_context
from fewnlu.tasks.task import Pattern, Row, Task


class Target(NamedTuple):
    """One text to score: its score column and weight in it, the evaluation sequence that reads it, its tokens."""

    column: int
    weight: float
    sequence: int
    ids: tuple[int, ...]


class Choices(Reader):
    """Base: texts per row and their tokens. A label with several texts scores the mean of theirs."""

    def __init__(self, tokenizer: Any, kind: str, pattern: Pattern, task: Task, reading: Reading) -> None:
        super().__init__(tokenizer, kind, pattern, task, reading)
        self.encoder = Encoder(tokenizer, kind, pattern, task.max_length)
        self.context = word_context(self.encoder.template, self.encoder.joined)
        where = f"{pattern.where}.verbalizer"
        self.texts: list[tuple[int, float, Template]] = [
            (y, 1 / len(pattern.verbalizer[label]), parse(word, f"{where}.{label}", need_mask=False))
            for y, label in enumerate(task.labels)
            for word in pattern.verbalizer.get(label, ())
        ]
        # Fixed words: the toolkit sums over tokens in training; texts of the row: it takes their mean (spec 3.2).
        self.fixed = bool(self.texts) and all(isinstance(p, Text) for _, _, t in self.texts for p in t.parts)
        if self.fixed:
            self._check_fixed(where)
        if reading.hinge == "batch" and len(task.labels) != 2 and kind == "masked":
            raise ConfigError("reading.hinge=batch: the toolkit's loss compares two choices; use reading.hinge=example")

    @property
    def signature(self) -> tuple[Any, ...]:
        return (self.kind, *(str(t.source) for _, _, t in self.texts))

    def _check_fixed(self, where: str) -> None:
        texts = [render(t, {}) for _, _, t in self.texts]
        owner: dict[tuple[int, ...], tuple[int, str]] = {}
        found = answer_ids(self.tokenizer, texts, self.context, self.kind)
        for (y, _, _), text, ids in zip(self.texts, texts, found, strict=True):
            label = self.task.labels[y]
            if not ids or self.tokenizer.unk_token_id in ids:
                raise ConfigError(f"{where}.{label}: '{text}' is not in the vocabulary of the model")
            other = owner.setdefault(tuple(ids), (y, text))
            if other[0] != y:
                raise ConfigError(
                    f"{where}: '{other[1]}' of label '{self.task.labels[other[0]]}' and '{text}' of label '{label}' "
                    "are the same pieces in this model; choose other words"
                )

    def answers(self, rows: Sequence[Row]) -> list[list[tuple[int, float, list[int]]]]:
        """(column, weight, token ids) of every text of every row.

        Raises:
            DataError: a text without tokens; names row and text.
        """
        flat: list[tuple[int, int, float, str]] = []
        for i, row in enumerate(rows):
            if self.texts:
                flat += [(i, y, weight, render(t, row.fields)) for y, weight, t in self.texts]
            else:
                flat += [(i, j, 1.0, text) for j, text in enumerate(row.meta["candidates"])]
        found = answer_ids(self.tokenizer, [text for *_, text in flat], self.context, self.kind)
        out: list[list[tuple[int, float, list[int]]]] = [[] for _ in rows]
        for (i, column, weight, text), ids in zip(flat, found, strict=True):
            if not ids:
                raise DataError(f"row {rows[i].id!r}: answer {text!r} of pattern {self.pattern.id} has no tokens")
            out[i].append((column, weight, ids))
        return out

    def collate(self, rows: Sequence[Encoded], gold: Sequence[int], pad_id: int, train: bool) -> dict[str, Any]:
        """Adds, per text: of_row, column, weight, sequence [texts], target [texts, tokens] (−1: none); right
        [rows, columns], whether an answer is right."""
        sequences = [sequences_of(row, train) for row in rows]
        starts = [0, *accumulate(len(own) for own in sequences)]
        batch: dict[str, Any] = collate([s for own in sequences for s in own], pad_id)
        texts = [(r, starts[r], t) for r, row in enumerate(rows) for t in row.targets]
        longest = max(len(t.ids) for _, _, t in texts)
        batch["of_row"] = torch.tensor([r for r, _, _ in texts])
        batch["column"] = torch.tensor([t.column for _, _, t in texts])
        batch["weight"] = torch.tensor([t.weight for _, _, t in texts])
        # a row with one sequence scores all its texts on that one
        own = [start + (t.sequence if len(sequences[r]) > 1 else 0) for r, start, t in texts]
        batch["sequence"] = torch.tensor(own)
        batch["target"] = torch.tensor([[*t.ids, *[-1] * (longest - len(t.ids))] for _, _, t in texts])
        right = torch.zeros(len(rows), int(batch["column"].max()) + 1, dtype=torch.bool)
        for r, (row, y) in enumerate(zip(rows, gold, strict=True)):
            for one in row.right if y in row.right else (y,) if y >= 0 else ():
                right[r, one] = True
        batch["right"], batch["gold"], batch["train"] = right, torch.tensor(list(gold)), train
        return batch

    def _first(self, backbone: Any, batch: dict[str, Any]) -> Tensor:
        """Log-probabilities [texts, tokens] of all targets at once, 0 beyond a text's end."""
        target = batch["target"]
        text, token = (target >= 0).nonzero(as_tuple=True)
        sequence = batch["sequence"][text]
        position = batch["read"][sequence, token]
        width = batch["input_ids"].shape[1]
        places, place = torch.unique(sequence * width + position, return_inverse=True)
        states = states_at(backbone, batch, places // width, places % width)
        values = log_probs(backbone, states, place, target[text, token])
        return torch.zeros(target.shape, device=values.device).masked_scatter(target >= 0, values)

    def _columns(self, batch: dict[str, Any], values: Tensor) -> tuple[Tensor, Tensor]:
        """Weighted sums of texts' values, and where there is a text: [rows, columns] each."""
        shape = batch["right"].shape
        flat = batch["of_row"] * shape[1] + batch["column"]
        zeros = torch.zeros(shape[0] * shape[1], device=values.device)
        there = torch.zeros_like(zeros, dtype=torch.bool).index_fill(0, flat, True)
        return zeros.index_add(0, flat, values * batch["weight"]).view(shape), there.view(shape)

    def _joined(self, batch: dict[str, Any], tokens: Tensor) -> Tensor:
        """Scores [rows, columns] of token log-probabilities [texts, tokens], by `reading.length`."""
        values = tokens.sum(1)
        if self.reading.length == "mean":
            values = values / (batch["target"] >= 0).sum(1)
        out, there = self._columns(batch, values)
        return out.masked_fill(~there, -torch.inf)


class CausalChoices(Choices):
    """Σ log p(token | text before the mask, previous tokens); cross-entropy over the answers' scores (spec 4.5)."""

    def encode(self, rows: Sequence[Row]) -> list[Encoded]:
        answers = self.answers(rows)
        contexts = self.encoder.encode_rows(rows, [max(len(ids) for _, _, ids in own) for own in answers])
        out = []
        for row, context, own in zip(rows, contexts, answers, strict=True):
            last = len(context.input_ids) - 1
            sequences = tuple(
                Encoded(row.id, context.input_ids + ids[:-1], None, list(range(last, last + len(ids))))
                for _, _, ids in own
            )
            targets = tuple(Target(column, weight, n, tuple(ids)) for n, (column, weight, ids) in enumerate(own))
            right = tuple(row.meta.get("right", ()))
            out.append(replace(context, train=sequences, evaluate=sequences, targets=targets, right=right))
        return out

    def scores(self, backbone: Any, batch: dict[str, Any]) -> Tensor:
        return self._joined(batch, self._first(backbone, batch))

    def loss(self, backbone: Any, batch: dict[str, Any]) -> Tensor:
        scores = self.scores(backbone, batch)
        chosen = scores.masked_fill(~batch["right"], -torch.inf).logsumexp(1)
        return (scores.logsumexp(1) - chosen).mean()


class MaskedChoices(Choices):
    """As many masks as an answer has tokens. Training reads all masks of the longest answer at once with PET's hinge
    loss; evaluation fills them in the order of `reading.fill` (spec 3.2)."""

    def encode(self, rows: Sequence[Row]) -> list[Encoded]:
        answers = self.answers(rows)
        longest = [max(len(ids) for _, _, ids in own) for own in answers]
        out = []
        for row, base, own in zip(rows, self.encoder.encode_rows(rows, longest), answers, strict=True):
            lengths = sorted({len(ids) for _, _, ids in own})
            targets = tuple(Target(c, weight, lengths.index(len(ids)), tuple(ids)) for c, weight, ids in own)
            right = tuple(row.meta.get("right", ()))
            out.append(replace(base, evaluate=tuple(_cut(base, n) for n in lengths), targets=targets, right=right))
        return out

    def scores(self, backbone: Any, batch: dict[str, Any]) -> Tensor:
        tokens = self._first(backbone, batch)
        if self.reading.fill != "parallel" and not batch["train"]:
            tokens = self._filled(backbone, batch, tokens)
        return self._joined(batch, tokens)

    def _filled(self, backbone: Any, batch: dict[str, Any], first: Tensor) -> Tensor:
        """Log-probabilities [texts, tokens], each read when all chosen before it are in their places."""
        target, source = batch["target"], batch["sequence"]
        read = batch["read"][source][:, : target.shape[1]]
        ids, now, out = batch["input_ids"][source], first, torch.zeros_like(first)
        open_ = target >= 0
        active = torch.arange(len(target), device=target.device)
        while True:
            if self.reading.fill == "left_to_right":
                chosen = open_[active].int().argmax(1)
            else:
                chosen = now.masked_fill(~open_[active], -torch.inf).argmax(1)
            rows = torch.arange(len(active), device=target.device)
            out[active, chosen] = now[rows, chosen]
            ids[active, read[active, chosen]] = target[active, chosen]
            open_[active, chosen] = False
            active = active[open_[active].any(1)]
            if not len(active):
                return out
            states = states_of(backbone, batch, ids[active], source[active], read[active])
            wanted = open_[active]
            place = wanted.flatten().nonzero()[:, 0]
            values = log_probs(backbone, states.flatten(0, 1), place, target[active].flatten()[place])
            now = torch.zeros_like(target[active], dtype=torch.float32).masked_scatter(wanted, values)

    def loss(self, backbone: Any, batch: dict[str, Any]) -> Tensor:
        tokens, real = self._first(backbone, batch), batch["target"] >= 0
        if self.reading.hinge == "batch":
            return self._batch_hinge(batch, tokens, real)
        per_text = -tokens.sum(1) if self.fixed else -tokens.sum(1) / real.sum(1)
        cost, there = self._columns(batch, per_text)
        right = batch["right"]
        wrong = ~right & there
        # [rows, right, wrong]: every right answer should cost one less than every wrong one
        gaps = torch.relu(1 + cost.unsqueeze(2) - cost.unsqueeze(1))
        pairs = right.unsqueeze(2) & wrong.unsqueeze(1)
        return (torch.where(pairs, gaps, 0.0).sum((1, 2)) / right.sum(1)).mean()

    def _batch_hinge(self, batch: dict[str, Any], tokens: Tensor, real: Tensor) -> Tensor:
        is_right = batch["right"][batch["of_row"], batch["column"]]
        right, wrong = (-tokens[one].sum() / real[one].sum() for one in (is_right, ~is_right))
        return torch.relu(1 + right - wrong)


def _cut(row: Encoded, masks: int) -> Encoded:
    """The sequence with only its first so many masks."""
    surplus = set(row.read[masks:])

    def left(values: list[int]) -> list[int]:
        return [v for i, v in enumerate(values) if i not in surplus]

    kinds = None if row.token_type_ids is None else left(row.token_type_ids)
    return Encoded(row.row_id, left(row.input_ids), kinds, row.read[:masks])
