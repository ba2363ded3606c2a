"""A trial: the K runs of one job, each recorded as soon as it ends; what is recorded already is not run again."""

from __future__ import annotations

import math
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fewnlu.errors import FewnluError
from fewnlu.methods import memory
from fewnlu.progress import training_done
from fewnlu.protocol import machine, stop
from fewnlu.protocol.atomic import DiskFull, is_disk_full
from fewnlu.protocol.model import weights_sha
from fewnlu.protocol.records import (
    NUMERICS,
    Predictions,
    damage,
    is_done,
    read_result,
    write_failure,
    write_record,
    write_started,
)
from fewnlu.protocol.selection import mean
from fewnlu.protocol.setup import Setup, read_setup


def run_trial(cfg: dict[str, Any], sweep: Path, threads: int | None = None) -> float:
    """Run what is missing of a trial and return what a sweeper maximises.

    Args:
        cfg: composed config (plain values, without hydra).
        sweep: folder of the sweep.
        threads: torch threads; None leaves torch's own choice.

    Returns:
        dev mean over the K runs of the first h; NaN where a run failed or there is no dev set. A run that fails is
        recorded and costs the others nothing.
    """
    setup = read_setup(cfg)
    study = setup.study(weights_sha(cfg))

    def folder_of(h: dict[str, Any], k: int, rep: int) -> Path:
        return setup.folder(sweep, study, h, k, rep)

    lab = None
    failed = False
    for k in setup.ks:
        for rep in range(setup.paradigm.reps):
            if stop.requested() or (failed and cfg["runtime"]["fail_fast"]):
                return math.nan
            missing = [h for h in setup.hs if not is_done(folder_of(h, k, rep), setup.key(study[0], h, k, rep))]
            if missing:
                try:
                    _begin(setup, study, folder_of, k, rep, missing)
                    if lab is None:
                        lab = _open_lab(setup, study, folder_of, threads)
                    failed |= not _run(setup, study, lab, folder_of, k, rep, missing)
                except (KeyboardInterrupt, SystemExit):
                    raise
                except BaseException as err:
                    if stop.ends_the_job(err):
                        raise
                    if is_disk_full(err):
                        stop.request("no space left on the disk")
                        raise (
                            err if isinstance(err, DiskFull) else DiskFull(f"no space left on the disk: {err}")
                        ) from err
                    failed = True
                    _record_failure(setup, study, folder_of, k, rep, missing, err)
                    if cfg["runtime"]["fail_fast"]:
                        stop.request("a run failed (runtime.fail_fast=true)")
            training_done()
    if lab is not None and not failed:
        lab.tidy()
    scores = []
    for k in setup.ks:
        for rep in range(setup.paradigm.reps):
            h = setup.hs[0]
            result = read_result(folder_of(h, k, rep), setup.key(study[0], h, k, rep)) or {}
            dev = (result.get("dev") or {}).get("select")
            scores.append(math.nan if dev is None else float(dev))
    return math.nan if failed else mean(scores)


def _begin(
    setup: Setup, study: tuple[str, str], folder_of: Any, k: int, rep: int, hs: Sequence[dict[str, Any]]
) -> None:
    for h in hs:
        folder, key = folder_of(h, k, rep), setup.key(study[0], h, k, rep)
        if wrong := damage(folder, key):
            print(f"computing anew {folder}: {wrong}", file=sys.stderr)
        write_started(folder, key)


def _open_lab(setup: Setup, study: tuple[str, str], folder_of: Any, threads: int | None) -> Any:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import torch

    if threads:
        torch.set_num_threads(threads)
    if setup.cfg["method"]["input"] == "question":
        from fewnlu.protocol.answerlab import AnswerLab

        return AnswerLab(setup, study, folder_of({}, 0, 0).parents[1])
    from fewnlu.protocol.lab import Lab

    return Lab(setup, study, folder_of)


def _run(
    setup: Setup, study: tuple[str, str], lab: Any, folder_of: Any, k: int, rep: int, hs: Sequence[dict[str, Any]]
) -> bool:
    """Whether all of the `hs` came to a result."""
    whole = True
    memory.reset_peaks()
    start = time.perf_counter()
    fitted = setup.paradigm.run(lab, k, rep, hs)
    seconds = time.perf_counter() - start
    for h, one in zip(hs, fitted, strict=True):
        if isinstance(one, FloatingPointError):  # the training went on for another h, and failed for this one
            _record_failure(setup, study, folder_of, k, rep, [h], one)
            whole = False
            continue
        result, predictions = _result(setup, study, lab, h, k, rep, one)
        meta = {
            "seconds": round(seconds, 3),
            "shared_by": len(hs),
            "micro_batch": getattr(lab, "micro", None),
            "devices": getattr(lab, "devices", 1),
            **machine.facts(),
            "config": setup.cfg,
            "data_dir": os.path.abspath(setup.cfg["data"]["dir"]) if setup.cfg["data"]["dir"] else None,
        }
        write_record(folder_of(h, k, rep), result, meta, predictions)
    return whole


