"""Rows to token ids: rendered, tokenised, shortened, with the positions that a model is read at.

A masked model is read at its masks. A causal model gets the text up to the mask and is read at its last token. Where
nothing stands between two sequences (causal models, and masked ones whose tokenizer puts nothing there) B follows A
after one space. Only shortenable fields are ever cut: one token at a time, from the end of the field that is longest at
that moment, so that none is eaten up before another (unlike the released toolkit; spec, section 4.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fewnlu.errors import ConfigError, DataError
from fewnlu.prompts.pieces import Pieces, one_text, tokenizer_name
from fewnlu.prompts.template import Boundary, Field, Mask, Part, Slots, Text, causal_obstacle, parse
from fewnlu.tasks.task import Pattern, Row

if TYPE_CHECKING:
    import torch

KINDS = ("masked", "causal")


@dataclass(frozen=True, slots=True)
class Encoded:
    """A row as token ids, -1, -2, … where trainable slots are; `read` holds the positions that are read, `shortened`
    the number of tokens cut.

    Attributes:
        train / evaluate: the sequences that training and evaluation read instead of this one (none: this one).
        targets: what is scored at the read positions; see the readers that fill it in.
        right: columns of the right answers, where the row brings its own.
    """

    row_id: str
    input_ids: list[int]
    token_type_ids: list[int] | None
    read: list[int]
    shortened: int = 0
    train: tuple[Encoded, ...] = ()
    evaluate: tuple[Encoded, ...] = ()
    targets: tuple[Any, ...] = ()
    right: tuple[int, ...] = ()


@dataclass(slots=True)
class _Piece:
    """A run of text and fields between masks and boundaries, or (`parts` empty) trainable slots or one mask."""

    parts: list[Text | Field]
    starts: bool  # begins its sequence
    b: bool  # lies in sequence B
    slots: tuple[int, ...] = ()  # ids of trainable slots (no text): -1, -2, … in the order of the template
    owners: list[int | None] = field(default_factory=list)  # of each part: index of its shortenable field


class Encoder:
    """Encodes the rows of one pattern for one tokenizer.

    Args:
        tokenizer: a fast tokenizer of transformers.
        kind: ``masked`` or ``causal``.
        pattern: of the task.
        max_length: most tokens of a row, special ones included.

    Raises:
        ConfigError: the pattern cannot be used with this kind of model or tokenizer.
    """

    def __init__(self, tokenizer: Any, kind: str, pattern: Pattern, max_length: int) -> None:
        if kind not in KINDS:
            raise ConfigError(f"kind of model {kind!r}: expected one of {', '.join(KINDS)}")
        self.tokenizer, self.kind, self.pattern, self.max_length = tokenizer, kind, pattern, max_length
        where = f"{pattern.where}.template" if pattern.id >= 0 else "task.cls"
        self.template = parse(pattern.template, where, need_mask=pattern.id >= 0)
        self.pooled = self.template.n_masks == 0  # CLS: read at the first token (masked) or the last one (causal)
        parts = self.template.parts
        self.several = any(isinstance(p, Mask) and p.multi for p in parts)
        if self.several and self.template.n_masks > 1:
            raise ConfigError(f"{where}: {pattern.template!r} has a mask beside [MASK*]; a pattern reads one place")
        self.joined = any(isinstance(p, Boundary) for p in parts) and one_text(tokenizer, kind)
        if self.joined:
            parts = tuple(Text(" ") if isinstance(p, Boundary) else p for p in parts)
        if not self.pooled and kind == "causal":
            if why := causal_obstacle(self.template):
                raise ConfigError(
                    f"{where}: a causal model cannot use {pattern.template!r}: {why}; take another pattern"
                )
            parts = parts[: self.template.first_mask]
        elif not self.pooled and tokenizer.mask_token_id is None:
            raise ConfigError(
                f"model {tokenizer_name(tokenizer)}: its tokenizer has no mask token; use model.kind=causal"
            )
        self._pieces = Pieces(tokenizer)
        self._layout, self._n_fields = _layout(parts)
        self._special = _special_tokens(tokenizer, pair=any(p.b for p in self._layout), causal=kind == "causal")
        self._types = "token_type_ids" in tokenizer.model_input_names

    def encode(self, row: Row) -> Encoded:
        """One row; see `encode_rows`."""
        return self.encode_rows([row])[0]

    def encode_rows(self, rows: Sequence[Row], masks: Sequence[int] | None = None) -> list[Encoded]:
        """Encode rows, tokenising each piece of the template for all of them at once.

        Args:
            masks: of each row the number of masks that ``[MASK*]`` stands for; a causal model, which has none, keeps
                that many tokens free for the answer.

        Raises:
            DataError: a row that stays too long when all its shortenable fields are one token.
            ConfigError: ``[MASK*]`` without `masks`.
        """
        if self.several and masks is None:
            raise ConfigError(
                f"{self.template.where}: {self.pattern.template!r} has [MASK*], which needs a reader of several masks"
            )
        masks = [1] * len(rows) if masks is None else masks
        columns: list[list[list[tuple[int, int | None]]]] = []
        for piece in self._layout:
            if piece.slots:
                columns.append([[(i, None) for i in piece.slots]] * len(rows))
                continue
            if not piece.parts:
                columns.append([[(self.tokenizer.mask_token_id, None)] * n for n in masks])
                continue
            rendered = [self._render(piece, row) for row in rows]
            tokens = self._pieces.encode([text for text, _ in rendered], after=not piece.starts)
            columns.append(
                [
                    [(i, _owner(text, s, e, spans)) for i, s, e in found]
                    for (text, spans), found in zip(rendered, tokens, strict=True)
                ]
            )
        free = masks if self.several and self.kind == "causal" else [0] * len(rows)
        return [self._assemble(row, [column[n] for column in columns], free[n]) for n, row in enumerate(rows)]

    def _render(self, piece: _Piece, row: Row) -> tuple[str, list[tuple[int, int, int]]]:
        """Text of a piece and the span of each shortenable field in it. No piece ends in white space."""
        text, spans = "", []
        for part, owner in zip(piece.parts, piece.owners, strict=True):
            value = part.text if isinstance(part, Text) else part.render(row.fields)
            if piece.starts and not text:
                value = value.lstrip()
            if owner is not None:
                spans.append((len(text), len(text) + len(value), owner))
            text += value
        text = text.rstrip()
        return text, [(start, min(end, len(text)), owner) for start, end, owner in spans]

    def _assemble(self, row: Row, pieces: list[list[tuple[int, int | None]]], free: int = 0) -> Encoded:
        prefix, middle, suffix, types = self._special
        cut = self._shorten(row, pieces, len(prefix) + len(middle) + len(suffix) + free)
        ids = list(prefix)
        read: list[int] = []
        kinds = [types[0]] * len(prefix)
        in_b = False
        for layout, tokens in zip(self._layout, pieces, strict=True):
            if layout.b and not in_b:
                in_b = True
                ids += middle
                kinds += types[1]
            if not layout.parts and not layout.slots:
                read.extend(range(len(ids), len(ids) + len(tokens)))
            ids += [i for i, _ in tokens]
            kinds += [types[2] if in_b else types[0]] * len(tokens)
        ids += suffix
        kinds += [types[2] if in_b else types[0]] * len(suffix)
        if self.pooled and self.kind == "masked":
            read = [0]
        elif self.kind == "causal":
            if not ids:
                raise DataError(f"row {row.id!r}: pattern {self.pattern.id} renders no text, so nothing can be read")
            read = [len(ids) - 1]
        return Encoded(row.id, ids, kinds if self._types else None, read, cut)

    def _shorten(self, row: Row, pieces: list[list[tuple[int, int | None]]], n_special: int) -> int:
        total = sum(map(len, pieces)) + n_special
        excess = total - self.max_length
        if excess <= 0:
            return 0
        lengths = [0] * self._n_fields
        for tokens in pieces:
            for _, owner in tokens:
                if owner is not None:
                    lengths[owner] += 1
        if excess > sum(lengths) - sum(map(bool, lengths)):  # each field that is there keeps a token
            fixed = total - sum(lengths)
            raise DataError(
                f"row {row.id!r}: pattern {self.pattern.id} needs {total} tokens; {fixed} cannot be cut, "
                f"its shortenable fields have {', '.join(map(str, lengths)) or 'none'}\n"
                f"task.max_length is {self.max_length}, needed {fixed + sum(map(bool, lengths))}"
            )
        keep = _level(lengths, sum(lengths) - excess)
        seen = [0] * len(lengths)
        for n, tokens in enumerate(pieces):
            left = []
            for token_id, owner in tokens:
                if owner is not None:
                    seen[owner] += 1
                    if seen[owner] > keep[owner]:
                        continue
                left.append((token_id, owner))
            pieces[n] = left
        return excess


def _layout(parts: Iterable[Part]) -> tuple[list[_Piece], int]:
    pieces: list[_Piece] = []
    b, starts, n_fields, n_slots = False, True, 0, 0
    fresh = True  # the next text or field opens a new piece
    for part in parts:
        if isinstance(part, Boundary):
            b, starts, fresh = True, True, True
        elif isinstance(part, Mask):
            pieces.append(_Piece([], starts, b))
            starts, fresh = False, True
        elif isinstance(part, Slots):
            pieces.append(_Piece([], starts, b, tuple(-1 - n_slots - i for i in range(part.n))))
            starts, fresh, n_slots = False, True, n_slots + part.n
        elif isinstance(part, (Text, Field)):
            if fresh:
                pieces.append(_Piece([], starts, b))
                fresh, starts = False, False
            owner = None
            if isinstance(part, Field) and part.shorten:
                owner, n_fields = n_fields, n_fields + 1
            pieces[-1].parts.append(part)
            pieces[-1].owners.append(owner)
    return pieces, n_fields


def _level(lengths: Sequence[int], budget: int) -> list[int]:
    """Lengths left when tokens are taken one at a time from the longest field, the last one of equals.

    That levels the longest fields down to one height; what does not divide stays with the earlier ones.
    """
    keep = list(lengths)
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    for rank, shortest in enumerate(order):
        height, extra = divmod(budget, len(order) - rank)
        if lengths[shortest] > height:
            for i in sorted(order[rank:]):
                keep[i] = height + (1 if extra > 0 else 0)
                extra -= 1
            break
        budget -= lengths[shortest]
    return keep


def _owner(text: str, start: int, end: int, spans: list[tuple[int, int, int]]) -> int | None:
    """The shortenable field a token lies in; None if any visible character lies outside (then it stays)."""
    while start < end - 1 and text[start].isspace():
        start += 1
    for first, last, owner in spans:
        if first <= start and start < last and end <= last:
            return owner
    return None


def _special_tokens(
    tokenizer: Any, pair: bool, causal: bool
) -> tuple[list[int], list[int], list[int], tuple[int, list[int], int]]:
    """Special tokens (before A, between, at the end) and types (A, between, B), read off an example."""
    out = tokenizer("a", "a", return_token_type_ids=True) if pair else tokenizer("a", return_token_type_ids=True)
    ids, types, owners = out["input_ids"], out["token_type_ids"], out.sequence_ids(0)
    a = [i for i, s in enumerate(owners) if s == 0]
    b = [i for i, s in enumerate(owners) if s == 1] if pair else a
    middle = slice(a[-1] + 1, b[0]) if pair else slice(0, 0)
    suffix = [] if causal else ids[b[-1] + 1 :]
    return ids[: a[0]], ids[middle], suffix, (types[a[0]], types[middle], types[b[0]])


class EncodedSet:
    """Rows of one encoder, tokenised once each; `shared` gives a process one for each set of arguments."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self._done: dict[tuple[Any, ...], Encoded] = {}

    def __call__(self, rows: Sequence[Row]) -> list[Encoded]:
        """Encodings in the order of `rows`; ids repeat between files, so the text is part of the key."""
        keys = [(row.id, *row.fields.values()) for row in rows]
        new = {key: row for key, row in zip(keys, rows, strict=True) if key not in self._done}
        if new:
            self._done.update(zip(new, self.encoder.encode_rows(list(new.values())), strict=True))
        return [self._done[key] for key in keys]


