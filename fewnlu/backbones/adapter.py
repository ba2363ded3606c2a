"""LoRA through peft (Hu et al. 2022): low-rank updates of all projections in the model's layers; all else stays fixed.

Adapters are put into the model in place, so states, heads and prefixes are found as without them. Their first weights
are drawn from a fixed seed: they are part of the model as it is read, equal for all runs, and change nothing until
trained.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fewnlu.backbones.layers import find_layers
from fewnlu.errors import ConfigError

MARK = ".lora_"  # in the name of every parameter of an adapter


def add_lora(model: Any, rank: int) -> None:
    """Put adapters into every linear map of the model's layers.

    Raises:
        ConfigError: peft is not installed, or the layers were not found.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ConfigError("model_args.adapter=lora needs the package peft: pip install 'fewnlu[lora]'") from error
    stack = find_layers(model)
    own = {id(m) for layer in stack or () for m in layer.modules()}
    if not own and model.config.model_type == "albert":  # one group of layers, used again and again
        own = {id(m) for m in model.base_model.encoder.modules()}
    names = [n for n, m in model.named_modules() if id(m) in own and _is_linear(m)]
    if not names:
        raise ConfigError(
            f"model_args.adapter=lora: the layers of model type {model.config.model_type!r} were not found; use "
            "model_args.adapter=none"
        )
    gpt2 = any(not isinstance(model.get_submodule(n), nn.Linear) for n in names)
    config = LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=names, fan_in_fan_out=gpt2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        inject_adapter_in_model(config, model)


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def merged_state(model: Any) -> dict[str, Tensor]:
    """The model's state with adapters merged into the weights they belong to, under its own names."""
    from peft.tuners.lora import LoraLayer

    layers = [m for m in model.modules() if isinstance(m, LoraLayer)]
    for layer in layers:
        layer.merge()  # type: ignore[operator]
    state = {
        name.replace(".base_layer.", "."): value.detach().clone()
        for name, value in model.state_dict().items()
        if MARK not in name
    }
    for layer in layers:
        layer.unmerge()  # type: ignore[operator]
    return state