def _result(
    setup: Setup, study: tuple[str, str], lab: Any, h: dict[str, Any], k: int, rep: int, one: Any
) -> tuple[dict[str, Any], Predictions]:
    if setup.cfg["method"]["input"] == "question":
        return lab.result(one, h, k)
    split, task, data = setup.splits[k], setup.task, setup.data
    warnings = setup.warnings(k)
    warnings += lab.reader(h).notes([task.gold(setup.rows[i]) for i in split.train])
    shortened = {}
    for name, table in (("labeled", lab.table("labeled", h)), ("test", lab.table("test", h))):
        if table is not None:
            shortened[name] = sum(1 for e in table.encoded if e.shortened)
    if any(shortened.values()):
        warnings.append("rows shortened to task.max_length: " + ", ".join(f"{n} {v}" for n, v in shortened.items()))
    if one.steps_done == 0:
        warnings.append("untrained: no update was made")
    warnings += one.warnings
    predictions = Predictions([], [], [], [], {label: [] for label in task.labels})
    if not task.labels:
        predictions.candidates, predictions.scores_of = [], []
    scored: dict[str, Any] = {}
    sets = [("dev", [setup.rows[i] for i in split.dev], one.dev_scores)]
    sets.append(("test", list(data.test.rows) if data.test else [], one.test_scores))
    for name, rows, scores in sets:
        if scores is None:
            scored[name] = None
            continue
        metrics = lab.metrics(scores, rows)
        from fewnlu.tasks.metrics import argmax, controls, select_score

        chosen = argmax(scores)
        scored[name] = {"metrics": metrics, "select": select_score(task, metrics)}
        if name == "test":
            scored[name]["controls"] = controls(task, [task.gold(r) for r in rows], meta=[r.meta for r in rows])
        predictions.set += [name] * len(rows)
        predictions.id += [r.id for r in rows]
        predictions.gold += [r.label for r in rows]
        predictions.prediction += [task.column_names(r)[c] for r, c in zip(rows, chosen, strict=True)]
        if predictions.candidates is not None and predictions.scores_of is not None:
            predictions.candidates += [list(task.column_names(r)) for r in rows]
            predictions.scores_of += [
                s[: len(task.column_names(r))].tolist() for r, s in zip(rows, scores, strict=True)
            ]
        for j, label in enumerate(task.labels):
            predictions.scores[label] += scores[:, j].tolist()
    rows_used: dict[str, Any] = {
        "train": {"ids": [setup.rows[i].id for i in split.train], "n_per_class": setup.counts(split.train)},
        "dev": {"ids": [setup.rows[i].id for i in split.dev], "n_per_class": setup.counts(split.dev)},
        "labeled": {"origin": data.labeled.origin, "sha256": data.labeled.sha256, "n": len(data.labeled.rows)},
        "test": None
        if data.test is None
        else {
            "origin": data.test.origin,
            "sha256": data.test.sha256,
            "n": len(data.test.rows),
            "n_per_class": {label: sum(r.label == label for r in data.test.rows) for label in task.labels},
        },
    }
    for name, value in setup.row_hashes(k).items():
        if name != "test":
            rows_used[name]["hash"] = value
    result = {
        "key": setup.key(study[0], h, k, rep),
        "study": study[0],
        "study_name": study[1],
        "numerics": NUMERICS,
        "config": setup.study_config(),
        "weights": lab.backbone.weights_sha,
        "h": h,
        "k": k,
        "rep": rep,
        "k_total": None if setup.strategy.nested else setup.strategy.k,
        "seeds": {**setup.seeds, "run": setup.run_seed(k, rep)},
        "rows": rows_used,
        "looks": [[step, score] for step, score in one.looks],
        "chosen_step": one.chosen_step,
        "steps_done": one.steps_done,
        "dev": scored["dev"],
        "test": scored["test"],
        "warnings": warnings,
        **one.record,
    }
    return result, predictions


def _record_failure(
    setup: Setup,
    study: tuple[str, str],
    folder_of: Any,
    k: int,
    rep: int,
    hs: Sequence[dict[str, Any]],
    err: BaseException,
) -> None:
    text = f"{type(err).__name__}: {err}" if not isinstance(err, FewnluError) else str(err)
    print(f"FAILED {study[1]} k={k} rep={rep}: {text}", file=sys.stderr)
    if not isinstance(err, FewnluError):
        traceback.print_exception(err, file=sys.stderr)
    for h in hs:
        write_failure(
            folder_of(h, k, rep),
            {
                "key": setup.key(study[0], h, k, rep),
                "study": study[0],
                "study_name": study[1],
                "h": h,
                "k": k,
                "rep": rep,
                "k_total": None if setup.strategy.nested else setup.strategy.k,
                "seeds": setup.seeds,
                "config": setup.study_config(),
                "error": text,
                "type": type(err).__name__,
                "traceback": "".join(traceback.format_exception(err)),
                **machine.facts(),
            },
        )
