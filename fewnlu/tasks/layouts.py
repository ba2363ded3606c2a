"""Reading code of task files whose items are not rows: one item of the file -> the flat items that rows are made of.

Each accepts both the original SuperGLUE files and their copies on the hub, which are flatter. A layout adds the
columns named in its docstring.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from fewnlu.errors import DataError, choices

Item = Mapping[str, Any]
PAIR = ("-true", "-false")  # `copy` of the two rows that a WSC line with both targets stands for


class Rejected(Exception):
    """An item that cannot be used although its file is sound; it is left out and counted."""


def copa(item: Item, which: str, place: str) -> list[dict[str, Any]]:
    """Adds `joiner`, and to labelled and unlabelled rows a mirrored copy: choices swapped, label flipped (spec 4.2).

    A copy has `copy` = "-mirrored" (else ""), to be used in the id, and stays in its original's unit.
    """
    joiners = {"cause": "because", "effect": ", so"}
    question = item.get("question")
    if question not in joiners:
        raise DataError(f"{place}: question is {question!r}; {choices(question, joiners)}")
    row = {**item, "joiner": joiners[str(question)], "copy": ""}
    if which == "test":
        return [row]
    mirrored = {**row, "choice1": item.get("choice2"), "choice2": item.get("choice1"), "copy": "-mirrored"}
    flipped = {"0": 1, "1": 0, "choice1": "choice2", "choice2": "choice1"}  # files; the hub's names
    mirrored["label"] = flipped.get(str(item.get("label")), item.get("label"))
    return [row, mirrored]


def multirc(item: Item, which: str, place: str) -> list[dict[str, Any]]:
    """One row per (passage, question, answer option): `passage`, `question`, `answer`, `p`, `q`, `a`, `label`."""
    if "paragraph" in item:  # the hub's rows are flat already
        ids = _dict(item.get("idx"), "idx", place)
        return [{**item, "passage": item["paragraph"], **{k[0]: ids.get(k) for k in ("question", "answer")}}
                | {"p": ids.get("paragraph")}]  # fmt: skip
    passage = _dict(item.get("passage"), "passage", place)
    rows = []
    for question in _list(passage.get("questions"), "passage.questions", place):
        for answer in _list(_dict(question, "passage.questions", place).get("answers"), "answers", place):
            row = {"passage": passage.get("text"), "question": question.get("question"), "answer": answer.get("text")}
            row |= {"p": item.get("idx"), "q": question.get("idx"), "a": answer.get("idx")}
            rows.append({**row, "label": answer.get("label")})
    return rows


def record(item: Item, which: str, place: str) -> list[dict[str, Any]]:
    """One row per query: `passage` (highlights as "- " lines), `left` and `right` of the first @placeholder,
    `candidates` in the order of the text, each once, `answers`, `p`, `q`."""
    if "passage" in item and isinstance(item["passage"], str):
        ids = _dict(item.get("idx"), "idx", place)
        entities, text = list(item.get("entities") or []), item["passage"]
        found = [(item.get("query"), item.get("answers") or [], ids.get("query"))]
        p = ids.get("passage")
    else:
        passage = _dict(item.get("passage"), "passage", place)
        text, p = str(passage.get("text") or ""), item.get("idx")
        spans = sorted((e["start"], e["end"]) for e in _list(passage.get("entities"), "passage.entities", place))
        entities = [text[start : end + 1] for start, end in spans]
        found = [
            (q.get("query"), [a["text"] for a in q.get("answers") or []], q.get("idx"))
            for q in _list(item.get("qas"), "qas", place)
        ]
    shown = re.sub(r"\s*@highlight\n", "\n- ", text)
    rows = []
    for query, answers, q in found:
        left, mark, right = str(query or "").partition("@placeholder")
        if not mark:
            raise DataError(f"{place}: the query {query!r} has no @placeholder")
        row = {"passage": shown, "left": left, "right": right, "p": p, "q": q}
        rows.append({**row, "candidates": list(dict.fromkeys(entities)), "answers": list(dict.fromkeys(answers))})
    return rows


def wsc(item: Item, which: str, place: str) -> list[dict[str, Any]]:
    """`text`, `marked` (the text with *pronoun*), `pronoun`, `candidate`, `label`, `copy`.

    A file may give one `target` (or the hub's flat columns), or `true_target` and `false_target`, which become two
    rows with `copy` "-true" and "-false". An index one word off, or a word with punctuation, is repaired.

    Raises:
        Rejected: a span is not in the text near its index, so nothing could be marked at the right place.
    """
    if "true_target" in item or "false_target" in item:
        pair: list[tuple[str, Any, Any]] = [
            (PAIR[0], item.get("true_target"), True),
            (PAIR[1], item.get("false_target"), False),
        ]
        targets = [(copy, target, label) for copy, target, label in pair if target]
    else:
        targets = [("", item.get("target", item), item.get("label"))]
    words = _words(item, "text", place).split()
    rows = []
    for copy, target, label in targets:
        target = _dict(target, "target", place)
        candidate, pronoun = (_words(target, f"{span}_text", place).strip() for span in ("span1", "span2"))
        _place(words, candidate, _index(target, "span1_index", place), "span1_text")
        at = _place(words, pronoun, _index(target, "span2_index", place), "span2_text")
        marked = " ".join([*words[:at], _star(words[at], pronoun), *words[at + 1 :]])
        row = {"idx": item.get("idx"), "text": " ".join(words), "marked": marked, "pronoun": pronoun, "copy": copy}
        rows.append({**row, "candidate": candidate, "label": label})
    return rows


def _words(item: Item, name: str, place: str) -> str:
    """A text that is not blank."""
    value = item.get(name)
    if isinstance(value, str) and value.strip():
        return value
    if value is None and name not in item:
        raise DataError(f"{place}: '{name}' is missing; it has {', '.join(map(str, item))}")
    raise DataError(f"{place}: '{name}' is {'empty' if value in (None, '') else repr(value)}, expected a text")


def _index(item: Item, name: str, place: str) -> int:
    """The number of a word; a CSV has it as text, a Parquet file with gaps as a float."""
    value = item.get(name)
    if value is None and name not in item:
        raise DataError(f"{place}: '{name}' is missing; it has {', '.join(map(str, item))}")
    try:
        found = int(value)  # type: ignore[arg-type]
        if not isinstance(value, bool) and (isinstance(value, str) or found == value):
            return found
    except (TypeError, ValueError, OverflowError):
        pass
    raise DataError(
        f"{place}: '{name}' is {'empty' if value is None else repr(value)}, expected the number of the word that the "
        "span begins at; words are counted from 0, white space parts them"
    )


def _place(words: list[str], span: str, index: int, name: str) -> int:
    """Index of the word that `span` begins at: at `index` or one word beside it, whatever case and punctuation."""
    wanted = _letters(span)
    for at in (index, index - 1, index + 1):
        if wanted and 0 <= at < len(words):
            there = _letters(" ".join(words[at : at + len(span.split())]))
            # a word may go on behind the span: "Emma's" for "Emma"
            if there == wanted or (there[: len(wanted) - 1] == wanted[:-1] and there[-1:] and
                                   there[len(wanted) - 1 :][0:1] == wanted[-1:]):  # fmt: skip
                return at
    raise Rejected(f"{name} {span!r} is not in the text at word {index}")


def _letters(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.casefold())


def _star(word: str, pronoun: str) -> str:
    """The word with *pronoun* in it, its punctuation kept."""
    match = re.search(re.escape(pronoun), word, re.IGNORECASE)
    return f"*{word}*" if match is None else f"{word[: match.start()]}*{match[0]}*{word[match.end() :]}"


def _dict(value: Any, name: str, place: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise DataError(f"{place}: '{name}' is {type(value).__name__}, expected an object")
    return value


def _list(value: Any, name: str, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise DataError(f"{place}: '{name}' is {type(value).__name__}, expected a list")
    return value


LAYOUTS: Mapping[str, Callable[[Item, str, str], list[dict[str, Any]]]] = {
    "copa": copa,
    "multirc": multirc,
    "record": record,
    "wsc": wsc,
}
