"""A language model as the methods see it: states, label-word scores, frozen layers, weights to go back to."""

from __future__ import annotations

import inspect
import warnings
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fewnlu.backbones.adapter import MARK
from fewnlu.backbones.enhanced_decoder import decoding, wants_decoder
from fewnlu.backbones.head import find_head, parts_of, whole_head
from fewnlu.backbones.layers import answers_tuple, find_layers, lower_states, trace_lower, upper_only
from fewnlu.backbones.masked_next import all_see_all, moved_up, reads_masks
from fewnlu.backbones.precision import unmixed
from fewnlu.errors import ConfigError

Kind = Literal["masked", "causal"]

# DeBERTa's trainable relative-position table is read by every layer, so nothing below a cut is ever fixed.
_DEBERTA = ("deberta", "deberta-v2")


class Backbone(nn.Module):
    """A transformers model with its LM head, its tokenizer, and what few-shot training asks of both.

    Attributes:
        kind: 'masked' or 'causal'; `is_causal` says the same.
        tokenizer: pads on the right; a causal one without a pad token pads with its end-of-text token (masks
            are explicit, the vocabulary never grows).
        model: the AutoModelForMaskedLM or AutoModelForCausalLM.
        hidden_size, n_layers: as in the model's config.
        frozen: number of frozen bottom layers (then the embeddings are frozen, too); 0: all is trained.
        vocab_size: rows of the output matrix, which may be more than the tokenizer has words (`n_tokens`).
        weights_sha: identifies the weights that were read.
        uses_token_type: whether `token_type_ids` mean something to the model (spec 3.0: not for ALBERT and
            RoBERTa).
        adapter: whether LoRA is in its layers; then nothing else of the model is trained.
        moved_up: whether it is a causal model that fills masks (`fewnlu.backbones.masked_next`).
        has_decoder: whether the LM head reads the enhanced mask decoder (DeBERTa-v2 as Microsoft stores it).
    """

    def __init__(self, model: Any, tokenizer: Any, kind: Kind, weights_sha: str = "") -> None:
        super().__init__()
        self.model, self.tokenizer, self.kind, self.weights_sha = model, tokenizer, kind, weights_sha
        config = model.config
        self.model_type = str(config.model_type)
        self.hidden_size, self.n_layers = int(config.hidden_size), int(config.num_hidden_layers)
        self.frozen = 0
        self._checkpointing = False
        self._accepts = frozenset(inspect.signature(model.base_model.forward).parameters)
        self.uses_token_type = (
            kind == "masked"
            and "token_type_ids" in self._accepts
            and (getattr(config, "type_vocab_size", 0) or 0) > 1
            and self.model_type != "albert"
        )
        self.has_decoder = wants_decoder(model)
        self.moved_up = reads_masks(config)
        self._dtype = model.get_input_embeddings().weight.dtype
        self.adapter = any(MARK in name for name, _ in model.named_parameters())
        model.eval()
        self._first_position: int | None = None
        self._first_position = self._find_first_position()
        self._head = find_head(model)
        self._layers = find_layers(model)
        self._quiet: list[nn.Module] = []  # modules kept in eval mode
        self._lower_parameters: list[nn.Parameter] = []  # what the states entering layer `frozen` depend on
        self._prefix_exact, self._layers_answer_tuples = False, False
        self._initial: dict[str, Tensor] | None = None
        self.vocab_size = int(self._head.weight().shape[0] if self._head else config.vocab_size)
        self.n_tokens = len(tokenizer)
        self.eval()

    @property
    def is_causal(self) -> bool:
        """Whether a position sees only what stands before it."""
        return self.kind == "causal"

    @property
    def has_trained(self) -> bool:
        """Whether training may have begun: the initial state has been copied."""
        return self._initial is not None

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device

    def embed(self, input_ids: Tensor) -> Tensor:
        """Word embeddings of ids [R, T] → [R, T, E], to be edited and given to `hidden(inputs_embeds=…)`."""
        return self.model.get_input_embeddings()(input_ids)

    def hidden(
        self,
        input_ids: Tensor | None,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        prefix: Tensor | None = None,
        decoder: bool = True,
    ) -> Tensor:
        """Final states, [R, T, H].

        Args:
            input_ids: [R, T]; None where `inputs_embeds` or `prefix` is given (they go first).
            attention_mask: [R, T], 1 for text, 0 for padding on either side. Positions are counted from it,
                so that a row's states do not depend on how much padding it got (fault I039).
            token_type_ids: [R, T]; ignored unless `uses_token_type`.
            inputs_embeds: [R, T, E], word embeddings to use instead of the ids'.
            prefix: [R, T, H], what `prefix()` gave for these rows (same padding): only the layers from
                `frozen` on run.
            decoder: the states are for the LM head, which DeBERTa-v2 wants read through its enhanced mask decoder
                (spec 3.0; `fewnlu.backbones.enhanced_decoder`). A classifier says False and reads the plain last
                layer. No other family is changed by it.

        States at padded positions mean nothing.
        """
        if decoder and self.has_decoder:
            if prefix is not None:
                raise ValueError("DeBERTa's lower states depend on a trained table: there is no prefix to reuse")
            with decoding(self.model, attention_mask):
                return self.hidden(input_ids, attention_mask, token_type_ids, inputs_embeds, decoder=False)
        if prefix is not None:
            # The embeddings' output is thrown away; fed with the cached states the model builds masks and
            # positions.
            with upper_only(self._stack, self.frozen, prefix, self._layers_answer_tuples):
                return self._base(None, attention_mask, token_type_ids, prefix[..., : self._embedding_size()])
        return self._base(input_ids if inputs_embeds is None else None, attention_mask, token_type_ids, inputs_embeds)

    @torch.no_grad()
    def prefix(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """States that enter layer `frozen`, [R, T, H]: eval mode (frozen layers always are), no gradient.

        Worth keeping only where `prefix_is_fixed`.
        """
        if not self.frozen:
            raise ValueError("prefix() needs frozen layers (model_args.freeze_layers)")
        return lower_states(
            self._stack,
            self.frozen,
            lambda: self._base(input_ids, attention_mask, token_type_ids, None),
        )

    @property
    def prefix_is_fixed(self) -> bool:
        """Whether `prefix()` depends on nothing that training changes and `hidden(prefix=…)` proved exact."""
        if not (self.frozen and self._prefix_exact):
            return False
        bottom = [p for layer in self._stack[: self.frozen] for p in layer.parameters()]
        return not any(p.requires_grad for p in [*bottom, *self._lower_parameters])

    def logits(self, states: Tensor, token_ids: Tensor | None = None) -> Tensor:
        """LM-head scores of states gathered before the head.

        Args:
            states: [..., H], from `hidden`.
            token_ids: LongTensor [n]; only these rows of the output matrix are multiplied.

        Returns:
            [..., n], or [..., vocab_size] for None. Rows from `n_tokens` on belong to no word (fault I035):
            slice them off before a softmax over the vocabulary. In mixed precision the head is as exact as its
            weights, but for training on the whole vocabulary, where it would cost.
        """
        mixed = torch.is_autocast_enabled(states.device.type)
        if mixed and (token_ids is not None or not torch.is_grad_enabled()):
            with unmixed(states):
                return self._logits(states.to(self._dtype), token_ids)
        return self._logits(states, token_ids)

    def _logits(self, states: Tensor, token_ids: Tensor | None) -> Tensor:
        if self._head is not None:
            return self._head(states, token_ids)
        scores = whole_head(self.model, states)
        return scores if token_ids is None else scores.index_select(-1, token_ids)

    def freeze(self, n: int) -> None:
        """Freeze the embeddings (a tied LM head is one of them) and the bottom `n` layers; ends in eval mode.

        Trained tensors first go back to their initial values, so that freezing differently later is as if
        freshly loaded. DeBERTa as in FewNLU (spec 3.0): word embeddings, bottom layers and MLM head; the
        relative-position table, the convolution and the embedding LayerNorm stay trainable.

        Raises:
            ConfigError: more layers than there are, or layers that share their weights (ALBERT).
        """
        self._check_freeze(n)
        if self._initial is not None:
            self.restore()
        self._initial = None
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(parameter.is_floating_point() and (not self.adapter or MARK in name))
        self.frozen, self._quiet, self._lower_parameters, self._prefix_exact = 0, [], [], False
        if n and self.model_type in _DEBERTA:
            head = getattr(self.model, "lm_predictions", None) or self.model.cls
            parts = [self.model.get_input_embeddings(), *self._stack[:n], head]
            self._quiet = [m for layer in self._stack[:n] for m in layer.modules()]
            for part in parts:
                part.requires_grad_(False)
        elif n:
            self.eval()
            self._quiet, self._lower_parameters = trace_lower(self.model, self._stack, n, self._probe)
            self._layers_answer_tuples = answers_tuple(self._stack, n, self._probe)
            for parameter in self._lower_parameters:
                parameter.requires_grad_(False)
        self.frozen = n
        self._prefix_exact = bool(n) and self.model_type not in _DEBERTA and self._probe_prefix()
        self.train(self.training)

    def checkpoint(self, on: bool) -> None:
        """Compute activations again in the backward pass instead of keeping them: less memory, a third more time.

        Dropout repeats its draws, so results are the same.

        Raises:
            ConfigError: the architecture cannot.
        """
        if on and not self.model.supports_gradient_checkpointing:
            raise ConfigError(f"runtime.checkpointing=true: model type {self.model_type!r} cannot; set it to false")
        if on == self._checkpointing:
            return
        # transformers renames the pair in version 6 and warns about the old names from 5.24 on
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            if on:
                self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
                # Only the other kind needs embeddings with a gradient; their hook can't be sent to another process.
                self.model.disable_input_require_grads()
            else:
                self.model.gradient_checkpointing_disable()
        self._checkpointing = on

    def train(self, mode: bool = True) -> Backbone:
        """As in torch, but frozen layers and what comes before them stay in eval mode (no dropout).

        In DeBERTa, whose prefixes are not kept, only the frozen layers do: its embeddings' dropout stays on.
        """
        if mode:
            self.initial_state()  # before anything can be trained
        super().train(mode)
        for module in self._quiet:
            module.training = False
        return self

    def initial_state(self) -> dict[str, Tensor]:
        """The trainable tensors as they were read; copied once, on the CPU, before the first training."""
        if self._initial is None:
            self._initial = {name: p.detach().to("cpu", copy=True) for name, p in self._trainable()}
        return self._initial

    def restore(self) -> None:
        """Put the trainable tensors back to their initial values, bit for bit and in place; drops gradients.

        The first call only takes the copy: call it at the start of each run.
        """
        self.load_snapshot(self.initial_state())
        for parameter in self.model.parameters():
            parameter.grad = None

    def snapshot(self) -> dict[str, Tensor]:
        """A detached copy of the trainable tensors, for the best weights of a run."""
        return {name: p.detach().clone() for name, p in self._trainable()}

    @torch.no_grad()
    def load_snapshot(self, state: dict[str, Tensor]) -> None:
        """Copy a `snapshot()` back, in place.

        Raises:
            ValueError: the snapshot is of another freezing.
        """
        own = dict(self._trainable())
        if own.keys() != state.keys():
            differing = sorted(own.keys() ^ state.keys())
            raise ValueError(f"snapshot of other trainable tensors than the backbone has: {', '.join(differing[:4])} …")
        for name, parameter in own.items():
            parameter.copy_(state[name])

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which trains and never goes back to the initial weights."""
        return {**self.__dict__, "_head": self._head is not None, "_initial": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._head = parts_of(self.model) if state["_head"] else None

    def _trainable(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]

    @property
    def _stack(self) -> nn.ModuleList:
        assert self._layers is not None  # _check_freeze lets nothing be frozen otherwise
        return self._layers

    def _embedding_size(self) -> int:
        return int(self.model.get_input_embeddings().weight.shape[-1])

    def _base(
        self,
        input_ids: Tensor | None,
        mask: Tensor,
        token_type_ids: Tensor | None,
        inputs_embeds: Tensor | None,
    ) -> Tensor:
        inputs: dict[str, Any] = {"attention_mask": all_see_all(mask, self._dtype) if self.moved_up else mask}
        if input_ids is not None:
            inputs["input_ids"] = input_ids
        else:
            inputs["inputs_embeds"] = inputs_embeds
        if (first := self._first_position) is not None:
            counted = mask.long().cumsum(-1) * mask.long() + first - 1
            inputs["position_ids"] = counted.clamp(min=max(first - 1, 0))
        if self.uses_token_type and token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        if "use_cache" in self._accepts:
            inputs["use_cache"] = False
        states: Tensor = self.model.base_model(**inputs)[0]
        return moved_up(states) if self.moved_up else states

    @torch.no_grad()
    def _find_first_position(self) -> int | None:
        """The number that the model gives a row's first token; None where it can't be told positions.

        RoBERTa and its kin begin at padding_idx + 1, each with code of its own, so it is tried, not listed: an
        unpadded row must come out the same with our positions as with the model's.
        """
        if "position_ids" not in self._accepts:
            return None
        pad = self.model.config.pad_token_id
        ids = torch.tensor([[i for i in range(4) if i != pad][:3]], device=self.device)
        mask = torch.ones_like(ids)
        want = self._base(ids, mask, None, None)
        for first in (0, *([pad + 1] if pad is not None else [])):
            self._first_position = first
            try:
                got = self._base(ids, mask, None, None)
            except (IndexError, RuntimeError):
                continue
            if torch.allclose(got, want, rtol=0, atol=1e-5 if got.dtype == torch.float32 else 1e-2):
                return first
        return None

    def _check_freeze(self, n: int) -> None:
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise ConfigError(f"model_args.freeze_layers={n!r}: expected an integer from 0 to {self.n_layers}")
        if n and self.model_type == "albert":
            raise ConfigError(
                f"model_args.freeze_layers={n}: ALBERT's {self.n_layers} layers share one set of weights, so "
                "none can be frozen alone.\nSet model_args.freeze_layers=0."
            )
        if n and self._layers is None:
            raise ConfigError(
                f"model_args.freeze_layers={n}: the layers of model type {self.model_type!r} were not found"
                ".\n"
                "Set model_args.freeze_layers=0."
            )
        if n > self.n_layers:
            raise ConfigError(
                f"model_args.freeze_layers={n}: this model has {self.n_layers} layers; choose 0 to {self.n_layers}."
            )

    def _probe_inputs(self) -> tuple[Tensor, Tensor, Tensor | None]:
        ids = torch.tensor([[1, 2, 3], [2, 1, 0]], device=self.device)
        mask = torch.tensor([[1, 1, 1], [1, 1, 0]], device=self.device)
        return ids, mask, torch.zeros_like(ids) if self.uses_token_type else None

    def _probe(self) -> Tensor:
        return self._base(*self._probe_inputs(), None)

    @torch.no_grad()
    def _probe_prefix(self) -> bool:
        """Whether reuse is exact for this architecture: tried on a few tokens, not believed from a list."""
        was, inputs = self.training, self._probe_inputs()
        self.eval()
        try:
            full, reused = self.hidden(*inputs), self.hidden(*inputs, prefix=self.prefix(*inputs))
        except (RuntimeError, TypeError, ValueError):
            return False
        finally:
            super().train(was)
        return bool(torch.allclose(full, reused, rtol=0, atol=1e-5 if full.dtype == torch.float32 else 1e-2))
