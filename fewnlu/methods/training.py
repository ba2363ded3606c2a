"""A training in this process: a Lightning Trainer, stopped by the looks at dev, best weights kept in memory."""

from __future__ import annotations

import logging
import os
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.environments import LightningEnvironment

from fewnlu.methods.looks import Looks, Measure, Rule
from fewnlu.methods.method import FewShotMethod


@dataclass
class Trained:
    """What a training leaves behind.

    Attributes:
        rules: one per h, as the looks have left them; none without dev rows.
        steps: optimiser updates made.
        weights / dev_scores: update -> snapshot, log-scores [dev rows, columns], of each look that is some rule's best.
        diverged: a loss that was not finite, which ended the training.
    """

    rules: list[Rule]
    steps: int = 0
    weights: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)
    dev_scores: dict[int, np.ndarray] = field(default_factory=dict)
    diverged: FloatingPointError | None = None


def train(
    method: FewShotMethod,
    data: Any,
    rules: list[Rule],
    measure: Measure,
    bar: Any,
    *,
    flags: dict[str, Any],
    loggers: list[Any],
    total: int,
    keeps: bool = True,
) -> Trained:
    """Make `total` updates, or fewer where all rules have stopped; the method has the last weights then.

    Args:
        data: connected `fewnlu.splits.datamodule.FewShotData`.
        measure: (method) -> (dev score, log-scores).
        bar: what is told of each update by `step(update, note)`.
        flags: of Lightning's Trainer.
        keeps: see `Looks`.
    """
    looks = Looks(rules, measure, bar, keeps)
    trainer = _trainer(flags, loggers, [looks], total, data.stream.batch_size // data.stream.micro_batch)
    # Lightning keeps the mode it finds, and a model that was just read is in eval mode: the first training of a
    # process would go without dropout until its first look, and a resumed sweep would differ.
    method.train()
    diverged: FloatingPointError | None = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            trainer.fit(method, datamodule=data)
        except FloatingPointError as err:
            diverged = err
    method.to(looks.device)  # Lightning moves it to the CPU at the end, where scoring test would take for ever
    return Trained(rules, trainer.global_step, looks.weights, looks.dev_scores, diverged)


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
