"""CLS: a classification head on the pooled state of the plain input (spec 3.1)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fewnlu.backbones.precision import unmixed
from fewnlu.methods.method import Context, FewShotMethod


class Method(FewShotMethod):
    """Linear head over the state of the first token (masked models) or of the last one (causal models).

    Masked models get the usual dense-tanh layer in between. The whole head is new, drawn from N(0, 0.02) under the
    run's seed: poolers that BERT and ALBERT were pretrained with are not in a masked LM's checkpoint and not used.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        size = self.backbone.hidden_size
        dropout = float(context.options.get("dropout", 0.1))
        # Each linear layer has one dropout before it; Identity keeps the place of a saved head's tensors.
        causal = self.backbone.is_causal
        dense = [nn.Identity()] if causal else [nn.Dropout(dropout), nn.Linear(size, size), nn.Tanh()]
        self.head = nn.Sequential(*dense, nn.Dropout(dropout), nn.Linear(size, len(self.task.labels)))
        for module in self.head:
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def scores(self, batch: dict[str, Any]) -> Tensor:
        hidden = self.lm.hidden(
            batch["input_ids"],
            batch["attention_mask"],
            token_type_ids=batch.get("token_type_ids"),
            prefix=batch.get("prefix"),
            decoder=False,  # a new head reads the plain last layer
        )
        rows = torch.arange(hidden.shape[0], device=hidden.device)
        pooled = hidden[rows, batch["read"][:, 0]].to(next(self.head.parameters()).dtype)
        with unmixed(pooled):
            return torch.log_softmax(self.head(pooled).float(), dim=-1)

    def loss(self, batch: dict[str, Any]) -> Tensor:
        return nn.functional.nll_loss(self.scores(batch), batch["gold"])
