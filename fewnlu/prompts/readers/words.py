"""Label words at one mask (or as the next token of a causal model)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fewnlu.backbones.precision import unmixed
from fewnlu.prompts.readers.base import Reader, Reading, hidden_of
from fewnlu.prompts.verbalizer import resolve
from fewnlu.tasks.task import Pattern, Task


class Words(Reader):
    """Class score s_y = mean over the label words of y of the LM logit at the mask; cross-entropy over {s_y} alone.

    The softmax is over labels, not over the vocabulary (PET, section 3.1; spec 3.2). Hidden states are gathered at the
    mask before the LM head, and only the label words' rows of its matrix are multiplied.

    Raises:
        ConfigError: a word of several pieces, unknown to the tokenizer, or shared by two labels.
    """

    def __init__(self, tokenizer: Any, kind: str, pattern: Pattern, task: Task, reading: Reading) -> None:
        super().__init__(tokenizer, kind, pattern, task, reading)
        words = resolve(tokenizer, pattern, labels=task.labels, kind=kind)
        flat = [token for label in words for token in label]
        self.tokens = torch.tensor(flat)
        # [words, labels], column y holds 1/|V(y)| at the words of y: a mean of logits as one product
        self.mean = torch.zeros(len(flat), len(words))
        position = 0
        for y, label in enumerate(words):
            self.mean[position : position + len(label), y] = 1 / len(label)
            position += len(label)

    def scores(self, backbone: Any, batch: dict[str, Any]) -> Tensor:
        hidden = hidden_of(backbone, batch)
        rows = torch.arange(hidden.shape[0], device=hidden.device)
        logits = backbone.logits(hidden[rows, batch["read"][:, 0]], self.tokens.to(hidden.device))
        with unmixed(logits):
            return torch.log_softmax(logits.float() @ self.mean.to(hidden.device), dim=-1)

    def loss(self, backbone: Any, batch: dict[str, Any]) -> Tensor:
        return torch.nn.functional.nll_loss(self.scores(backbone, batch), batch["gold"])
