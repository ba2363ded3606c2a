"""The language-model head, taken apart so that only the rows of the asked tokens are multiplied.

A vocabulary has 30 to 150 thousand rows, a pattern asks for two to ten of them. Every family names the parts
differently; the table below knows the common ones, and what it finds is compared with the whole head once,
so that an unknown or changed family is slower instead of wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fewnlu.errors import ConfigError


@dataclass(frozen=True)
class Head:
    """A head in parts: logits = transform(states) @ weight()ᵀ + bias()."""

    transform: Callable[[Tensor], Tensor]
    weight: Callable[[], Tensor]  # [V, E]; a callable, because moving a model may replace its parameters
    bias: Callable[[], Tensor | None]  # [V]

    def __call__(self, states: Tensor, token_ids: Tensor | None) -> Tensor:
        """[..., H] and n token ids → [..., n]; all V rows for None."""
        weight, bias = self.weight(), self.bias()
        if token_ids is not None:
            weight = weight.index_select(0, token_ids)
            bias = None if bias is None else bias.index_select(0, token_ids)
        return nn.functional.linear(self.transform(states), weight, bias)


class _States:
    """Stands for any base model's output: item 0 and `last_hidden_state` are the states, the rest is None."""

    def __init__(self, states: Tensor) -> None:
        self.last_hidden_state = states

    def __getitem__(self, item: Any) -> Any:
        return (self.last_hidden_state,)[item]

    def __getattr__(self, name: str) -> None:
        return None


def whole_head(model: Any, states: Tensor) -> Tensor:
    """The model's own head on given states [..., H] → logits [..., V], for any architecture.

    The model's forward runs with its base replaced by a stand-in that answers with the states.

    Raises:
        ConfigError: the forward does not ask its base, so the head cannot be reached.
    """
    flat = states.reshape(1, -1, states.shape[-1])
    asked: list[bool] = []

    def answer(*args: Any, **kwargs: Any) -> _States:
        asked.append(True)
        return _States(flat)

    base = model.base_model
    stood_for = [m for m in (base, getattr(base, "decoder", None)) if isinstance(m, nn.Module)]  # OPT asks the latter
    for module in stood_for:
        module.forward = answer
    try:
        logits = model(inputs_embeds=flat).logits
    finally:
        for module in stood_for:
            del module.forward
    if not asked:
        raise ConfigError(f"model type {model.config.model_type!r} is not supported: its LM head can't be run alone")
    return logits.reshape(*states.shape[:-1], logits.shape[-1])


def find_head(model: Any) -> Head | None:
    """The head's parts, or None where the family is unknown or its head does more than the parts say.

    Raises:
        ConfigError: not even the whole head can be run on given states.
    """
    try:
        head = parts_of(model)
    except AttributeError:
        head = None
    weight = head.weight() if head else model.get_input_embeddings().weight
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(2, model.config.hidden_size, generator=generator).to(weight)
    with torch.no_grad():
        want = whole_head(model, states).float()  # also where there are no parts: refuse now rather than later
    if head is None:
        return None
    try:
        with torch.no_grad():
            got = head(states, None).float()
    except (RuntimeError, AttributeError, TypeError):
        return None
    tolerance = 1e-4 if weight.dtype == torch.float32 else 2e-2
    same = want.shape == got.shape and torch.allclose(got, want, rtol=tolerance, atol=tolerance)
    return head if same else None


def parts_of(model: Any) -> Head | None:
    """The head's parts as they are named in the families that we know; whether they do all is `find_head`'s to say."""
    predictions: Any = getattr(getattr(model, "cls", None), "predictions", None)
    if hasattr(predictions, "transform"):  # BERT, legacy DeBERTa
        return _linear(predictions.transform, predictions.decoder)
    if hasattr(model, "lm_predictions"):  # DeBERTa as Microsoft stores it
        head, words = model.lm_predictions.lm_head, model.get_input_embeddings()
        return Head(
            lambda x: head.LayerNorm(head.transform_act_fn(head.dense(x))),
            lambda: words.weight,
            lambda: head.bias,
        )
    if hasattr(model, "predictions"):  # ALBERT
        head = model.predictions
        return _linear(lambda x: head.LayerNorm(head.activation(head.dense(x))), head.decoder)
    if hasattr(model, "vocab_projector"):  # DistilBERT
        return _linear(
            lambda x: model.vocab_layer_norm(model.activation(model.vocab_transform(x))),
            model.vocab_projector,
        )
    if hasattr(model, "generator_lm_head"):  # ELECTRA's generator
        return _linear(model.generator_predictions, model.generator_lm_head)
    if hasattr(model, "head") and isinstance(getattr(model, "decoder", None), nn.Linear):  # ModernBERT
        return _linear(model.head, model.decoder)
    roberta: Any = getattr(model, "lm_head", None)
    if hasattr(roberta, "decoder") and hasattr(roberta, "layer_norm"):  # and its kin
        return _linear(lambda x: roberta.layer_norm(nn.functional.gelu(roberta.dense(x))), roberta.decoder)
    output = model.get_output_embeddings()
    return _linear(lambda x: x, output) if isinstance(output, nn.Linear) else None  # causal models


def _linear(transform: Callable[[Tensor], Tensor], decoder: nn.Linear) -> Head:
    return Head(transform, lambda: decoder.weight, lambda: decoder.bias)
