"""How long a report of many runs takes, and how much memory.

    python benchmarks/report_speed.py [--trials 10000] [--k 4] [--studies 20] [--keep DIR]

Makes a synthetic sweep (records of the size of real ones; equal predictions are hard links) and runs
`python -m fewnlu.report show DIR` and more on it in processes of their own. Goal: 40,000 runs in under 20 s and 1.5 GB;
on a machine that does other things look at the seconds of CPU.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from fewnlu.protocol.records import Predictions, digest, h_name, to_json, write_record

N_TEST, N_LABELED = 300, 64
TASK = {
    "name": "reviews",
    "labels": ["negative", "positive"],
    "fields": {"text": "text"},
    "label": "label",
    "id": "id",
    "unit": "{id}",
    "metrics": ["accuracy"],
    "select": ["accuracy"],
    "max_length": 128,
    "source": {"packaged": "reviews"},
    "grid": [0, 1],
    "patterns": {
        i: {"template": "{text~} It was [MASK].", "verbalizer": {"negative": ["bad"], "positive": ["good"]}}
        for i in range(2)
    },
}


def study_config(number: int) -> dict[str, Any]:
    strategies = ["multisplit", "cv", "mdl", "bagging", "rand"]
    return {
        "task": TASK,
        "data": {"n_labeled": None, "limit_test": None},
        "model": {"name": f"model{number // 5}", "source": "local", "kind": "causal", "dtype": "float32"},
        "method": {"name": "pet"},
        "split": {"name": strategies[number % 5]},
        "paradigm": {"name": "single"},
        "trainer": {"deterministic": True, "precision": "32-true"},
    }


def make_tree(root: Path, trials: int, k_total: int, studies: int) -> int:
    """Write a sweep; returns the number of runs."""
    rng = np.random.default_rng(0)
    per_study, done = trials // studies, 0
    ids = [f"reviews-t-{i:03d}" for i in range(N_TEST)]
    for number in range(studies):
        config = study_config(number)
        key = digest(config)
        name = f"reviews-pet-{config['model']['name']}-{config['split']['name']}-{key[:8]}"
        first: dict[int, Path] = {}
        for t in range(per_study):
            h = {"pattern": t % 2, "lr": 1e-5 * (1 + t // 2 % 50), "max_steps": 30 * (1 + t // 100), "batch_size": 8}
            quality = rng.normal(0.7, 0.05)
            for k in range(k_total):
                run = digest([key, h, k], 16)
                folder = root / name / h_name(h) / f"k{k}-r0-{run[:8]}"
                result = _result(config, key, name, h, k, run, float(quality), rng)
                meta: dict[str, Any] = {
                    "seconds": 98.0,
                    "versions": {"python": "3.11.7", "torch": "2.13.0"},
                    "config": config,
                }
                if k not in first:
                    write_record(folder, result, meta, _predictions(ids, quality, rng))
                    first[k] = folder
                else:
                    folder.mkdir(parents=True)
                    os.link(first[k] / "predictions.parquet", folder / "predictions.parquet")
                    text = to_json({"schema": 1, **result})
                    (folder / "result.json").write_bytes(text)
                    meta["sha256"] = {"result.json": hashlib.sha256(text).hexdigest()}
                    (folder / "meta.json").write_bytes(to_json(meta))
                done += 1
    return done


def _predictions(ids: list[str], quality: float, rng: np.random.Generator) -> Predictions:
    gold = ["negative", "positive"] * (len(ids) // 2)
    flip = {"negative": "positive", "positive": "negative"}
    right = rng.random(len(ids)) < quality
    said = [g if r else flip[g] for g, r in zip(gold, right, strict=True)]
    scores = {name: [-0.1 if s == name else -2.3 for s in said] for name in flip}
    return Predictions(["test"] * len(ids), ids, list(gold), said, scores)


def _result(
    config: dict[str, Any], key: str, name: str, h: dict[str, Any], k: int, run: str, quality: float, rng: Any
) -> dict[str, Any]:
    half = [f"reviews-l-{i:03d}" for i in rng.permutation(N_LABELED)]
    dev, test = (float(np.clip(round((quality + rng.normal(0, 0.04)) * n) / n, 0, 1)) for n in (32, N_TEST))
    rows = {
        s: {"ids": ids, "n_per_class": {"negative": 16, "positive": 16}, "hash": digest(ids)}
        for s, ids in (("train", half[:32]), ("dev", half[32:]))
    }
    return {
        "key": run,
        "study": key,
        "study_name": name,
        "numerics": 1,
        "config": config,
        "weights": "0" * 64,
        "h": h,
        "k": k,
        "rep": 0,
        "k_total": None if config["split"]["name"] not in {"cv", "mdl"} else 4,
        "seeds": {"data": 42, "split": 42, "train": 42, "run": 1000 + k},
        "rows": {
            **rows,
            "labeled": {"origin": "packaged reviews/labeled.jsonl", "sha256": "a" * 64, "n": N_LABELED},
            "test": {"origin": "packaged reviews/test.jsonl", "sha256": "b" * 64, "n": N_TEST, "n_per_class": {}},
        },
        "looks": [[6 * i, round(dev - 0.01 * i, 5)] for i in range(1, 6)],
        "chosen_step": 6,
        "steps_done": 30,
        "dev": {"metrics": {"accuracy": dev}, "select": dev},
        "test": {
            "metrics": {"accuracy": test},
            "select": test,
            "controls": {"majority": {"accuracy": 0.5}, "chance": {"accuracy": 0.5}},
        },
        "warnings": [],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed and memory of a report over many runs.")
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--studies", type=int, default=20)
    parser.add_argument("--keep", metavar="DIR", help="make the tree there, or take the one that is there")
    args = parser.parse_args()
    root = Path(args.keep) if args.keep else Path(tempfile.mkdtemp(prefix="fewnlu-speed-"))
    try:
        if not any(root.glob("reviews-*")):
            start = time.perf_counter()
            made = make_tree(root, args.trials, args.k, args.studies)
            print(f"made {made} runs in {time.perf_counter() - start:.0f} s")
        report = str(root / ".report")
        commands = (["show"], ["show", "--out", report, "--no-figures"], ["show", "--out", report], ["leaderboard"])
        for what in commands:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            start = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-m", "fewnlu.report", what[0], str(root), *what[1:]], capture_output=True, text=True
            )
            seconds = time.perf_counter() - start
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            shown = f"{seconds:6.1f} s ({cpu:.1f} s of CPU), peak so far {after.ru_maxrss / 2**20:.2f} GiB"
            print(f"{' '.join(w for w in what if w != report):26s} {shown}, status {done.returncode}", flush=True)
            if done.returncode:
                print(done.stderr[-2000:])
        page = root / ".report" / "index.html"
        if page.is_file():
            print(f"page {page.stat().st_size / 2**20:.1f} MiB")
    finally:
        if not args.keep:
            shutil.rmtree(root)


if __name__ == "__main__":
    main()
