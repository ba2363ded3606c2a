"""A backbone seen through edited word embeddings: what P-tuning's slots and word dropout have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


class View:
    """Stands for a backbone wherever its states are read; everything but `hidden` is the backbone's own.

    Args:
        backbone: `fewnlu.backbones.Backbone`.
        edit: (ids [R, T], word embeddings [R, T, E]) -> edited embeddings. Ids may be negative (trainable slots, see
            `fewnlu.prompts.encoding`); the model is only ever asked for words that it has.
    """

    def __init__(self, backbone: Any, edit: Callable[[Tensor, Tensor], Tensor]) -> None:
        self._backbone, self._edit = backbone, edit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backbone, name)

    def hidden(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        prefix: Tensor | None = None,
        decoder: bool = True,
    ) -> Tensor:
        """As `Backbone.hidden`; `prefix` holds states of unedited rows and is not used."""
        embeds = self._edit(input_ids, self._backbone.embed(input_ids.clamp(min=0)))
        return self._backbone.hidden(
            None, attention_mask, token_type_ids=token_type_ids, inputs_embeds=embeds, decoder=decoder
        )
