"""A free span at several masks (or as following tokens), compared with one of the row's fields (spec 3.2, WSC)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fewnlu.errors import ConfigError, DataError
from fewnlu.prompts.encoding import Encoded, Encoder, collate
from fewnlu.prompts.readers.base import Reader, Reading, hidden_of, sequences_of
from fewnlu.prompts.readers.tokens import log_probs, states_at, states_of, vocabulary_logits
from fewnlu.prompts.template import parse
from fewnlu.prompts.verbalizer import answer_ids, render, word_context
from fewnlu.tasks.task import Pattern, Row, Task


class Span(Reader):
    """Base: a cloze learns to write the span, so only rows where it is the right one can be trained on.

    The number of masks is that of the longest span among the labelled rows, for every row alike: the model says where
    the answer ends with padding, which is dropped. `wsc.masks=paper` gives each row the tokens of its own candidate
    plus 0 to 3 in training (drawn by the row's id) and plus 1 in evaluation, which gives away the candidate's length.

    The candidate is right if all predicted words are in it or all its words are predicted. An empty prediction says
    nothing and counts as wrong; in the released toolkit, hence under `wsc.masks=paper`, it counts as right.
    """

    def __init__(
        self, tokenizer: Any, kind: str, pattern: Pattern, task: Task, reading: Reading, labeled: Sequence[Row] = ()
    ) -> None:
        super().__init__(tokenizer, kind, pattern, task, reading)
        self.encoder = Encoder(tokenizer, kind, pattern, task.max_length)
        self.context = word_context(self.encoder.template, self.encoder.joined)
        self.span = parse(pattern.span, f"{pattern.where}.span", need_mask=False)
        self.pad = tokenizer.pad_token_id
        if task.positive is None:
            raise ConfigError("task.positive: a span needs the label that says it is meant")
        self.positive = task.label_id(task.positive)
        self.longest = max((len(ids) for ids in self._ids(labeled)), default=0)
        if reading.masks == "labelled" and not self.longest:
            raise ConfigError(f"{pattern.where}.span: no labelled rows, so the number of masks is unknown")

    @property
    def signature(self) -> tuple[Any, ...]:
        return (self.kind, self.pattern.span, self.reading.masks, self.longest)

    def _ids(self, rows: Sequence[Row]) -> list[list[int]]:
        found = answer_ids(self.tokenizer, [render(self.span, r.fields) for r in rows], self.context, self.kind)
        for row, ids in zip(rows, found, strict=True):
            if not ids:
                raise DataError(f"row {row.id!r}: the span of pattern {self.pattern.id} has no tokens")
        return found

    def _n_masks(self, row: Row, ids: list[int], train: bool) -> int:
        if self.reading.masks == "labelled":
            return self.longest
        return len(ids) + (hashlib.sha256(row.id.encode()).digest()[0] % 4 if train else 1)

    def trains_on(self, gold: int) -> bool:
        return gold == self.positive

    def notes(self, gold: Sequence[int]) -> list[str]:
        used = sum(map(self.trains_on, gold))
        if used == len(gold):
            return []
        label = self.task.labels[self.positive]
        return [f"a cloze trains on rows of class {label} only: {used} of {len(gold)} train rows"]

    def collate(self, rows: Sequence[Encoded], gold: Sequence[int], pad_id: int, train: bool) -> dict[str, Any]:
        """Adds target [rows, tokens] (−1: none), n_masks [rows] and the candidates' texts."""
        sequences = [s for row in rows for s in sequences_of(row, train)]
        batch: dict[str, Any] = collate(sequences, pad_id)
        longest = max(len(row.targets[1]) for row in rows)
        batch["target"] = torch.tensor([[*r.targets[1], *[-1] * (longest - len(r.targets[1]))] for r in rows])
        batch["n_masks"] = torch.tensor([row.targets[2] for row in rows])
        batch["candidates"] = [row.targets[0] for row in rows]
        batch["gold"] = torch.tensor(list(gold))
        return batch

    def scores(self, backbone: Any, batch: dict[str, Any]) -> Tensor:
        """[rows, 2]: 1 for the predicted label and 0 for the other; a free text has no probability of being wrong."""
        written = self.write(backbone, batch)
        out = torch.zeros(len(written), 2, device=batch["input_ids"].device)
        for row, (text, candidate) in enumerate(zip(written, batch["candidates"], strict=True)):
            meant = same_span(text, candidate, empty=self.reading.masks == "paper")
            out[row, self.positive if meant else 1 - self.positive] = 1.0
        return out

    def write(self, backbone: Any, batch: dict[str, Any]) -> list[str]:
        """The text that the model puts at each row's masks."""
        raise NotImplementedError

    def loss(self, backbone: Any, batch: dict[str, Any]) -> Tensor:
        target = batch["target"]
        row, token = (target >= 0).nonzero(as_tuple=True)
        states = states_at(backbone, batch, row, batch["read"][row, token])
        values = log_probs(backbone, states, torch.arange(len(row), device=row.device), target[row, token])
        per_row = torch.zeros(len(target), device=values.device).index_add(0, row, -values)
        return (per_row / (target >= 0).sum(1)).mean()


class MaskedSpan(Span):
    """Cross-entropy at all masks; in evaluation the most confident mask is filled first (`reading.fill`)."""

    def encode(self, rows: Sequence[Row]) -> list[Encoded]:
        found = self._ids(rows)
        masks = [self._n_masks(row, ids, train=True) for row, ids in zip(rows, found, strict=True)]
        tests = [self._n_masks(row, ids, train=False) for row, ids in zip(rows, found, strict=True)]
        trained = self.encoder.encode_rows(rows, masks)
        tested = trained if tests == masks else self.encoder.encode_rows(rows, tests)
        out = []
        for row, ids, n, own, other in zip(rows, found, tests, trained, tested, strict=True):
            pads = [self.pad] * (len(own.read) - len(ids))
            target = (*ids, *pads)[: len(own.read)]
            evaluate = () if other is own else (other,)
            out.append(replace(own, evaluate=evaluate, targets=(render(self.span, row.fields), target, n)))
        return out

    def write(self, backbone: Any, batch: dict[str, Any]) -> list[str]:
        read, n_masks, ids = batch["read"], batch["n_masks"], batch["input_ids"].clone()
        open_ = torch.arange(read.shape[1], device=read.device)[None, :] < n_masks[:, None]
        written = torch.full_like(read, self.pad)
        rows = torch.arange(len(read), device=read.device)
        states = hidden_of(backbone, batch)[rows[:, None], read]
        active = rows
        while len(active):
            best, words = self._best(backbone, states)
            if self.reading.fill == "parallel":
                written = torch.where(open_, words, written)
                break
            if self.reading.fill == "left_to_right":
                chosen = open_[active].int().argmax(1)
            else:
                chosen = best.masked_fill(~open_[active], -torch.inf).argmax(1)
            word = words[torch.arange(len(active), device=read.device), chosen]
            written[active, chosen] = word
            ids[active, read[active, chosen]] = word
            open_[active, chosen] = False
            active = active[open_[active].any(1)]
            if len(active):
                states = states_of(backbone, batch, ids[active], active, read[active])
        return [self.tokenizer.decode(one.tolist(), skip_special_tokens=True) for one in written]

    def _best(self, backbone: Any, states: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability and id of the likeliest token of states [rows, masks, H]; a mask is no answer."""
        best, words = [], []
        for one in states.flatten(0, 1).split(256):
            logits = vocabulary_logits(backbone, one)
            logits[:, self.tokenizer.mask_token_id] = -torch.inf
            top = torch.log_softmax(logits, -1).max(-1)
            best.append(top.values)
            words.append(top.indices)
        return torch.cat(best).view(states.shape[:2]), torch.cat(words).view(states.shape[:2])


class CausalSpan(Span):
    """The following tokens, greedily, up to the end-of-text (padding) token or as many as a masked model has masks."""

    def encode(self, rows: Sequence[Row]) -> list[Encoded]:
        found = self._ids(rows)
        masks = [self._n_masks(row, ids, train=False) for row, ids in zip(rows, found, strict=True)]
        room = [max(n, len(ids) + 1) for n, ids in zip(masks, found, strict=True)]
        out = []
        for row, ids, n, context in zip(rows, found, masks, self.encoder.encode_rows(rows, room), strict=True):
            target = (*ids, self.pad)  # where the answer ends
            last = len(context.input_ids) - 1
            train = Encoded(row.id, context.input_ids + ids, None, list(range(last, last + len(target))))
            out.append(replace(context, train=(train,), targets=(render(self.span, row.fields), target, n)))
        return out

    def write(self, backbone: Any, batch: dict[str, Any]) -> list[str]:
        lengths = batch["attention_mask"].sum(1)
        rows = [batch["input_ids"][r, :n].tolist() for r, n in enumerate(lengths.tolist())]
        starts, left = [len(one) for one in rows], batch["n_masks"].tolist()
        active = list(range(len(rows)))
        states = hidden_of(backbone, batch)[torch.arange(len(rows)), lengths - 1]
        while active:
            words = vocabulary_logits(backbone, states).argmax(-1).tolist()
            for row, word in zip(active, words, strict=True):
                left[row] = 0 if word == self.pad else left[row] - 1
                if word != self.pad:
                    rows[row].append(word)
            active = [row for row in active if left[row] > 0]
            if active:
                again = collate([Encoded("", rows[row], None, [0]) for row in active], self.pad)
                ids, mask = again["input_ids"].to(states.device), again["attention_mask"].to(states.device)
                states = backbone.hidden(ids, mask)[torch.arange(len(active)), mask.sum(1) - 1]
        return [
            self.tokenizer.decode(one[start:], skip_special_tokens=True)
            for one, start in zip(rows, starts, strict=True)
        ]


def same_span(prediction: str, candidate: str, empty: bool = False) -> bool:
    """Whether every predicted word is in the candidate or every word of the candidate is predicted.

    Args:
        empty: what a prediction without a word counts as.
    """
    predicted, wanted = ({w.lower() for w in re.findall(r"[^\W\d_]+", text)} for text in (prediction, candidate))
    if not predicted:
        return empty
    return predicted <= wanted or wanted <= predicted
