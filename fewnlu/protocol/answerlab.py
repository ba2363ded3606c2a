"""Where the answers of a trial without training are computed, kept, and put into records.

The answers of some rows are kept as they are computed, under a key that holds everything they depend on (fault I126):
a job that is killed goes on in the middle of its task. All runs that one reading serves are computed together.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, cast

from fewnlu.decoding.decoder import Reading
from fewnlu.progress import RunBar
from fewnlu.prompts.question import Question
from fewnlu.protocol.answering import make_asker
from fewnlu.protocol.answerstats import controls, expected_accuracy
from fewnlu.protocol.atomic import read_json, write_atomic
from fewnlu.protocol.model import where
from fewnlu.protocol.records import NUMERICS, Predictions, digest, to_json
from fewnlu.protocol.setup import Setup
from fewnlu.tasks.metrics import compute, select_score

INVALID = "(invalid)"  # an output that is none of the answers counts as wrong, never as missing


@dataclass
class Answered:
    """One run: the draw and what is known of the answers, row by row."""

    rep: int
    draws: list[int]
    readings: list[Reading]
    steps_done: int = 0


@dataclass
class AnswerLab:
    """Where a trial's answers are computed; stands where `Lab` does for methods that train."""

    setup: Setup
    study: tuple[str, str]
    folder: Path  # of the study
    _readings: dict[tuple[int, ...], list[Reading]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from fewnlu.backbones.loading import load_backbone
        from fewnlu.decoding.build import build_decoder
        from fewnlu.decoding.transformers import encode
        from fewnlu.methods.zeroshot import Method, row_seed

        cfg, args = self.setup.cfg, self.setup.cfg["model_args"]
        self.backbone = load_backbone(
            *where(cfg), freeze_layers=0, dtype=args["dtype"], kind=args["kind"] or cfg["model"].get("kind")
        )
        self.backbone.to(_device(cfg["trainer"]))
        decoder = build_decoder(cfg["decode"], self.backbone)
        asker = make_asker(self.setup, self.backbone)
        asker.length = lambda text: len(encode(self.backbone.tokenizer, text))
        asker.limit = self._limit(decoder)
        self.form = "base" if asker.template is None else "chat"
        assert self.setup.data.test is not None
        self.questions = [asker.ask(row) for row in self.setup.data.test.rows]
        model, task, seed = self.backbone.weights_sha, self.setup.task.name, int(cfg["seed"]["train"])
        self.method = Method(
            decoder,
            self.questions,
            lambda row_id, run: row_seed(model, task, seed, row_id, run),
            int(cfg["runtime"]["eval_batch"]),
        )
        self.method.prepare()

    def _limit(self, decoder: Any) -> int:
        bound = getattr(getattr(decoder, "backend", None), "max_length", None)
        room = 64  # for the longest answer; what needs more is refused by the decoder
        shown = self.setup.cfg["method"]["shots"] + 1  # max_length is that of one row
        return int(min(self.setup.task.max_length * shown, (bound or 1 << 30) - room))

    def train(self, k: int, rep: int, hs: Sequence[dict[str, Any]]) -> list[Answered]:
        """Answer all rows in run `rep` (what paradigms ask a lab for; nothing is trained)."""
        reps = tuple(range(self.setup.paradigm.reps)) if self.method.decoder.shares_reading else (rep,)
        if reps not in self._readings:
            self._readings[reps] = self._answer(reps)
        found = self._readings[reps]
        at = reps.index(rep)
        return [Answered(rep, [r.draws[at] for r in found], found) for _ in hs]

    def tidy(self) -> None:
        """Remove the kept answers of this trial, whose records are written; those of other seeds lie beside them."""
        n = self.setup.paradigm.reps
        together = [tuple(range(n))] if self.method.decoder.shares_reading else [(rep,) for rep in range(n)]
        if self._kept.is_dir():
            for rows, reps in product(self.method.shards(), together):
                (self._kept / f"{self._shard_key(rows, reps)}.json").unlink(missing_ok=True)
            with suppress(OSError):  # not empty
                self._kept.rmdir()

    @property
    def _kept(self) -> Path:
        return self.folder / ".shards"

    def _answer(self, reps: tuple[int, ...]) -> list[Reading]:
        out: list[Reading | None] = [None] * len(self.questions)
        done = 0
        title = f"{self.setup.task.name} {self.setup.cfg['decode']['name']}"
        with RunBar(title, len(out)) as bar:
            for rows in self.method.shards():
                file = self._kept / f"{self._shard_key(rows, reps)}.json"
                kept = read_shard(file, [self.questions[i] for i in rows], len(reps))
                if kept is None:
                    before = done

                    def tell(n: int, before: int = before) -> None:
                        nonlocal done
                        done += n
                        bar.step(done)

                    kept = self.method.answer(rows, reps, tell)
                    write_atomic(file, to_json({"readings": [asdict(r) for r in kept]}))
                else:
                    done += len(rows)
                    bar.step(done)
                for i, reading in zip(rows, kept, strict=True):
                    out[i] = reading
        return cast(list[Reading], out)

    def _shard_key(self, rows: list[int], reps: Sequence[int]) -> str:
        """Everything that the answers depend on: not one may change and the old answers be used (fault I126)."""
        own = [self.questions[i] for i in rows]
        return digest(
            {
                "study": self.study[0],
                "weights": self.backbone.weights_sha,
                "decode": self.setup.cfg["decode"],
                "dtype": self.setup.cfg["model_args"]["dtype"],
                "seeds": [[self.method.seed(q.id, rep) for rep in reps] for q in own],
                "asked": [[q.id, q.prompt, list(q.choices)] for q in own],
                "numerics": NUMERICS,
            },
            32,
        )

    def result(self, one: Answered, h: dict[str, Any], k: int) -> tuple[dict[str, Any], Predictions]:
        """A run's record, see `fewnlu.protocol.records`; `answers` is what only this kind of run has."""
        setup, task, test = self.setup, self.setup.task, self.setup.data.test
        assert test is not None
        predicted = [q.labels[d] if d >= 0 else INVALID for q, d in zip(self.questions, one.draws, strict=True)]
        gold = [q.gold for q in self.questions]
        labels = [*task.labels, *([INVALID] if INVALID in predicted else [])]
        ids = [labels.index(g) for g in gold]
        metrics = compute(_metrics(task), _column(labels, predicted), ids, labels, positive=task.positive)
        split, data = setup.splits[k], setup.data
        result = {
            "key": setup.key(self.study[0], h, k, one.rep),
            "study": self.study[0],
            "study_name": self.study[1],
            "numerics": NUMERICS,
            "config": setup.study_config(),
            "weights": self.backbone.weights_sha,
            "h": h,
            "k": k,
            "rep": one.rep,
            "k_total": None if setup.strategy.nested else setup.strategy.k,
            "seeds": {**setup.seeds, "run": setup.run_seed(k, one.rep)},
            "rows": {
                "train": {"ids": [], "n_per_class": setup.counts(split.train), "hash": setup.row_hashes(k)["train"]},
                "dev": {"ids": [], "n_per_class": setup.counts(split.dev), "hash": setup.row_hashes(k)["dev"]},
                "labeled": {"origin": data.labeled.origin, "sha256": data.labeled.sha256, "n": len(data.labeled.rows)},
                "test": {
                    "origin": test.origin,
                    "sha256": test.sha256,
                    "n": len(test.rows),
                    "n_per_class": {label: gold.count(label) for label in task.labels},
                },
            },
            "looks": [],
            "chosen_step": 0,
            "steps_done": 0,
            "dev": None,
            "test": {
                "metrics": metrics,
                "select": select_score(task, metrics),
                "controls": controls(self.questions, task.labels, _metrics(task), task.positive),
            },
            "answers": self._answers(one, predicted),
            "warnings": [*setup.warnings(k), *self._warnings(one, predicted)],
        }
        scores = {
            label: [_score(q, r, label) for q, r in zip(self.questions, one.readings, strict=True)]
            for label in task.labels
        }
        table = Predictions(["test"] * len(gold), [q.id for q in self.questions], cast(Any, gold), predicted, scores)
        return result, table

    def _answers(self, one: Answered, predicted: Sequence[str]) -> dict[str, Any]:
        cfg, questions, readings = self.setup.cfg, self.questions, one.readings
        counted = Counter(predicted)
        shown = sorted({i for q in questions for i in q.demonstrations})
        raw = sorted({r.raw[0] for r, p in zip(readings, predicted, strict=True) if p == INVALID and r.raw})
        found: dict[str, Any] = {
            "form": self.form,
            "separators": sorted({q.separator for q in questions}),
            "counts": {label: counted.get(label, 0) for label in self.setup.task.labels},
            "invalid": counted.get(INVALID, 0),
            "invalid_outputs": raw[:20],
            "tokens": {"min": min(self.method.tokens), "max": max(self.method.tokens)},
            "demonstrations": {"seed": cfg["seed"]["data"], "shots": cfg["method"]["shots"], "ids": shown},
            "shortened": sum(q.cut > 0 for q in questions),
            "expected": expected_accuracy(questions, readings),
            "nodes": sum(r.nodes for r in readings) / len(readings),
        }
        asked = [(q, r) for q, r in zip(questions, readings, strict=True) if r.log_probs and r.lower]
        if asked:
            found["likelihood"] = {
                "normalise": cfg["decode"].get("normalise", "sum"),
                # Rows where the step-by-step sampler's likeliest answer is another one than the model's (fault I041).
                "differs_from_sampler": sum(_best(q, r.probs) != _best(q, r.log_probs) for q, r in asked),
                "rows": len(asked),
            }
        return found

    def _warnings(self, one: Answered, predicted: Sequence[str]) -> list[str]:
        out = []
        if n := sum(q.cut > 0 for q in self.questions):
            out.append(f"{n} prompts shortened to {self._limit(self.method.decoder)} tokens")
        if n := sum(p == INVALID for p in predicted):
            out.append(f"{n} of {len(predicted)} outputs are none of the allowed answers and count as wrong")
        from fewnlu.decoding.outlines import begins

        if self.setup.cfg["decode"]["name"] == "outlines" and (n := sum(begins(q.choices) for q in self.questions)):
            out.append(f"in {n} rows an answer begins another: outlines draws the longer one too seldom there")
        return out


def _device(trainer: dict[str, Any]) -> str:
    """Where answers are computed: what `trainer.accelerator` says, auto taking a CUDA device that is there."""
    import torch

    wanted = str(trainer.get("accelerator") or "auto")
    if wanted in ("auto", "gpu", "cuda") and torch.cuda.is_available():
        return "cuda"
    return "mps" if wanted == "mps" else "cpu"


def read_shard(file: Path, questions: Sequence[Question], runs: int) -> list[Reading] | None:
    """Kept readings; None where there are none or they are damaged."""
    found = read_json(file)
    try:
        readings = [Reading(**_numbers(one)) for one in found["readings"]]  # type: ignore[index]
    except (TypeError, KeyError):
        return None
    fits = len(readings) == len(questions) and all(
        len(r.draws) == runs and all(-1 <= d < len(q.choices) for d in r.draws)
        for q, r in zip(questions, readings, strict=True)
    )
    return readings if fits else None


def _numbers(one: dict[str, Any]) -> dict[str, Any]:
    """JSON has no −inf: null stands for it."""
    logs = [-math.inf if v is None else v for v in one.get("log_probs", [])]
    return {**one, "log_probs": logs}


def _metrics(task: Any) -> list[str]:
    """The task's own metrics and those that every table of this kind prints."""
    return list(dict.fromkeys([*task.metrics, "accuracy", "weighted_f1", "macro_f1", "mcc"]))


def _column(labels: Sequence[str], names: Sequence[str]) -> Any:
    import numpy as np

    return np.array([labels.index(name) for name in names], dtype=np.int64)


def _score(question: Question, reading: Reading, label: str) -> float:
    """Log-score of a label: −inf where the row doesn't offer it, NaN where the decoder gives none."""
    own = [i for i, other in enumerate(question.labels) if other == label]
    if not own:
        return -math.inf
    if reading.log_probs:
        return max(reading.log_probs[i] for i in own)
    if not reading.lower:
        return math.nan
    p = sum(reading.probs[i] for i in own)
    return math.log(p) if p > 0 else -math.inf


def _best(question: Question, scores: Sequence[float]) -> str:
    return question.labels[max(range(len(scores)), key=lambda i: scores[i])]
