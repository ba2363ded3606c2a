"""Log-probabilities of tokens over the whole vocabulary at positions of a batch, in pieces that fit into memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fewnlu.prompts.readers.base import hidden_of

POSITIONS = 256  # positions whose vocabulary logits are in memory at once
TOKENS = 16384  # tokens of one forward pass in evaluation


def vocabulary_logits(backbone: Any, states: Tensor) -> Tensor:
    """Logits [n, words] of states [n, H]; rows that belong to no word of the tokenizer are left out (fault I035)."""
    return backbone.logits(states)[..., : backbone.n_tokens].float()


def log_probs(backbone: Any, states: Tensor, place: Tensor, targets: Tensor) -> Tensor:
    """log p(target | place) over the vocabulary, [n].

    Args:
        states: [places, H].
        place: [n], index into states.
        targets: [n], token ids.
    """
    out = states.new_zeros(len(targets), dtype=torch.float32)
    for start in range(0, len(states), POSITIONS):
        here = (place >= start) & (place < start + POSITIONS)
        if here.any():
            table = torch.log_softmax(vocabulary_logits(backbone, states[start : start + POSITIONS]), -1)
            out = out.masked_scatter(here, table[place[here] - start, targets[here]])
    return out


def states_at(backbone: Any, batch: dict[str, Any], sequence: Tensor, position: Tensor) -> Tensor:
    """States [n, H] at (sequence, position) of a batch, one forward pass for all."""
    return hidden_of(backbone, batch)[sequence, position]


def states_of(backbone: Any, batch: dict[str, Any], ids: Tensor, source: Tensor, at: Tensor) -> Tensor:
    """States [n, positions, H] of edited sequences, in passes of bounded size; for evaluation.

    Args:
        ids: [n, tokens], edited copies of the batch's sequences `source` [n].
        at: [n, positions].
    """
    step = max(1, TOKENS // ids.shape[1])
    parts = []
    for start in range(0, len(ids), step):
        own = source[start : start + step]
        mask = batch["attention_mask"][own]
        longest = int(mask.sum(1).max())
        kinds = batch.get("token_type_ids")
        hidden = backbone.hidden(
            ids[start : start + step, :longest],
            mask[:, :longest],
            token_type_ids=None if kinds is None else kinds[own][:, :longest],
        )
        places = at[start : start + step]
        parts.append(hidden[torch.arange(len(places), device=ids.device)[:, None], places])
    return torch.cat(parts)
