"""Folders of records as sweeps leave them, made without a model: what a report reads."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fewnlu.protocol.records import Predictions, digest, h_name, write_failure, write_record
from fewnlu.report import main
from fewnlu.reporting.studies import read_studies, summarise
from fewnlu.tasks import sources
from fewnlu.tasks.metrics import compute
from fewnlu.tasks.task import task_from_config

LABELS = ["negative", "positive"]


def task_config(name: str = "toy", metrics: tuple[str, ...] = ("accuracy",)) -> dict[str, Any]:
    return {
        "name": name,
        "labels": LABELS,
        "fields": {"text": "text"},
        "label": "label",
        "id": "id",
        "unit": "{id}",
        "metrics": list(metrics),
        "select": list(metrics),
        "max_length": 64,
        "source": {"files": {"labeled": "labeled.jsonl", "test": "test.jsonl"}},
        "patterns": {
            i: {"template": "{text~} It was [MASK].", "verbalizer": {"negative": ["bad"], "positive": ["good"]}}
            for i in range(2)
        },
    }


class Tree:
    """A sweep's folder; `study` adds a study of random but seeded outcomes.

    Args:
        root: the sweep's folder; the task's rows are written to `<root>-data`.
        texts: of the test rows; half are negative.
        grouped: rows are answers to questions of three, as in MultiRC; their ids are QUESTION-ANSWER.
    """

    def __init__(
        self, root: Path, n_test: int = 60, texts: dict[int, str] | None = None, grouped: bool = False
    ) -> None:
        self.root, self.n_test, self.grouped = root, n_test, grouped
        self.data = root.parent / f"{root.name}-data"
        self.data.mkdir(parents=True, exist_ok=True)
        self.ids = [f"{i // 3}-{i % 3}" if grouped else f"t{i:03d}" for i in range(n_test)]
        self.gold = [LABELS[i % 2] for i in range(n_test)]
        rows = [
            {"id": i, "text": (texts or {}).get(n, f"text number {n}"), "label": g}
            for n, (i, g) in enumerate(zip(self.ids, self.gold, strict=True))
        ]
        (self.data / "test.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        loaded = sources.load_rows(task_from_config(task_config()), {"dir": str(self.data)}, "test")
        assert loaded is not None
        self.sha = loaded.sha256
        self.rng = np.random.default_rng(7)
        self.hard = self.rng.normal(size=n_test)

    def study(
        self,
        *,
        task: str = "toy",
        method: str = "pet",
        split: str = "multisplit",
        model: str = "tiny",
        hs: int = 6,
        k: int = 4,
        k_total: int | None = None,
        quality: float = 0.8,
        seeds: dict[str, int] | None = None,
        metrics: tuple[str, ...] = ("accuracy",),
        versions: dict[str, str] | None = None,
        test_sha: str | None = None,
        labeled_sha: str = "l" * 64,
        fail: tuple[int, int] | None = None,
        zero_shot: bool = False,
        has_test: bool = True,
        options: dict[str, Any] | None = None,
    ) -> str:
        """Write a study and return its folder's name. `fail`: (h, k) of a run that failed."""
        config = {
            "task": task_config(task, metrics),
            "data": {"n_labeled": None, "limit_test": None},
            "model": {"name": model, "source": "local"},
            "method": {"name": method, **(options or {})},
            "split": {"name": split, **({"ratio": 0.5} if split not in {"cv", "mdl"} else {})},
            "paradigm": {"name": "single"},
            "trainer": {},
        }
        if self.grouped:
            config["task"] |= {"id": "{question}-{answer}", "group": "{question}", "positive": "positive"}
        key = digest([config, test_sha or self.sha, labeled_sha])
        name = f"{task}-{method}-{model}-{split}-{key[:8]}"
        seeds = seeds or {"data": 42, "split": 42, "train": 42}
        for number in range(hs):
            h = {"lr": 1e-5 * (1 + number // 2), "max_steps": 30, "pattern": number % 2}
            good = quality + 0.3 * self.rng.normal()
            for one in range(k):
                run = digest([key, h, one, seeds, k_total], 16)
                folder = self.root / name / h_name(h) / f"k{one}-r0-{run[:8]}"
                ident = {"key": run, "study": key, "study_name": name, "h": h, "k": one, "rep": 0, "k_total": k_total}
                ident |= {"seeds": {**seeds, "run": one}, "config": config}
                if fail == (number, one):
                    error = {"error": "CUDA out of memory", "type": "RuntimeError"}
                    write_failure(folder, {**ident, **error, "traceback": f"File {self.data.absolute()}/{name}/x.py"})
                    continue
                result, predictions = self._result(good, one, metrics, zero_shot, has_test)
                for which in ("labeled", "test"):
                    if result["rows"][which]:
                        result["rows"][which]["sha256"] = labeled_sha if which == "labeled" else test_sha or self.sha
                meta = {
                    "seconds": 1.5,
                    "commit": "c" * 40,
                    "config": {"data": {"dir": str(self.data), "n_labeled": None, "limit_test": None}},
                    "data_dir": str(self.data.absolute()),
                    "versions": versions or {"python": "3.11.7", "torch": "2.13.0+cpu"},
                }
                write_record(folder, {**ident, "numerics": 1, "weights": "w" * 64, **result}, meta, predictions)
        return name

    def _result(
        self, good: float, k: int, metrics: tuple[str, ...], zero_shot: bool, has_test: bool
    ) -> tuple[dict[str, Any], Predictions]:
        rng = np.random.default_rng(11) if zero_shot else self.rng
        p = 1 / (1 + np.exp(-(good + 0.3 * rng.normal() + self.hard)))
        right = rng.random(self.n_test) < p
        flip = dict(zip(LABELS, reversed(LABELS), strict=True))
        said = [g if r else flip[g] for g, r in zip(self.gold, right, strict=True)]
        dev = round(float(np.clip(p.mean() + 0.06 * rng.normal(), 0, 1)) * 32) / 32

        def scored(found: dict[str, float]) -> dict[str, Any]:
            return {"metrics": found, "select": sum(found.values()) / len(found)}

        numbers = [[LABELS.index(one) for one in column] for column in (said, self.gold)]
        meta = [{"group": i.split("-")[0]} for i in self.ids]
        tested = compute(metrics, numbers[0], numbers[1], LABELS, meta, positive="positive")

        control = {kind: dict.fromkeys(metrics, 0.5) for kind in ("majority", "chance")}
        split = digest([k, "split"])
        rows = {
            "train": {"ids": ["a"], "n_per_class": {}, "hash": split},
            "dev": {"ids": ["b"], "n_per_class": {}, "hash": split[::-1]},
            "labeled": {"origin": "file labeled.jsonl", "n": 64},
            "test": {"origin": "file test.jsonl", "n": self.n_test} if has_test else None,
        }
        scores = {m: [-0.1 if s == m else -2.3 for s in said] for m in LABELS}
        n = self.n_test if has_test else 0
        predictions = Predictions(
            ["test"] * n, self.ids[:n], list(self.gold[:n]), said[:n], {m: s[:n] for m, s in scores.items()}
        )
        result = {
            "rows": rows,
            "looks": [[6, dev - 0.1], [12, dev], [18, dev - 0.05]],
            "chosen_step": 12,
            "steps_done": 18,
            "dev": scored({m: dev - 0.05 * i for i, m in enumerate(metrics)}),
            "test": {**scored(tested), "controls": control} if has_test else None,
            "warnings": ["no row of class positive in dev"] if k == 0 else [],
        }
        return result, predictions


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def run(*args: object) -> int:
    """`python -m fewnlu.report ARGS` in this process; its exit status."""
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in args])
    return int(stop.value.code or 0)


def find(root: Path, **wanted: str) -> Any:
    """The summary of the one study with these names of task, method, …; a list where several have them."""
    found = [
        s
        for s in map(summarise, read_studies([root]))
        if all(s.study.config[group]["name"] == name for group, name in wanted.items())
    ]
    return found if len(found) > 1 else found[0]
