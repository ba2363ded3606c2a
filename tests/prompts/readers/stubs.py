"""Backbones that know or know nothing: states say where they are, logits are looked up by place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fewnlu.prompts.encoding import Encoded
from fewnlu.prompts.readers import Reader
from fewnlu.tasks.task import Row, Task


class Stub:
    """A model whose distribution at a position is a function of (ids of the sequence, position)."""

    def __init__(
        self, tokenizer: Any, kind: str, words: Callable[[list[int], int], dict[int, float]], surplus: int = 0
    ):
        self.tokenizer, self.kind, self.words = tokenizer, kind, words
        self.n_tokens, self.vocab_size = len(tokenizer), len(tokenizer) + surplus
        self.passes: list[tuple[int, int]] = []
        self.seen: list[list[int]] = []

    def hidden(self, ids: Tensor, mask: Tensor, token_type_ids: Any = None, prefix: Any = None) -> Tensor:
        self.passes.append(tuple(ids.shape))
        first = len(self.seen)
        self.seen += [row[: int(n)].tolist() for row, n in zip(ids, mask.sum(1), strict=True)]
        rows = torch.arange(first, len(self.seen))[:, None].expand(ids.shape)
        return torch.stack([rows, torch.arange(ids.shape[1]).expand(ids.shape)], -1).double()

    def logits(self, states: Tensor, token_ids: Tensor | None = None) -> Tensor:
        flat = states.reshape(-1, 2).long().tolist()
        out = torch.zeros(len(flat), self.vocab_size)
        out[:, self.n_tokens :] = 1e4  # rows of no word
        for i, (row, position) in enumerate(flat):
            for token, value in self.words(self.seen[row], position).items():
                out[i, token] = value
        out = out.view(*states.shape[:-1], self.vocab_size)
        return out if token_ids is None else out[..., token_ids]


def batch_of(reader: Reader, task: Task, rows: list[Row], train: bool = False) -> dict[str, Any]:
    encoded = reader.encode(rows)
    gold = [task.gold(row) for row in rows]
    return reader.collate(encoded, gold, reader.tokenizer.pad_token_id or 0, train)


def oracle(reader: Reader, encoded: list[Encoded], gold: list[int], label_words: list[list[int]] | None) -> Stub:
    """A model that puts all mass on the tokens of the gold answer of each row.

    It recognises a row's sequences by their ids, and answers nothing where the number of masks is another answer's.
    """
    known: dict[tuple[tuple[int, ...], int], int] = {}
    if hasattr(reader, "span"):  # rows on one text are one question: what the True row names is what it means
        order = sorted(range(len(gold)), key=lambda i: gold[i] == reader.positive)
        encoded, gold = [encoded[i] for i in order], [gold[i] for i in order]
    for row, y in zip(encoded, gold, strict=True):
        for sequence, tokens in _wanted(reader, row, y, label_words):
            context = tuple(
                sequence.input_ids if reader.kind == "masked" else sequence.input_ids[: sequence.read[0] + 1]
            )
            for place, token in zip(sequence.read, tokens, strict=False):
                known[context, place] = token
    lengths = sorted({len(c) for c, _ in known})

    def words(ids: list[int], position: int) -> dict[int, float]:
        if reader.kind == "masked":
            # filled masks are part of the input now: compare with the masks put back
            for sequence, _ in filled.get(len(ids), ()):
                same = all(
                    a == b or i in sequence.read for i, (a, b) in enumerate(zip(sequence.input_ids, ids, strict=True))
                )
                if same and position in sequence.read:
                    return {known.get((tuple(sequence.input_ids), position), 0): 50.0}
            return {}
        for n in lengths:
            if (tuple(ids[:n]), position) in known:
                return {known[tuple(ids[:n]), position]: 50.0}
        return {}

    filled: dict[int, list[tuple[Encoded, Any]]] = {}
    for row, y in zip(encoded, gold, strict=True):
        for sequence, tokens in _wanted(reader, row, y, label_words):
            filled.setdefault(len(sequence.input_ids), []).append((sequence, tokens))
    return Stub(reader.tokenizer, reader.kind, words)


def _wanted(
    reader: Reader, row: Encoded, y: int, label_words: list[list[int]] | None
) -> list[tuple[Encoded, list[int]]]:
    if label_words is not None:
        return [(row, [label_words[y][0]])]
    if hasattr(reader, "span"):
        _, target, n = row.targets
        wrong = [5] * n  # whatever word: not the candidate's
        tokens = list(target) if y == reader.positive else wrong
        return [(one, tokens) for one in (row.evaluate or (row,))]
    out = []
    for target in row.targets:
        if target.column == y:
            out.append((row.evaluate[target.sequence], list(target.ids)))
    return out
