"""One task per shape of answer, tiny, with patterns, slots and a plain input: words, the row's choices, a span."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from fewnlu.backbones.backbone import Backbone
from fewnlu.prompts.readers import Reading, reader_for
from fewnlu.splits.datamodule import Table
from fewnlu.tasks.task import Row, Task, task_from_config
from tests.tiny import CAUSAL, tiny_model, tiny_tokenizer

NOUNS = ["movie", "food", "city", "dog", "road", "book", "man", "water"]
COMMON: dict[str, Any] = {
    "label": "label",
    "id": "id",
    "metrics": ["accuracy"],
    "max_length": 64,
    "source": {"files": {"labeled": "labeled.jsonl", "test": "test.jsonl", "unlabeled": "unlabeled.jsonl"}},
    "grid": [0],
}


def _shape(template: str, **answer: Any) -> dict[str, Any]:
    slots = template.replace("[MASK", "[P2] [MASK").replace("{text~}", "{text~} [P1]")
    return {"patterns": {0: {"template": template, **answer}}, "ptuning": {3: {"template": slots, **answer}}}


WORDS = {"bad": ["bad", "terrible"], "good": ["good", "great"]}
SHAPES: dict[str, dict[str, Any]] = {
    "words": COMMON
    | {"name": "words", "labels": ["bad", "good"], "fields": {"text": "text"}, "cls": "{text~}"}
    | _shape("{text~} It was [MASK] .", verbalizer=WORDS),
    "choices": COMMON
    | {"name": "choices", "labels": ["a", "b"], "fields": {"text": "text", "a": "a", "b": "b"}, "cls": "{text~} ‖ {a}"}
    | _shape("{text~} so [MASK*] .", verbalizer={"a": ["{a}"], "b": ["{b}"]}),
    "span": COMMON
    | {"name": "span", "labels": ["no", "yes"], "positive": "yes", "fields": {"text": "text", "span": "span"}}
    | {"cls": "{text~} ‖ {span}"}
    | _shape("{text~} it is the [MASK*] .", span="{span}"),
}


def items(shape: str, n: int, seed: int, label: bool = True) -> list[dict[str, Any]]:
    """Rows of a shape as a file has them; what decides is in the text."""
    rng = random.Random(f"{shape}{seed}")
    out = []
    for i in range(n):
        noun, other = rng.sample(NOUNS, 2)
        right = i % 2
        if shape == "words":
            one: dict[str, Any] = {"text": f"the {noun} {'was okay' if right else 'is not okay'} {seed}{i}"}
        elif shape == "choices":
            good, bad = f"the {noun} was great", f"a {other} is here"
            one = {"text": f"we saw the {noun} {seed}{i}", "a": bad if right else good, "b": good if right else bad}
        else:
            one = {"text": f"we saw the big {noun} {seed}{i}", "span": f"big {noun}" if right else f"other {other}"}
        labels = SHAPES[shape]["labels"]
        out.append({"id": f"{seed}-{i}", **one, **({"label": labels[right]} if label else {})})
    return out


def write(home: Path) -> tuple[Path, Path]:
    """conf/ with a task per shape and data/SHAPE/ with its rows, below `home`."""
    (home / "conf" / "task").mkdir(parents=True, exist_ok=True)
    for name, task in SHAPES.items():
        (home / "conf" / "task" / f"{name}.yaml").write_text(json.dumps(task))  # JSON is YAML
        folder = home / "data" / name
        folder.mkdir(parents=True, exist_ok=True)
        for which, n, seed in (("labeled", 12, 1), ("test", 6, 2), ("unlabeled", 10, 3)):
            rows = items(name, n, seed, label=which != "unlabeled")
            (folder / f"{which}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return home / "conf", home / "data"


def backbone(family: str, double: bool = False) -> Backbone:
    """A tiny model; the same at each call."""
    tokenizer = tiny_tokenizer(family)
    model = tiny_model(family, tokenizer)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return Backbone(model.double() if double else model, tokenizer, "causal" if family in CAUSAL else "masked")


def table(bb: Backbone, shape: str, templates: str = "patterns", n: int = 8) -> tuple[Task, Any, Table]:
    """(task, reader, encoded rows) of a shape under its only pattern, `ptuning` slots or the plain input `cls`."""
    task = task_from_config(SHAPES[shape])
    pattern = task.cls if templates == "cls" else next(iter(getattr(task, templates).values()))
    assert pattern is not None
    fields = list(task.fields)
    rows = [
        Row(r["id"], {f: r[f] for f in fields}, r["label"], r["id"])
        for r in items(shape, n if shape != "span" else 2 * n, 1)
        if shape != "span" or r["label"] == "yes"  # a cloze trains on right spans alone
    ]
    reader = reader_for(bb.tokenizer, bb.kind, pattern, task, Reading(), rows)
    gold = [task.gold(row) for row in rows]
    return task, reader, Table(reader.encode(rows), gold, bb.tokenizer.pad_token_id, reader=reader)
