"""Label words as token ids, in the form they would have if written in place of the mask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fewnlu.errors import ConfigError
from fewnlu.prompts.pieces import Pieces, one_text, tokenizer_name
from fewnlu.prompts.template import Boundary, Field, Template, Text, parse
from fewnlu.tasks.task import Pattern

_OPENING = "([{<“‘«"


def word_context(template: Template, joined: bool = False) -> str:
    """What precedes the first mask: the ``start`` of a sequence, an ``open`` bracket, or a ``word``.

    Args:
        joined: whether sequence B goes on the text of A; see `pieces.one_text`.
    """
    before = template.parts[: template.first_mask]
    if joined:
        before = tuple(p for p in before if not isinstance(p, Boundary))
    if not before or isinstance(before[-1], Boundary):
        return "start"
    last = before[-1]
    if isinstance(last, Text):
        if len(before) == 1 and not last.text.strip():
            return "start"
        if last.text[-1] in _OPENING:
            return "open"
    return "word"


def resolve(
    tokenizer: Any,
    pattern: Pattern,
    template: Template | None = None,
    labels: Sequence[str] | None = None,
    kind: str = "masked",
) -> list[list[int]]:
    """Token ids of each label's words, one id a word (single-mask reading).

    A word takes its spaced form where text precedes the mask in its sequence ("Ġterrible"), and its unspaced
    form at the start of a sequence or directly behind an opening bracket.

    Args:
        labels: order of the result; the verbalizer's own if None.

    Returns:
        [labels][words] ids.

    Raises:
        ConfigError: a word of several pieces, an unknown word, or labels that share an id.
    """
    template = template or parse(pattern.template, f"{pattern.where}.template")
    labels = list(pattern.verbalizer) if labels is None else list(labels)
    context = word_context(template, one_text(tokenizer, kind))
    pieces = Pieces(tokenizer)
    found = {label: [_word_ids(pieces, word, context, kind) for word in pattern.verbalizer[label]] for label in labels}
    where = f"{pattern.where}.verbalizer"
    model = tokenizer_name(tokenizer)
    owner: dict[int, tuple[str, str]] = {}
    for label in labels:
        for word, ids in zip(pattern.verbalizer[label], found[label], strict=True):
            if not ids or pieces.unk_id in ids:
                raise ConfigError(f"{where}.{label}: '{word}' is not in the vocabulary of model {model}")
            if len(ids) > 1:
                raise ConfigError(
                    f"{where}.{label}: '{word}' is {len(ids)} pieces in model {model} "
                    f"({' '.join(tokenizer.convert_ids_to_tokens(ids))}), and one mask reads one piece\n"
                    f"{_same_start(found, label, ids[0])}Choose a word that is one piece there, or write [MASK*] in "
                    "the template: as many masks as pieces."
                )
            other = owner.setdefault(ids[0], (label, word))
            if other[0] != label:
                raise ConfigError(
                    f"{where}: '{other[1]}' of label '{other[0]}' and '{word}' of label '{label}' are one "
                    f"piece '{tokenizer.convert_ids_to_tokens(ids[0])}' in model {model}; choose other words"
                )
    return [[ids[0] for ids in found[label]] for label in labels]


def render(text: Template, fields: Mapping[str, str]) -> str:
    """The text of an answer, with the row's fields filled in."""
    parts = (p.text if isinstance(p, Text) else p.render(fields) for p in text.parts if isinstance(p, (Text, Field)))
    return " ".join("".join(parts).split())


def answer_ids(tokenizer: Any, texts: Sequence[str], context: str, kind: str) -> list[list[int]]:
    """Token ids of answers of any length, in the form that they would have in place of the masks; see `resolve`."""
    pieces = Pieces(tokenizer)
    space = "" if context in ("start", "open") else " "
    found = [[t[0] for t in one] for one in pieces.encode([space + t for t in texts], after=context != "start")]
    blank = {i for ids in found if len(ids) > 1 for i in ids[:1] if kind == "masked" and pieces.is_blank(i)}
    return [ids[1:] if len(ids) > 1 and ids[0] in blank else ids for ids in found]


def _word_ids(pieces: Pieces, word: str, context: str, kind: str) -> list[int]:
    if context == "start":
        ids = pieces.ids(word)
    elif context == "open":
        ids = pieces.ids(word, after=True)
    else:
        ids = pieces.ids(" " + word, after=True)
    # Some tokenizers write the space as a piece of its own. A masked model has one mask for the word, and the
    # space before a mask is never encoded; a causal model would be asked for the space: that stays an error.
    if kind == "masked" and len(ids) > 1 and pieces.is_blank(ids[0]):
        return ids[1:]
    return ids


def _same_start(found: dict[str, list[list[int]]], label: str, first: int) -> str:
    same = [other for other, words in found.items() if other != label and any(w[:1] == [first] for w in words)]
    return f"Labels '{label}' and '{same[0]}' begin with the same piece. " if same else ""
