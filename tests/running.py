"""Runs on tiny models, in this process: configs composed as on the command line, and the records they leave."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from fewnlu.protocol.check import config_loader
from fewnlu.protocol.compose import compose
from fewnlu.protocol.records import to_json
from fewnlu.protocol.trial import run_trial

ROOT = Path(__file__).parents[1]
# One run of this takes about half a second.
SMALL = ("data.n_labeled=16", "data.limit_test=12", "hp.max_steps=4", "hp.eval_ratio=0.5", "logger=none")
_LOADERS: dict[str | None, Any] = {}


def loader(config_dir: Path | None = None) -> Any:
    """Hydra's config loader, made once per folder."""
    key = str(config_dir) if config_dir else None
    if key not in _LOADERS:
        _LOADERS[key] = config_loader(key)
    return _LOADERS[key]


def config(*overrides: str, config_dir: Path | None = None) -> dict[str, Any]:
    """A composed and checked config as plain values."""
    return compose(loader(config_dir), list(overrides)).cfg


def results(folder: Path) -> list[dict[str, Any]]:
    """All results below a folder, ordered by (study, h, k, rep)."""
    found = [json.loads(path.read_bytes()) for path in folder.rglob("result.json")]
    return sorted(found, key=lambda r: (r["study_name"], json.dumps(r["h"], sort_keys=True), r["k"], r["rep"]))


def failures(folder: Path) -> list[dict[str, Any]]:
    """All failures below a folder."""
    return [json.loads(path.read_bytes()) for path in sorted(folder.rglob("failure.json"))]


def result_bytes(folder: Path) -> dict[str, bytes]:
    """Path below the folder -> bytes of result.json."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("result.json"))}


def rewrite(path: Path, record: dict[str, Any]) -> None:
    """Put another result in a record's place, hash included, as if it had been computed."""
    path.write_text(json.dumps(record))
    meta = path.with_name("meta.json")
    facts = json.loads(meta.read_bytes())
    facts.setdefault("sha256", {})[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    meta.write_bytes(to_json(facts))


class Workplace:
    """A folder of its own and a tiny model: `run` for trials, `main` for commands in this process, `python` for others.

    Attributes:
        folder: working directory.
        model: overrides that choose the tiny model.
    """

    def __init__(self, folder: Path, models: Any) -> None:
        self.folder, self.models = folder, models

    def base(self, family: str = "bert") -> list[str]:
        """Overrides of a small PET run on a tiny model."""
        return ["+method=pet", "model=local", f"model_args.path={self.models(family)}", *SMALL]

    def config(self, *overrides: str, family: str = "bert") -> dict[str, Any]:
        """A composed config; K = 2 unless a split is chosen."""
        own = [] if any(o.startswith(("split=", "split.k=")) for o in overrides) else ["split.k=2"]
        return config(*self.base(family), *own, *overrides)

    def run(self, *overrides: str, family: str = "bert", sweep: str = "s") -> list[dict[str, Any]]:
        """Run one trial and return the results in the sweep's folder."""
        run_trial(self.config(*overrides, family=family), self.folder / sweep, threads=1)
        return results(self.folder / sweep)

    def python(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        """`python ARGS` in a process of its own."""
        return subprocess.run(
            [sys.executable, *args],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
        )


def write_task(
    home: Path, name: str, *, patterns: int = 1, labeled: int = 16, test: bool = True, flip_test: bool = False
) -> Path:
    """A task of its own below `home`: `conf/task/NAME.yaml` for --config-dir, rows in `data/` for data.dir.

    Rows are packaged reviews; `flip_test` turns every test label.
    """
    source = ROOT / "fewnlu/tasks/data/reviews"
    names = ["negative", "positive"]
    files = {"labeled": f"{name}-labeled.jsonl"} | ({"test": f"{name}-test.jsonl"} if test else {})
    (home / "data").mkdir(parents=True, exist_ok=True)
    for which, file in files.items():
        rows = [json.loads(line) for line in (source / f"{which}.jsonl").read_text().splitlines()]
        rows = rows[: labeled if which == "labeled" else 12]
        if which == "test" and flip_test:
            rows = [{**row, "label": names[1 - names.index(row["label"])]} for row in rows]
        (home / "data" / file).write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "name": name,
        "labels": names,
        "fields": {"text": "text"},
        "label": "label",
        "id": "id",
        "unit": "{id}",
        "metrics": ["accuracy"],
        "select": ["accuracy"],
        "max_length": 64,
        "source": {"files": files},
        "grid": list(range(patterns)),
        "patterns": {
            i: {
                "template": "{text~} " + "so " * i + "it was [MASK].",
                "verbalizer": {"negative": ["bad"], "positive": ["good"]},
            }
            for i in range(patterns)
        },
    }
    (home / "conf" / "task").mkdir(parents=True, exist_ok=True)
    (home / "conf" / "task" / f"{name}.yaml").write_text(json.dumps(task))  # JSON is YAML
    return home