_SHARED: dict[tuple[Any, ...], EncodedSet] = {}
_MOST_SETS = 32  # a job uses one, a sweep in one process a handful


def shared(tokenizer: Any, kind: str, pattern: Pattern, max_length: int) -> EncodedSet:
    """The process's EncodedSet of these arguments; it keeps the tokenizer alive, so its id stays its own."""
    key = (id(tokenizer), kind, pattern.id, pattern.template, max_length)
    if key not in _SHARED:
        if len(_SHARED) >= _MOST_SETS:
            _SHARED.pop(next(iter(_SHARED)))
        _SHARED[key] = EncodedSet(Encoder(tokenizer, kind, pattern, max_length))
    return _SHARED[key]


def forget() -> None:
    """Drop all kept encodings (a stream of rows would fill the memory with them)."""
    _SHARED.clear()


def collate(rows: Sequence[Encoded], pad_id: int) -> dict[str, torch.Tensor]:
    """Tensors of a batch, padded on the right to its longest row.

    Returns:
        input_ids, attention_mask and, where the model has them, token_type_ids [rows, length];
        read [rows, masks], filled up with 0 where a row has fewer.
    """
    import torch

    longest = max(len(row.input_ids) for row in rows)
    most = max(len(row.read) for row in rows)

    def padded(values: Iterable[list[int]], pad: int) -> torch.Tensor:
        return torch.tensor([v + [pad] * (longest - len(v)) for v in values], dtype=torch.long)

    batch = {
        "input_ids": padded((row.input_ids for row in rows), pad_id),
        "attention_mask": padded(([1] * len(row.input_ids) for row in rows), 0),
        "read": torch.tensor([row.read + [0] * (most - len(row.read)) for row in rows], dtype=torch.long),
    }
    if rows[0].token_type_ids is not None:
        batch["token_type_ids"] = padded((row.token_type_ids or [] for row in rows), 0)
    return batch


def length_sorted_batches(lengths: Sequence[int], max_rows: int, max_tokens: int) -> list[list[int]]:
    """Indices in batches of similar length, longest first, so that memory runs out at once or never.

    Each batch has at most `max_rows` rows and at most `max_tokens` tokens with padding, but always one row.
    """
    if max_rows < 1:
        raise ConfigError(f"rows a batch: {max_rows} is less than one")
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        longest = lengths[batches[-1][0]] if batches else 0
        if batches and len(batches[-1]) < max_rows and (len(batches[-1]) + 1) * longest <= max_tokens:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches
