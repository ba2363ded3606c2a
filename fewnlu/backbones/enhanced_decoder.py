"""DeBERTa's enhanced mask decoder: how its pretrained LM head wants to be read (spec 3.0; He et al. 2021, 3.3).

DeBERTa's input knows no absolute positions. In pretraining they came in at the last layer, which ran twice: keys and
values are the states of layer n−1 both times; the query is first those states plus the position embeddings, then what
the first pass gave. Relative positions count in both passes. transformers runs the last layer once and drops the
table, so that the head reads states it was not trained on. A classifier has no such history: it reads the plain last
layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fewnlu.errors import ConfigError

_TABLE = "embeddings.position_embeddings.weight"


def wants_decoder(model: Any) -> bool:
    """Whether a model's LM head was pretrained behind the decoder.

    That is a DeBERTa-v2 without positions in its input and with Microsoft's own head (`lm_predictions`). A head of
    transformers' layout (`cls.predictions`) was trained by transformers, which has no such decoder.
    """
    config = model.config
    return (
        config.model_type == "deberta-v2"
        and not getattr(config, "position_biased_input", True)
        and hasattr(model, "lm_predictions")
        and config.num_hidden_layers > 1
    )


def attach_positions(model: Any, files: Sequence[Path]) -> None:
    """Give the model the position table that its checkpoint has and transformers dropped, as a trainable parameter.

    It becomes `embeddings.position_embeddings`, where `save_pretrained` writes it and `snapshot` finds it; the input
    does not use it. Does nothing where the model wants no decoder. A checkpoint without the table leaves None, and
    position embeddings of zero: both passes run all the same.

    Args:
        files: the checkpoint's safetensors files.

    Raises:
        ConfigError: a table of another width than the states, which can't be added to them.
    """
    if not wants_decoder(model):
        return
    from safetensors import safe_open

    for file in files:
        with safe_open(str(file), framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  (no mapping: it can't be iterated itself)
                if name != _TABLE and not name.endswith(f".{_TABLE}"):
                    continue
                table = tensors.get_tensor(name)
                if table.shape[-1] != model.config.hidden_size:
                    raise ConfigError(
                        f"{file}: {name} has width {table.shape[-1]}, the states have {model.config.hidden_size}; "
                        "DeBERTa's mask decoder adds the two.\nUse a checkpoint whose embeddings are as wide as its "
                        "states."
                    )
                words = model.get_input_embeddings().weight
                own = nn.Embedding.from_pretrained(table.to(words), freeze=False)
                model.base_model.embeddings.position_embeddings = own
                return


@contextmanager
def decoding(model: Any, attention_mask: Tensor) -> Iterator[None]:
    """While open, a forward of the base model ends with the decoder's states instead of the last layer's.

    Args:
        attention_mask: [R, T]; positions are counted from it, so that padding on either side changes nothing.

    Raises:
        ConfigError: rows longer than the position table.
    """
    table = model.base_model.embeddings.position_embeddings
    positions = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
    if table is not None and attention_mask.shape[-1] > table.weight.shape[0]:
        raise ConfigError(
            f"a row of {attention_mask.shape[-1]} tokens, but the model knows {table.weight.shape[0]} positions; "
            "lower task.max_length"
        )
    last = model.base_model.encoder.layer[-1]
    once = last.forward

    def twice(states: Tensor, mask: Tensor, **given: Any) -> Any:
        given["query_states"] = states if table is None else states + table(positions)
        given["query_states"] = once(states, mask, **given)[0]
        return once(states, mask, **given)

    last.forward = twice
    try:
        yield
    finally:
        del last.forward


__all__ = ["attach_positions", "decoding", "wants_decoder"]
