"""P-tuning: PET's cloze with trainable embeddings in some places of the template (Liu et al. 2021; spec 3.4)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fewnlu.errors import ConfigError, choices
from fewnlu.methods.method import Context
from fewnlu.methods.pet import Method as Pet
from fewnlu.prompts.template import Slots, parse

HEADS = ("lstm", "mlp", "raw")


class PromptEncoder(nn.Module):
    """Embeddings [n, size] of the n slots of a template.

    Args:
        head: ``lstm``: Embedding(n, size) → two-layer bidirectional LSTM (size per direction) → Linear → ReLU → Linear;
            ``mlp``: Embedding → Linear → ReLU → Linear; ``raw``: free vectors that begin as words drawn at random.
        words: the model's word embeddings [V, size].
    """

    def __init__(self, head: str, n: int, words: Tensor) -> None:
        super().__init__()
        if head not in HEADS:
            raise ConfigError(f"hp.head={head!r}: {choices(head, HEADS)}")
        size = words.shape[1]
        self.slots = nn.Embedding(n, size)
        self.lstm: nn.LSTM | None = None
        self.mlp: nn.Sequential | None = None
        if head == "raw":
            with torch.no_grad():
                self.slots.weight.copy_(words[torch.randint(words.shape[0], (n,))].float())
            return
        if head == "lstm":
            self.lstm = nn.LSTM(size, size, num_layers=2, bidirectional=True, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(2 * size if head == "lstm" else size, size), nn.ReLU(), nn.Linear(size, size)
        )

    def forward(self) -> Tensor:
        states = self.slots.weight
        if self.lstm is not None:
            states = self.lstm(states.unsqueeze(0))[0].squeeze(0)
        return states if self.mlp is None else self.mlp(states)


class Method(Pet):
    """PET on the task's ``ptuning`` templates; hp.pattern is a template's id there, its number of slots.

    The prompt encoder's output takes the place of the slots' word embeddings. Its size is that of the model's word
    embeddings (128 for ALBERT), slots never look a word up, and it learns at hp.lr_emb without weight decay, on the
    same schedule as the model, which is trained, too.
    """

    prefix_is_fixed = False

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        template = parse(context.task.ptuning[context.hp["pattern"]].template)
        n = sum(part.n for part in template.parts if isinstance(part, Slots))
        words = self.backbone.model.get_input_embeddings().weight.detach()
        self.prompt = PromptEncoder(context.hp["head"], n, words[: self.backbone.n_tokens])

    @property
    def edits(self) -> bool:
        return True

    def edit(self, ids: Tensor, embeds: Tensor) -> Tensor:
        embeds = super().edit(ids, embeds)
        slots = self.prompt().to(embeds.dtype)[(-1 - ids).clamp(min=0)]
        return torch.where((ids < 0).unsqueeze(-1), slots, embeds)

    def groups(self) -> list[dict[str, Any]]:
        own = {id(p) for p in self.prompt.parameters()}
        rest = [p for p in self.parameters() if p.requires_grad and id(p) not in own]
        prompt = {"params": list(self.prompt.parameters()), "weight_decay": 0.0, "lr": self.hp["lr_emb"]}
        return [*self.decayed(rest), prompt]
