"""Mixed precision: layers multiply in 16 bits, also outside of Lightning's Trainer, and what is compared in 32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

_LEGACY = {"16": "16-mixed", "bf16": "bf16-mixed"}  # what Lightning still takes these for


def is_mixed(precision: Any) -> bool:
    """Whether `trainer.precision` keeps weights in 32 bits and multiplies in 16."""
    return _LEGACY.get(str(precision), str(precision)).endswith("-mixed")


def mixed(precision: Any, device: torch.device) -> AbstractContextManager[Any]:
    """What the Trainer runs a step in, so that dev, test and pool are read as the training rows are, and as fast.

    Args:
        precision: `trainer.precision`; those that are not mixed change the weights, and nothing has to be done here.
        device: where the model is. A CPU has no float16 arithmetic: Lightning takes bfloat16 there, and so does this.
    """
    if not is_mixed(precision):
        return nullcontext()
    half = torch.float16 if "bf16" not in str(precision) and device.type != "cpu" else torch.bfloat16
    return torch.autocast(device.type, dtype=half)


def unmixed(states: Tensor) -> AbstractContextManager[Any]:
    """Own precision for what follows the layers: logits of 8 bits would make ties of labels that are to be compared."""
    kind = states.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()
