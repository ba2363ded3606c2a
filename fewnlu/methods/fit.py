"""One training: a Lightning Trainer, dev looked at every n optimiser updates, best weights kept in memory.

Lightning's own validation counts batches, drifts under accumulation, changes the order of later batches and tests on
the last weights (faults I076, I078, I080, I081); here a callback counts optimiser updates instead.
Several points of H that differ only in when dev is looked at share one training: the callback replays each one's
stopping rule on the scores of a common set of looks.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.environments import LightningEnvironment

from fewnlu.methods.memory import give_back, out_of_memory
from fewnlu.methods.method import FewShotMethod
from fewnlu.progress import RunBar
from fewnlu.splits.datamodule import FewShotData, Table


@dataclass
class Rule:
    """Best look and early stopping of one h (spec 3.0): ties go to the later look, patience counts looks without strict
    improvement, look 0 is no candidate, a look whose score is not a number never wins.

    Attributes:
        every: optimiser updates between looks.
        looks: (update, dev score) seen so far.
    """

    every: int
    patience: int
    looks: list[tuple[int, float]] = field(default_factory=list)
    best_step: int | None = None
    best_score: float = -math.inf
    waited: int = 0
    stopped: bool = False

    def due(self, step: int) -> bool:
        return not self.stopped and step > 0 and step % self.every == 0

    def see(self, step: int, score: float) -> None:
        self.looks.append((step, score))
        self.waited = 0 if score > self.best_score else self.waited + 1
        if score >= self.best_score:
            self.best_score, self.best_step = score, step
        self.stopped = self.waited >= self.patience


@dataclass
class Fitted:
    """What one h got out of a training.

    Attributes:
        looks: (optimiser update, dev score) of every look.
        chosen_step: update whose weights were scored; the last one where there is no dev set.
        steps_done: updates made until this h stopped.
        dev_scores / test_scores: log-scores [rows, labels] of the chosen weights, None where there is no such set.
        after: what a paradigm asked the trained method for.
        record / warnings: what a paradigm adds to the run's record.
    """

    looks: list[tuple[int, float]]
    chosen_step: int
    steps_done: int
    dev_scores: np.ndarray | None
    test_scores: np.ndarray | None
    after: Any = None
    record: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def look_interval(max_steps: int, eval_ratio: float) -> int:
    """E = int(eval_ratio · T) updates, at least 1 (spec 3.0)."""
    return max(1, int(max_steps * eval_ratio + 1e-9))


def score_rows(method: FewShotMethod, table: Table, rows: Sequence[int], eval_batch: int) -> np.ndarray:
    """Log-scores [len(rows), columns] in the order of `rows`, −inf where a row has fewer candidates than another.

    Only these are kept, never vocabulary logits (fault I089). Where memory runs out, the batch is halved, for this
    table's later rows too.
    """
    while True:
        size = min(eval_batch, table.most_rows or eval_batch)
        try:
            return _score_rows(method, table, rows, size)
        except (MemoryError, RuntimeError) as err:
            if size == 1 or not out_of_memory(err):
                raise
        give_back()
        table.most_rows = size // 2
        print(f"out of memory with {size} rows scored at a time: trying {table.most_rows}", file=sys.stderr)


@torch.no_grad()
def _score_rows(method: FewShotMethod, table: Table, rows: Sequence[int], eval_batch: int) -> np.ndarray:
    training = method.training
    method.eval()
    parts: list[tuple[list[int], Any]] = []
    try:
        for positions, batch in table.batches(list(rows), eval_batch):
            moved = method.transfer_batch_to_device(batch, method.device, 0)
            parts.append((positions, method.scores(moved).float().cpu().numpy()))
    finally:
        method.train(training)
    out = np.full((len(rows), max(values.shape[1] for _, values in parts)), -np.inf, dtype=np.float64)
    for positions, values in parts:
        out[positions, : values.shape[1]] = values
    return out


class _Looks(pl.Callback):
    """Looks at dev for every rule that is due, keeps the best weights of each, and stops when all have stopped."""

    def __init__(self, rules: list[Rule], measure: Any, bar: RunBar) -> None:
        self.rules, self.measure, self.bar = rules, measure, bar
        self.dev_scores: dict[int, np.ndarray] = {}
        self.weights: dict[int, dict[str, torch.Tensor]] = {}
        self._seen = 0
        self.device = torch.device("cpu")
        self.on_term = signal.getsignal(signal.SIGTERM)  # before Lightning puts its own there

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        self.device = module.device
        # Who launched the job knows what SIGTERM is for. submitit ignores it, since a pre-empted job is to be requeued,
        # and a job that ends by itself is not; Lightning ends a training at this signal all the same (fault I110).
        if self.on_term not in (None, signal.SIG_DFL) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self.on_term)

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
        step = trainer.global_step
        if step == self._seen:
            return  # a micro-batch that did not end an update
        self._seen = step
        due = [rule for rule in self.rules if rule.due(step)]
        if due:
            score, self.dev_scores[step] = self.measure(module)
            for rule in due:
                rule.see(step, score)
            if any(rule.best_step == step for rule in due):
                self.weights[step] = module.snapshot()
            wanted = {rule.best_step for rule in self.rules}
            for kept in (self.dev_scores, self.weights):
                for old in [s for s in kept if s not in wanted]:
                    del kept[old]
            for logger in trainer.loggers:
                logger.log_metrics({"dev": score}, step=step)
        self.bar.step(step, f"dev {self.rules[0].best_score:.3f}" if due else "")
        if self.rules and all(rule.stopped for rule in self.rules):
            trainer.should_stop = True


def fit(
    method: FewShotMethod,
    data: FewShotData,
    *,
    hs: Sequence[dict[str, Any]],
    test: Table | None,
    dev_score: Any,
    trainer_flags: dict[str, Any],
    loggers: list[Any],
    eval_batch: int,
    title: str,
    steps: int | None = None,
) -> list[Fitted | FloatingPointError]:
    """Train once and return one result per h of `hs`, which may differ in eval_ratio and patience alone.

    Args:
        method: freshly built on restored weights.
        data: connected DataModule of the split.
        hs: canonical points of H that share this training.
        test: the test table; scored once per distinct chosen step, after training, with the chosen weights.
        dev_score: (log-scores, row positions of the labelled table) -> the scalar that selects.
        trainer_flags: `trainer` section of the config.
        loggers: Lightning loggers.
        eval_batch: rows per evaluation batch.
        title: for the progress bar.
        steps: updates to make, where that is not all of the schedule's hp.max_steps.

    Returns:
        Per h what came of it; an error for an h that failed where another did not: one that had stopped before the loss
        was no longer finite is done.

    Raises:
        FloatingPointError: a loss that is not finite, or no look with a usable dev score, for all of the `hs`.
    """
    total = hs[0]["max_steps"] if steps is None else steps
    dev_rows = list(data.split.dev)
    rules = [Rule(look_interval(total, h["eval_ratio"]), h["patience"]) for h in hs] if dev_rows else []

    def measure(module: FewShotMethod) -> tuple[float, np.ndarray]:
        values = score_rows(module, data.labeled, dev_rows, eval_batch)
        return dev_score(values, dev_rows), values

    done = 0
    diverged: FloatingPointError | None = None
    with RunBar(title, total) as bar:
        looks = _Looks(rules, measure, bar)
        if total > 0:
            trainer = _trainer(
                trainer_flags, loggers, [looks], total, data.stream.batch_size // data.stream.micro_batch
            )
            # Lightning keeps the mode it finds, and a model that was just read is in eval mode: the first training of a
            # process would go without dropout until its first look, and a resumed sweep would differ.
            method.train()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    trainer.fit(method, datamodule=data)
                except FloatingPointError as err:
                    diverged = err
            done = trainer.global_step
            method.to(looks.device)  # Lightning moves it to the CPU at the end, where scoring test would take for ever
    results: list[Fitted | FloatingPointError] = []
    test_scores: dict[int, np.ndarray] = {}
    per_h: list[Rule | None] = [*rules] or [None]
    for rule in per_h:
        step = done if rule is None else rule.best_step
        if diverged is not None and (rule is None or not rule.stopped):
            results.append(diverged)
            continue
        if rule is not None and total > 0 and step is None:
            results.append(
                FloatingPointError(
                    f"no usable dev score in {len(rule.looks)} looks (all are NaN): nothing was selected, "
                    "so nothing is tested"
                )
            )
            continue
        dev_values = None
        if rule is not None and step is not None:
            method.load_snapshot(looks.weights[step])
            dev_values = looks.dev_scores[step]
        elif dev_rows:
            dev_values = measure(method)[1]
        step = step or 0
        if test is not None and step not in test_scores:
            test_scores[step] = score_rows(method, test, range(len(test)), eval_batch)
        results.append(
            Fitted(
                looks=list(rule.looks) if rule else [],
                chosen_step=step,
                steps_done=rule.looks[-1][0] if rule and rule.stopped else done,
                dev_scores=dev_values,
                test_scores=test_scores.get(step),
            )
        )
    looks.weights.clear()
    if all(isinstance(one, FloatingPointError) for one in results):
        assert isinstance(results[0], FloatingPointError)
        raise results[0]
    return results


def _trainer(
    flags: dict[str, Any], loggers: list[Any], callbacks: list[Any], steps: int, accumulate: int
) -> pl.Trainer:
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pl.Trainer(
            **{
                "enable_progress_bar": False,
                "enable_model_summary": False,
                "log_every_n_steps": 1,
                # On SLURM Lightning would take SIGUSR1 to save all weights in the working directory, and begin any
                # later training from whatever hpc_ckpt_*.ckpt lies there (faults I110, I122).
                "plugins": [LightningEnvironment()],
                "default_root_dir": os.devnull,
                **flags,
                "max_steps": steps,
                "max_epochs": 1,
                "accumulate_grad_batches": accumulate,
                "limit_val_batches": 0,
                "num_sanity_val_steps": 0,
                "enable_checkpointing": False,
                "callbacks": callbacks,
                "logger": loggers or False,
            }
        )
