"""Self-written rows of every task of the paper, in the layout of its original file."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from fewnlu.tasks.sources import RowSet, load_rows
from fewnlu.tasks.task import Row, Task
from tests.tasks.test_task import shipped

_PLANT = "Mira planted a fig tree behind the school. It gave its first fruit after six years."
_NEWS = (
    "Harbour town (Gull Post) The ferry Marigold ran aground near Port Ellis on Sunday. Captain Ines Rowe said that "
    "nobody was hurt.\n@highlight\nThe Marigold was on its way to Lund\n@highlight\nRowe has sailed it for ten years"
)


def _entities(text: str, *names: str) -> list[dict[str, int]]:
    return [{"start": text.index(n), "end": text.index(n) + len(n) - 1} for n in names]


_YEARS = {"text": "After six years", "idx": 3, "label": 1}

ITEMS: dict[str, list[dict[str, Any]]] = {
    "boolq": [
        {"passage": _PLANT, "question": "did the fig tree bear fruit", "label": True, "idx": 0},
        {"passage": _PLANT, "question": "is the fig tree inside the school?", "label": False, "idx": 1},
    ],
    "rte": [
        {"premise": _PLANT, "hypothesis": "A fig tree stands behind the school.", "label": "entailment", "idx": 0},
        {"premise": _PLANT, "hypothesis": "Mira sells figs.", "label": "not_entailment", "idx": 1},
    ],
    "cb": [
        {"premise": "A: I think she left.", "hypothesis": "she left", "label": "entailment", "idx": 0},
        {"premise": "A: I doubt that she left.", "hypothesis": "she left", "label": "contradiction", "idx": 1},
        {"premise": "A: Did she say that she left?", "hypothesis": "she left", "label": "neutral", "idx": 2},
    ],
    "wic": [
        {"word": "bank", "sentence1": "We sat on the bank.", "sentence2": "The bank lent us money.", "label": False}
        | {"idx": 0},
        {"word": "leaf", "sentence1": "A leaf fell.", "sentence2": "Every leaf was red.", "label": True, "idx": 1},
    ],
    "copa": [
        {"premise": "The soup was cold.", "choice1": "It had stood for hours.", "choice2": "The spoon bent."}
        | {"question": "cause", "label": 0, "idx": 0},
        {"premise": "Nobody had locked the gate.", "choice1": "The lamp was lit.", "choice2": "The goats ran away!"}
        | {"question": "effect", "label": 1, "idx": 1},
    ],
    "wsc": [
        {"text": "Tom gave Ana the map because she was lost.", "label": True, "idx": 0}
        | {"target": {"span1_text": "Ana", "span1_index": 2, "span2_text": "she", "span2_index": 6}},
        {"text": "Tom gave Ana the map because she was lost.", "label": False, "idx": 1}
        | {"target": {"span1_text": "the map", "span1_index": 3, "span2_text": "she", "span2_index": 6}},
    ],
    "multirc": [
        {
            "idx": 0,
            "passage": {
                "text": _PLANT,
                "questions": [
                    {"question": "What did Mira plant?", "idx": 0, "answers": [
                        {"text": "A fig tree", "idx": 0, "label": 1}, {"text": "Oats", "idx": 1, "label": 0}]},
                    {"question": "When did it bear fruit?", "idx": 1, "answers": [
                        {"text": "In winter", "idx": 2, "label": 0}, _YEARS]},
                ],
            },
        }
    ],
    "record": [
        {
            "idx": 0,
            "passage": {"text": _NEWS, "entities": _entities(_NEWS, "Marigold", "Port Ellis", "Ines Rowe", "Lund")},
            "qas": [
                {"query": "Nobody aboard the @placeholder was hurt, its captain said.", "idx": 0,
                 "answers": [{"text": "Marigold"}]},
                {"query": "Captain @placeholder's crew is safe.", "idx": 1, "answers": [{"text": "Ines Rowe"}]},
            ],
        }
    ],
}  # fmt: skip


def sample_task(name: str, **changes: Any) -> Task:
    """A shipped task without the expected counts of its files."""
    task = shipped(name)
    return dataclasses.replace(task, source=dataclasses.replace(task.source, counts={}), **changes)


def write_rows(folder: Path, task: Task, which: str, items: list[dict[str, Any]]) -> dict[str, str]:
    """Write a set's file where the task expects it and return the `data` part that reads it."""
    path = folder / str(task.source.files[which])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(item) + "\n" for item in items), "utf-8")
    return {"dir": str(folder)}


def sample(folder: Path, name: str, which: str = "test", **changes: Any) -> tuple[Task, list[Row]]:
    """A task and its self-written rows (as test rows: without COPA's copies)."""
    task = sample_task(name, **changes)
    rows = load_rows(task, write_rows(folder, task, which, ITEMS[name]), which)
    assert isinstance(rows, RowSet)
    return task, list(rows.rows)
