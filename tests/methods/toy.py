"""A linear classifier on fixed features in place of a language model: `fit` is the same, a training takes moments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fewnlu.methods.fit import Fitted, fit
from fewnlu.methods.method import Context, FewShotMethod
from fewnlu.prompts.encoding import Encoded
from fewnlu.splits.datamodule import FewShotData, Table
from fewnlu.splits.strategy import Split

HP = {
    "pattern": 0,
    "lr": 0.05,
    "max_steps": 8,
    "eval_ratio": 0.25,
    "batch_size": 4,
    "warmup_ratio": 0.0,
    "weight_decay": 0.01,
    "patience": 6,
}


class Toy(FewShotMethod):
    """Logs the rows, the loss and the weights of every update."""

    def __init__(self, hp: dict[str, Any], n_rows: int = 32, dropout: float = 0.0) -> None:
        super().__init__(Context(None, None, hp, {}))
        generator = torch.Generator().manual_seed(5)
        self.register_buffer("features", torch.randn(n_rows, 6, generator=generator))
        self.linear = nn.Linear(6, 2)
        with torch.no_grad():
            self.linear.weight.copy_(torch.randn(2, 6, generator=generator))
            self.linear.bias.zero_()
        self.drop = nn.Dropout(dropout)
        self.rows: list[list[int]] = []
        self.losses: list[float] = []
        self.eval_rows: list[list[int]] = []
        self.poison: int | None = None  # micro-batch whose loss becomes NaN

    def log_scores(self) -> np.ndarray:
        """Of all rows, by the weights as they are."""
        with torch.no_grad():
            return torch.log_softmax(self.linear(self.features), -1).numpy()

    def scores(self, batch: dict[str, Any]) -> Tensor:
        if not self.training:
            self.eval_rows.append(list(batch["rows"]))
        return torch.log_softmax(self.linear(self.drop(self.features[batch["rows"]])), -1)

    def loss(self, batch: dict[str, Any]) -> Tensor:
        loss = nn.functional.nll_loss(self.scores(batch), batch["gold"])
        if self.poison is not None and len(self.losses) == self.poison:
            loss = loss * float("nan")
        self.rows.append(list(batch["rows"]))
        self.losses.append(float(loss.detach()))
        return loss


def accuracy(scores: np.ndarray, rows: Sequence[int]) -> float:
    """Share of rows whose column is right."""
    return float(np.mean(scores.argmax(1) == np.asarray(rows) % 2))


def table(n: int = 32) -> Table:
    return Table([Encoded(str(i), [1] * (1 + i % 4), None, [0]) for i in range(n)], [i % 2 for i in range(n)], 0)


def train(
    *,
    hs: Sequence[dict[str, Any]] = (HP,),
    dev: Any = None,
    micro: int | None = None,
    split: Split | None = None,
    test: bool = True,
    dropout: float = 0.0,
    poison: int | None = None,
    eval_batch: int = 7,
    method: Toy | None = None,
    devices: int = 1,
) -> tuple[list[Fitted], Toy]:
    """One training; `dev` is a list of scripted dev scores, one per look, or a function like fit's dev_score."""
    split = split or Split(tuple(range(16)), tuple(range(16, 32)))
    torch.manual_seed(0)
    method = method or Toy(dict(hs[0]), dropout=dropout)
    method.poison = poison
    script = iter(dev) if isinstance(dev, (list, tuple)) else None

    measure = (lambda scores, rows: next(script)) if script is not None else dev or accuracy
    rows = table()
    data = FewShotData(0, split).connect(
        rows,
        updates=hs[0]["max_steps"],
        batch_size=hs[0]["batch_size"],
        micro_batch=micro or hs[0]["batch_size"] // devices,
        seed=11,
        devices=devices,
    )
    fitted = fit(
        method,
        data,
        hs=hs,
        test=table() if test else None,
        dev_score=measure,
        trainer_flags={"accelerator": "cpu", "devices": devices, "gradient_clip_val": 1.0, "deterministic": True},
        loggers=[],
        eval_batch=eval_batch,
        title="toy",
    )
    return fitted, method
