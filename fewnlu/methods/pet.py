"""PET: pattern-exploiting training (Schick & Schütze 2021, section 3.1; spec 3.2)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fewnlu.methods.method import Context, FewShotMethod
from fewnlu.prompts.verbalizer import resolve


class Method(FewShotMethod):
    """Class score s_y = mean over the label words of y of the LM logit at the mask; cross-entropy over {s_y} alone.

    The softmax is over labels, not over the vocabulary. Hidden states are gathered at the mask before the LM head,
    and only the label words' rows of its matrix are multiplied.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        pattern = context.task.patterns[context.hp["pattern"]]
        words = resolve(self.backbone.tokenizer, pattern, labels=context.task.labels, kind=self.backbone.kind)
        flat = [token for label in words for token in label]
        self.register_buffer("tokens", torch.tensor(flat), persistent=False)
        # [words, labels], column y holds 1/|V(y)| at the words of y: a mean of logits as one product
        mean = torch.zeros(len(flat), len(words))
        position = 0
        for y, label in enumerate(words):
            mean[position : position + len(label), y] = 1 / len(label)
            position += len(label)
        self.register_buffer("mean", mean, persistent=False)

    def scores(self, batch: dict[str, Any]) -> Tensor:
        hidden = self.backbone.hidden(
            batch["input_ids"],
            batch["attention_mask"],
            token_type_ids=batch.get("token_type_ids"),
            prefix=batch.get("prefix"),
        )
        rows = torch.arange(hidden.shape[0], device=hidden.device)
        logits = self.backbone.logits(hidden[rows, batch["read"][:, 0]], self.tokens)
        return torch.log_softmax(logits.float() @ self.mean, dim=-1)

    def loss(self, batch: dict[str, Any]) -> Tensor:
        return torch.nn.functional.nll_loss(self.scores(batch), batch["gold"])
