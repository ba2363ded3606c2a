"""Looks at dev while a training goes on: the stopping rule of an h, scores of rows, and the callback that asks.

Lightning's own validation counts batches, drifts under accumulation, changes the order of later batches and tests on
the last weights (faults I076, I078, I080, I081); here a callback counts optimiser updates instead.
"""

from __future__ import annotations

import math
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch

from fewnlu.backbones.precision import mixed
from fewnlu.methods.memory import give_back, out_of_memory
from fewnlu.methods.method import FewShotMethod
from fewnlu.splits.datamodule import Table


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
            with mixed(method.precision, method.device):
                parts.append((positions, method.scores(moved).float().cpu().numpy()))
    finally:
        method.train(training)
    out = np.full((len(rows), max(values.shape[1] for _, values in parts)), -np.inf, dtype=np.float64)
    for positions, values in parts:
        out[positions, : values.shape[1]] = values
    return out


@dataclass
class Measure:
    """Scores the dev rows with a method as it is.

    Attributes:
        rows: positions in the labelled `table`; none where there is no dev set.
        dev_score: (log-scores, rows) -> the scalar that selects.
        eval_batch: rows scored at a time.
    """

    table: Table
    rows: list[int]
    dev_score: Any
    eval_batch: int

    def scores(self, module: FewShotMethod) -> np.ndarray:
        """Log-scores [rows, columns]."""
        return score_rows(module, self.table, self.rows, self.eval_batch)

    def __call__(self, module: FewShotMethod) -> tuple[float, np.ndarray]:
        values = self.scores(module)
        return self.dev_score(values, self.rows), values


class Looks(pl.Callback):
    """Looks at dev for every rule that is due, keeps the best weights of each, and stops when all have stopped.

    Args:
        keeps: whether weights are kept here; of several processes with equal weights one does.
    """

    def __init__(self, rules: list[Rule], measure: Measure, bar: Any, keeps: bool = True) -> None:
        self.rules, self.measure, self.bar, self.keeps = rules, measure, bar, keeps
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
            if self.keeps and any(rule.best_step == step for rule in due):
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
