"""The waist between methods and everything else: `scores` and `training_step`, and one optimiser for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from fewnlu.errors import ConfigError
from fewnlu.methods.view import View
from fewnlu.plugins import find


@dataclass
class Context:
    """What a method is built from.

    Attributes:
        backbone: the pretrained model (`fewnlu.backbones.Backbone`).
        task: the task (labels, patterns).
        hp: canonical h.
        options: the method's own section of the config.
        reader: reads answers off the model under the pattern of h (`fewnlu.prompts.readers.Reader`).
        auxiliary: language-model loss on unlabelled rows (`fewnlu.methods.mlm.Auxiliary`), or None.
        word_dropout: probability that a word's embedding is zeroed in training (Noisy Student).
    """

    backbone: Any
    task: Any
    hp: dict[str, Any]
    options: dict[str, Any]
    reader: Any = None
    auxiliary: Any = None
    word_dropout: float = 0.0


class Diverged(FloatingPointError):
    """The loss is not finite; on several devices all of them know, and stop at the same update."""


class FewShotMethod(pl.LightningModule):
    """Base of all methods; a new one is a new file with a subclass named `Method`.

    Attributes:
        prefix_is_fixed: whether states below the frozen layers are the same at every update, so that they may be kept.
        precision: `trainer.precision`; a mixed one holds where rows are scored, too (`fewnlu.backbones.precision`).
    """

    prefix_is_fixed = True
    precision: Any = "32-true"

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.backbone = context.backbone
        self.hp = context.hp
        self.task = context.task
        self.reader = context.reader
        self.auxiliary, self.word_dropout = context.auxiliary, context.word_dropout

    @property
    def edits(self) -> bool:
        """Whether word embeddings are edited now; then cached prefixes don't hold."""
        return self.training and self.word_dropout > 0

    def edit(self, ids: Tensor, embeds: Tensor) -> Tensor:
        """Word embeddings [R, T, E] of ids [R, T] as the model gets them.

        Word dropout zeroes whole words, never special tokens, masks or trainable slots (the released toolkit drops
        dimensions of all words at once; spec 3.7). What is left is not rescaled: a word looks as in evaluation.
        """
        if not (self.training and self.word_dropout > 0):
            return embeds
        tokenizer = self.backbone.tokenizer
        special = torch.tensor(tokenizer.all_special_ids, device=ids.device)
        word = (ids >= 0) & ~torch.isin(ids, special)
        dropped = torch.rand(ids.shape, device=ids.device) < self.word_dropout
        return embeds.masked_fill((word & dropped).unsqueeze(-1), 0.0)

    @property
    def lm(self) -> Any:
        """The model as this method reads it."""
        return View(self.backbone, self.edit) if self.edits else self.backbone

    def scores(self, batch: dict[str, Any]) -> Tensor:
        """Log-scores [rows, candidates]; argmax is the prediction, -inf where a row has fewer candidates."""
        raise NotImplementedError

    def loss(self, batch: dict[str, Any]) -> Tensor:
        """Training loss of a batch, a mean over its rows."""
        raise NotImplementedError

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        before, after = batch.get("elsewhere", ((), ()))
        for share in before:
            self.skip(share)
        loss = self.loss(batch)
        if self.auxiliary is not None:
            loss = loss + self.auxiliary.weight * self.auxiliary.loss(self.lm, len(batch["rows"]), loss.device)
        for share in after:
            self.skip(share)
        shown = loss
        if "elsewhere" in batch:  # all processes have to agree on whether they go on
            shown = self.trainer.strategy.reduce(loss.detach().float().clone(), reduce_op="mean")
        if not torch.isfinite(shown):
            raise Diverged(
                f"the loss is {shown.item()} at update {self.trainer.global_step + 1}: lower hp.lr, or use "
                "trainer.precision=32-true and model_args.dtype=float32"
            )
        self.log("loss", shown, batch_size=len(batch["rows"]))
        return loss

    def skip(self, share: Any) -> None:
        """Advance the method's own generators as a micro-batch does that another process trains on, so that several
        devices draw what one would.

        Args:
            share: that micro-batch (`fewnlu.splits.datamodule.Share`).
        """
        if self.auxiliary is not None:
            self.auxiliary.skip(len(share))

    def configure_optimizers(self) -> Any:
        """AdamW (betas .9/.999, eps 1e-8), no decay on biases and norms; linear warm-up, then to 0 (spec 3.0)."""
        groups = [g for g in self.groups() if g["params"]]
        if not groups:
            raise ConfigError("nothing to train: every parameter is frozen; lower model_args.freeze_layers")
        optimizer: Any = torch.optim.AdamW(groups, lr=self.hp["lr"], fused=True)
        # A fused one would undo the scaling of mixed precision itself, and Lightning could not clip before that.
        optimizer._step_supports_amp_scaling = False
        total = self.hp["max_steps"]
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: lr_factor(i, total, self.hp["warmup_ratio"]))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def groups(self) -> list[dict[str, Any]]:
        """The optimiser's parameter groups."""
        return self.decayed([p for p in self.parameters() if p.requires_grad])

    def decayed(self, params: list[Any]) -> list[dict[str, Any]]:
        """Groups with hp.weight_decay on all but biases and norms."""
        return [
            {"params": [p for p in params if p.ndim > 1], "weight_decay": self.hp["weight_decay"]},
            {"params": [p for p in params if p.ndim <= 1], "weight_decay": 0.0},
        ]

    def snapshot(self) -> dict[str, Tensor]:
        """Copies of everything that training changes."""
        return {n: p.detach().clone() for n, p in self.named_parameters() if p.requires_grad}

    def load_snapshot(self, state: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, p in self.named_parameters():
                if p.requires_grad:
                    p.copy_(state[name])


def lr_factor(update: int, total: int, warmup_ratio: float) -> float:
    """Share of the peak learning rate at an update (0-based): first up, then down to 0 (spec 3.0)."""
    warm = int(total * warmup_ratio + 1e-9)
    if update < warm:
        return update / max(1, warm)
    return max(0.0, (total - update) / max(1, total - warm))


def method_class(name: str) -> type[FewShotMethod]:
    """The class of a method.

    Raises:
        ConfigError: an unknown name, or a plugin's class of another kind.
    """
    cls = find("method", name)
    if not issubclass(cls, FewShotMethod):
        raise ConfigError(f"method.name={name}: {cls.__module__}.Method is no subclass of FewShotMethod")
    return cls
