"""Which tokens may follow: any token spelling of an allowed answer, as a token-level automaton has it.

The automaton of ``(choice|choice|…)`` needs no general regex machine: its states are the prefixes of the choices. A
token is allowed where prefix + token is again such a prefix, and the end token where the prefix is a whole choice.
Works on bytes, so that a character of several tokens (é under byte-level BPE) can be spelt, too (fault I046).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from fewnlu.decoding.decoder import check_choices
from fewnlu.errors import ConfigError


class Vocabulary:
    """Token ids by the bytes that they write.

    Args:
        spelling: token id -> bytes; ids with no bytes are left out, for they would never end.
        eos: id of the end token; None where there is none.
        name: of the model, for errors.

    Attributes:
        ids: bytes -> ids of the tokens that write them.
        texts: id -> bytes, the other way round.
    """

    def __init__(self, spelling: Mapping[int, bytes], eos: int | None, name: str = "the model") -> None:
        self.eos, self.name = eos, name
        self.texts = {token: text for token, text in sorted(spelling.items()) if text and token != eos}
        self.ids: dict[bytes, list[int]] = {}
        for token, text in self.texts.items():
            self.ids.setdefault(text, []).append(token)
        self.longest = max(map(len, self.ids), default=0)
        self.constraint = lru_cache(maxsize=256)(self._constraint)

    @classmethod
    def of_tokenizer(cls, tokenizer: Any, rows: int | None = None) -> Vocabulary:
        """The vocabulary of a fast tokenizer of transformers.

        Special tokens are no text and can never be part of an answer (fault I044).

        Args:
            rows: rows of the model's output matrix; ids beyond can't be drawn.
        """
        backend = json.loads(tokenizer.backend_tokenizer.to_str())
        kinds = _types(backend.get("decoder")) | _types(backend.get("pre_tokenizer"))
        added = tokenizer.added_tokens_decoder
        spelling = {}
        for token, i in tokenizer.get_vocab().items():
            if rows is not None and i >= rows:
                continue
            if i in added:
                if not added[i].special and i not in tokenizer.all_special_ids:
                    spelling[i] = added[i].content.encode("utf-8", "surrogatepass")
            elif i not in tokenizer.all_special_ids:
                spelling[i] = _bytes(token, "ByteLevel" in kinds)
        name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
        return cls(spelling, tokenizer.eos_token_id, name)

    def _constraint(self, choices: tuple[str, ...]) -> Constraint:
        return Constraint(choices, self)

    def spell(self, text: bytes) -> list[int] | None:
        """Some spelling of the text, longest pieces first where that works; None where there is none."""
        best: list[list[int] | None] = [None] * len(text) + [[]]
        for start in range(len(text) - 1, -1, -1):
            for end in range(min(len(text), start + self.longest), start, -1):
                rest = best[end]
                if rest is not None and text[start:end] in self.ids:
                    found = [self.ids[text[start:end]][0], *rest]
                    kept = best[start]
                    if kept is None or len(found) < len(kept):
                        best[start] = found
        return best[0]


@dataclass(frozen=True, slots=True)
class Step:
    """What may follow a prefix: `tokens` [n] lead to `prefixes` [n]; the end token, if allowed, comes last (None)."""

    tokens: np.ndarray
    prefixes: tuple[bytes | None, ...]


class Constraint:
    """The automaton of one set of answers; a state is the bytes written so far, b"" at the start.

    Raises:
        ConfigError: empty or repeated choices, or one that the vocabulary can't spell.
    """

    def __init__(self, choices: Sequence[str], vocabulary: Vocabulary) -> None:
        check_choices(choices)
        self.vocabulary = vocabulary
        self.choices = tuple(c.encode("utf-8", "surrogatepass") for c in choices)
        self.index = {c: i for i, c in enumerate(self.choices)}
        reach: dict[bytes, list[int]] = {}
        following: dict[bytes, set[int]] = {}
        for i, choice in enumerate(self.choices):
            for end in range(len(choice) + 1):
                reach.setdefault(choice[:end], []).append(i)
                if end < len(choice):
                    following.setdefault(choice[:end], set()).add(choice[end])
        self._reach = {prefix: tuple(ids) for prefix, ids in reach.items()}
        self._following = following
        self._steps: dict[bytes, Step] = {}
        # Where every byte of the answers is a token, no prefix is a dead end; else dead ends are looked for.
        single = all(bytes([b]) in vocabulary.ids for choice in self.choices for b in choice)
        self._live = None if single else self._find_live()
        for choice, text in zip(self.choices, choices, strict=True):
            if not single and vocabulary.spell(choice) is None:
                raise ConfigError(f"choice {text!r}: {vocabulary.name} has no tokens that spell it; use another word")
            longer = choice in following
            if longer and vocabulary.eos is None:
                raise ConfigError(
                    f"choice {text!r} begins another one, and {vocabulary.name} has no end token to tell them apart"
                )

    def reach(self, prefix: bytes) -> tuple[int, ...]:
        """The choices that begin with the prefix."""
        return self._reach[prefix]

    def decided(self, prefix: bytes) -> int | None:
        """The only choice that the prefix can become: whatever is drawn after it, this will be the answer."""
        found = self._reach[prefix]
        return found[0] if len(found) == 1 else None

    def step(self, prefix: bytes) -> Step:
        """Allowed tokens after a prefix, by id; the end token, where allowed, comes last."""
        found = self._steps.get(prefix)
        if found is None:
            pairs = sorted(
                (token, end)
                for end in self._extensions(prefix)
                if self._live is None or end in self._live
                for token in self.vocabulary.ids[end[len(prefix) :]]
            )
            tokens, ends = [t for t, _ in pairs], [e for _, e in pairs]
            whole: list[bytes | None] = [*ends]
            if prefix in self.index and self.vocabulary.eos is not None:
                tokens.append(self.vocabulary.eos)
                whole.append(None)
            found = self._steps[prefix] = Step(np.array(tokens, dtype=np.int64), tuple(whole))
        return found

    def _extensions(self, prefix: bytes) -> list[bytes]:
        """Longer prefixes that are one token away."""
        found, ends, known = [], [prefix], self.vocabulary.ids
        for _ in range(self.vocabulary.longest):
            ends = [end + bytes([b]) for end in ends for b in sorted(self._following.get(end, ()))]
            if not ends:
                break
            found += [end for end in ends if end[len(prefix) :] in known]
        return found

    def _find_live(self) -> set[bytes]:
        live = set(self.choices)
        for prefix in sorted(self._reach, key=len, reverse=True):
            if prefix not in live and any(end in live for end in self._extensions(prefix)):
                live.add(prefix)
        return live


def _types(node: Any) -> set[str]:
    """All component types in a part of a serialised tokenizer."""
    if isinstance(node, dict):
        own = {node["type"]} if isinstance(node.get("type"), str) else set()
        return own.union(*(_types(v) for v in node.values()))
    return set().union(*(_types(v) for v in node)) if isinstance(node, list) else set()


def _bytes(token: str, byte_level: bool) -> bytes:
    if byte_level:
        table = _byte_of_character()
        if all(c in table for c in token):
            return bytes(table[c] for c in token)
        return token.encode("utf-8", "surrogatepass")
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace("▁", " ").encode("utf-8", "surrogatepass")


@lru_cache(maxsize=1)
def _byte_of_character() -> dict[str, int]:
    """The printable stand-ins of byte-level BPE (Radford et al. 2019), reversed."""
    shown = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in shown]
    return {chr(b): b for b in shown} | {chr(256 + n): b for n, b in enumerate(hidden)}
