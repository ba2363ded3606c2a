"""Where a trial's trainings happen: one model, tables of encoded rows, and the training of a run on request."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fewnlu.backbones.loading import load_backbone
from fewnlu.backbones.precision import mixed
from fewnlu.determinism import seed_all
from fewnlu.methods.fit import Fitted, fit, score_rows
from fewnlu.methods.memory import give_back, out_of_memory
from fewnlu.methods.method import Context, FewShotMethod, method_class
from fewnlu.methods.mlm import Auxiliary
from fewnlu.paradigms.single import Training
from fewnlu.prompts.readers import Reader, reader_for
from fewnlu.protocol import devices
from fewnlu.protocol.loggers import no_log, run_log
from fewnlu.protocol.model import adapter_rank, frozen_layers, where
from fewnlu.protocol.setup import Setup
from fewnlu.splits.datamodule import FewShotData, Table
from fewnlu.splits.prefix import prefix_of
from fewnlu.splits.strategy import Split
from fewnlu.tasks.metrics import score_rows as task_metrics
from fewnlu.tasks.metrics import select_score


class Lab:
    """Holds what all runs of a trial share.

    Args:
        setup: the trial.
        study: (study key, folder name).
        folder_of: (h, k, rep) -> folder of that run, for training curves and generations.

    Attributes:
        devices: that a training uses; they share the rows of an update.
        micro: rows per forward on each; halved where memory does not suffice, unless runtime.micro_batch is set.
        precision: `trainer.precision`.
        steps: updates to make instead of all hp.max_steps of the schedule; None: all.
        keep / kept: whether the method of a run is kept as trained (until the next training), and that method.
    """

    def __init__(self, setup: Setup, study: tuple[str, str], folder_of: Any) -> None:
        cfg = setup.cfg
        self.setup, self.study, self.folder_of = setup, study, folder_of
        self.backbone = load_backbone(
            *where(cfg),
            freeze_layers=frozen_layers(cfg),
            dtype=cfg["model_args"]["dtype"],
            kind=cfg["model_args"]["kind"] or cfg["model"].get("kind"),
            adapter_rank=adapter_rank(cfg),
        )
        self.backbone.checkpoint(bool(cfg["runtime"].get("checkpointing")))
        self.devices, self.precision = devices.count(cfg["trainer"]), cfg["trainer"].get("precision")
        self.micro: int | None = cfg["runtime"]["micro_batch"]
        self._tables: dict[Any, Table] = {}
        gc.collect()
        gc.freeze()  # what is alive now stays: collecting after each run need not look at it again
        self.steps: int | None = None
        self.keep = False
        self.kept: FewShotMethod | None = None
        self._unlabeled: dict[Any, list[Any]] = {}
        self._readers: dict[int, Reader] = {}

    def tidy(self) -> None:
        """Remove what a job keeps only until its records are written: nothing here."""

    def reader(self, h: dict[str, Any]) -> Reader:
        """What reads answers off the model under the pattern of h."""
        pattern, backbone, setup = self.setup.pattern(h), self.backbone, self.setup
        if pattern.id not in self._readers:
            self._readers[pattern.id] = reader_for(
                backbone.tokenizer, backbone.kind, pattern, setup.task, setup.reading, setup.rows
            )
        return self._readers[pattern.id]

    def table(self, which: str, h: dict[str, Any]) -> Table | None:
        """All labelled or test rows, or the paradigm's pool, under the pattern of h, encoded once."""
        data = self.setup.data
        rowset = self.setup.drawn_pool if which == "pool" else data.labeled if which == "labeled" else data.test
        if rowset is None:
            return None
        pattern = self.setup.pattern(h)
        key = (which, pattern.id)
        if key not in self._tables:
            backbone, task = self.backbone, self.setup.task
            reader = self.reader(h)
            gold = [task.gold(r) for r in rowset.rows]
            encoded = reader.encode(rowset.rows)
            pad = backbone.tokenizer.pad_token_id
            table = Table(encoded, gold, pad, reader=reader, trains=which != "test")
            depends = (
                backbone.weights_sha,
                backbone.frozen,
                str(next(backbone.parameters()).dtype),
                rowset.sha256,
                pattern.template,
                task.max_length,
                torch.get_default_dtype(),
                which,
                reader.signature,
                self.precision,
            )
            if method_class(self.setup.cfg["method"]["name"]).prefix_is_fixed:
                room, context = float(self.setup.cfg["runtime"]["cache_gb"]), mixed(self.precision, backbone.device)
                table.prefix = prefix_of(depends, backbone, table, room, context)
            self._tables[key] = table
        return self._tables[key]

    def dev_score(self, scores: np.ndarray, rows: Sequence[int]) -> float:
        """See `dev_score` below, on rows of the labelled set."""
        return dev_score(self.setup.task, self.setup.rows, scores, rows)

    def metrics(self, scores: np.ndarray, rows: Sequence[Any]) -> dict[str, float]:
        return task_metrics(self.setup.task, scores, rows)

    def score_pool(self, method: Any, h: dict[str, Any]) -> np.ndarray:
        """Scores [pool, labels] of a method as it is."""
        table = self.table("pool", h)
        assert table is not None
        return score_rows(method, table, range(len(table)), self.setup.cfg["runtime"]["eval_batch"])

    def auxiliary(self, h: dict[str, Any], seed: int) -> Auxiliary | None:
        """The language-model loss on unlabelled rows, where `aux.mlm_weight` is not 0."""
        aux = self.setup.cfg.get("aux") or {}
        if not aux.get("mlm_weight"):
            return None
        key = ("aux", self.setup.pattern(h).id)
        if key not in self._unlabeled:
            self._unlabeled[key] = self.reader(h).encode(self.setup.pool_rows(aux["pool"]).rows)
        backbone, weight, ratio = self.backbone, float(aux["mlm_weight"]), float(aux["mlm_ratio"])
        return Auxiliary(self._unlabeled[key], backbone.tokenizer, backbone.is_causal, weight, ratio, seed)

    def train(self, k: int, rep: int, hs: Sequence[dict[str, Any]], training: Training | None = None) -> list[Any]:
        """Train on split k and score dev and test with the chosen weights; one result, or error, per h (see `fit`).

        Args:
            training: what is not as in a plain run.
        """
        while True:
            try:
                return self._train(k, rep, hs, training or Training())
            except (MemoryError, RuntimeError) as err:
                share = hs[0]["batch_size"] // self.devices
                now = self.micro or share
                if not out_of_memory(err) or self.setup.cfg["runtime"]["micro_batch"] or now == 1:
                    raise
                if self.setup.reading.hinge == "batch":
                    raise MemoryError(f"{err}; reading.hinge=batch needs a whole batch in one forward") from err
                self.micro = next(n for n in range(now - 1, 0, -1) if share % n == 0)
            give_back()
            print(
                f"out of memory with {now} rows a forward: trying runtime.micro_batch={self.micro}, accumulated to the "
                f"same {hs[0]['batch_size']} rows an update",
                file=sys.stderr,
            )

    def _train(self, k: int, rep: int, hs: Sequence[dict[str, Any]], training: Training) -> list[Any]:
        setup, h = self.setup, dict(hs[0])
        labeled, test = self.table("labeled", h), self.table("test", h)
        assert labeled is not None
        seed = setup.run_seed(k, rep) if training.seed is None else training.seed
        seed_all(seed)  # before anything with random initial weights is made (I067)
        self.backbone.restore()
        options = {n: v for n, v in setup.cfg["method"].items() if n not in {"name", "reads"}}
        method = method_class(setup.cfg["method"]["name"])(
            Context(
                self.backbone,
                setup.task,
                h,
                options,
                self.reader(h),
                self.auxiliary(h, seed),
                training.word_dropout,
            )
        )
        method.precision = self.precision
        share = h["batch_size"] // self.devices
        micro = self.micro if self.micro and share % self.micro == 0 else share
        split = training.split or setup.splits[k]
        if training.pseudo:
            pool = self.table("pool", h)
            assert pool is not None
            new = range(len(labeled), len(labeled) + len(training.pseudo))
            labeled, split = labeled.joined(pool, training.pseudo), Split((*split.train, *new), split.dev)
        steps = h["max_steps"] if self.steps is None else self.steps
        units, labels = [r.unit for r in setup.rows], [str(r.label) for r in setup.rows]
        plain = setup.strategy.datamodules(units, setup.cfg["seed"]["split"], labels)[k]
        data = (plain if split == setup.splits[k] else FewShotData(k, split)).connect(
            labeled, updates=steps, batch_size=h["batch_size"], micro_batch=micro, seed=seed, devices=self.devices
        )
        folders: list[Path] = [self.folder_of(dict(one), k, rep) for one in hs]
        try:
            with run_log(setup, self.study, hs, k, rep, folders) if training.logged else no_log() as log:
                fitted = fit(
                    method,
                    data,
                    hs=hs,
                    test=test,
                    dev_score=self.dev_score if self.devices == 1 else partial(dev_score, setup.task, setup.rows),
                    trainer_flags=devices.resolved(setup.cfg["trainer"]),
                    loggers=log.loggers,
                    eval_batch=setup.cfg["runtime"]["eval_batch"],
                    steps=self.steps,
                    title=f"{setup.cfg['task']['name']} {setup.cfg['method']['name']} k={k}",
                )
                if training.after is not None:
                    assert isinstance(fitted[0], Fitted)  # a single h: fit raises where it fails
                    fitted[0].after = training.after(method)
                self.kept = method if self.keep and training.logged else None
                if training.logged:
                    log.outcomes = [
                        self._outcome(one, data.split.dev) if isinstance(one, Fitted) else {"looks": []}
                        for one in fitted
                    ]
            return fitted
        finally:
            # Trainer, module and optimiser refer to one another: without this their tensors pile up (fault I088).
            method.trainer = None
            del method, data
            gc.collect()

    def _outcome(self, one: Fitted, dev_rows: Sequence[int]) -> dict[str, Any]:
        """What a logger's summary says of a run."""
        out: dict[str, Any] = {"looks": one.looks, "chosen_step": one.chosen_step, "steps_done": one.steps_done}
        sets = [("dev", one.dev_scores, [self.setup.rows[r] for r in dev_rows])]
        if self.setup.data.test is not None:
            sets.append(("test", one.test_scores, list(self.setup.data.test.rows)))
        for name, scores, rows in sets:
            if scores is not None:
                out |= {f"{name}/{metric}": value for metric, value in self.metrics(scores, rows).items()}
        return out


def dev_score(task: Any, rows: Sequence[Any], scores: np.ndarray, positions: Sequence[int]) -> float:
    """The scalar that selects, on the rows at these positions; NaN where a score is not a number."""
    if not np.isfinite(scores).any(1).all() or np.isnan(scores).any():
        return float("nan")
    return select_score(task, task_metrics(task, scores, [rows[r] for r in positions]))
