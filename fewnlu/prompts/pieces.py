"""Text to token ids with the place of each token, as a piece of a sequence that other pieces precede.

Two traps are dealt with here and nowhere else: special tokens written in users' text are plain text, and a
piece behind a mask must not gain a word start that the text has not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fewnlu.errors import ConfigError, DataError

Token = tuple[int, int, int]  # id, start, end in characters of the text

# What a piece is joined to while it is tokenised; the first that leaves a clean cut is used.
_ANCHORS = ("a", ")", "0", "x", "\n")


def tokenizer_name(tokenizer: Any) -> str:
    """The tokenizer as errors name it."""
    return getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__


def one_text(tokenizer: Any, kind: str) -> bool:
    """Whether sequence B simply goes on the text of A: in causal models, and where a tokenizer puts nothing between."""
    if kind == "causal":
        return True
    owners = tokenizer("a", "a").sequence_ids(0)
    return None not in owners[owners.index(0) : owners.index(1)]


class Pieces:
    """Tokenises pieces of text.

    Raises:
        ConfigError: the tokenizer has no Rust backend, hence no offsets.
    """

    def __init__(self, tokenizer: Any) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise ConfigError(
                f"model {tokenizer_name(tokenizer)}: {type(tokenizer).__name__} gives no character "
                "offsets, which shortening needs; use a model with a fast tokenizer"
            )
        self.tokenizer = tokenizer
        self.unk_id = tokenizer.unk_token_id
        self._special = set(tokenizer.all_special_ids) - {self.unk_id}
        # WordPiece marks what goes on (##s), not what starts: a piece behind a mask starts a word of its own.
        self._joins = type(tokenizer.backend_tokenizer.model).__name__ not in ("WordPiece", "WordLevel")

    def encode(self, texts: Sequence[str], after: bool = False) -> list[list[Token]]:
        """Tokens of each text, without special tokens.

        Args:
            after: the texts go on a sequence (after a mask or another piece) instead of starting one.
        """
        anchored = after and self._joins
        found: Sequence[list[Token] | None]
        found = self._joined(texts, _ANCHORS[0]) if anchored else self._raw(texts)
        result: list[list[Token]] = []
        for text, tokens in zip(texts, found, strict=True):
            if tokens is None:
                tries = (self._joined([text], anchor)[0] for anchor in _ANCHORS[1:])
                tokens = next((t for t in tries if t is not None), None)
                tokens = self._raw([text])[0] if tokens is None else tokens
            result.append(self._without_special(text, tokens, after))
        return result

    def ids(self, text: str, after: bool = False) -> list[int]:
        """Token ids of one text."""
        return [token[0] for token in self.encode([text], after)[0]]

    def is_blank(self, token_id: int) -> bool:
        """Whether the token is white space alone (a lone ``▁`` or ``Ġ``)."""
        return not self.tokenizer.convert_ids_to_tokens(token_id).strip("▁Ġ \t\n")

    def _raw(self, texts: Sequence[str]) -> list[list[Token]]:
        if not texts:
            return []
        out = self.tokenizer(
            list(texts),
            add_special_tokens=False,
            split_special_tokens=True,
            return_offsets_mapping=True,
            return_attention_mask=False,
            return_token_type_ids=False,
            truncation=False,
            padding=False,
            verbose=False,
        )
        pairs = zip(out["input_ids"], out["offset_mapping"], strict=True)
        return [[(i, s, e) for i, (s, e) in zip(ids, spans, strict=True)] for ids, spans in pairs]

    def _joined(self, texts: Sequence[str], anchor: str) -> list[list[Token] | None]:
        """Tokens of the texts behind `anchor`; None where a token spans the joint."""
        cut = len(anchor)
        result: list[list[Token] | None] = []
        for tokens in self._raw([anchor + text for text in texts]):
            first = next((i for i, (_, _, end) in enumerate(tokens) if end > cut), len(tokens))
            clean = first > 0 and all(start >= cut for _, start, _ in tokens[first:])
            result.append([(i, s - cut, e - cut) for i, s, e in tokens[first:]] if clean else None)
        return result

    def _without_special(self, text: str, tokens: list[Token], after: bool) -> list[Token]:
        # Models whose vocabulary holds "[MASK]" as a piece (Unigram) find it in text even when told not to.
        for token_id, start, end in tokens:
            if token_id in self._special:
                if end - start < 2:
                    if token_id != self.tokenizer.mask_token_id:
                        continue  # a one-character pad or end token is a character like any other
                    raise DataError(f"the text holds {text[start:end]!r}, which is this tokenizer's mask token")
                left = self.encode([text[: end - 1]], after)[0]
                right = self.encode([text[end - 1 :]], after=True)[0]
                return left + [(i, s + end - 1, e + end - 1) for i, s, e in right]
        return tokens
