"""Causal models that were taught to fill masks: every position sees all others, a token is read one place before it.

LLM2Vec (BehnamGhader et al. 2024) calls the training masked next-token prediction. The head of a causal model is used
to the state *before* a token, so the score of the token at i comes from position i − 1. Moving all states up by one
makes that invisible to methods and readers: the state at a mask is the one that tells what stands there. A folder of
such a model is one of transformers with ``"fewnlu_reading": "masked_next"`` in its config.json and a tokenizer with a
mask token.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fewnlu.backbones.kind import MASKED_NEXT, READING

MASK = "mask_embedding"  # the learned embedding's name in an adapter file
SCALE = 2.0  # of the low-rank updates: lora_alpha / r, as `fewnlu.backbones.adapter` makes them


def reads_masks(config: Any) -> bool:
    """Whether a config (transformers' object, or the parsed file) is of such a model."""
    value = config.get(READING) if isinstance(config, dict) else getattr(config, READING, None)
    return value == MASKED_NEXT


def all_see_all(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Attention mask [R, T] of 1 and 0 → additive [R, 1, T, T] by which every position sees all text."""
    hidden = torch.finfo(dtype).min * (1 - mask.to(dtype))
    return hidden[:, None, None, :].expand(-1, 1, mask.shape[1], -1).contiguous()


def moved_up(states: Tensor) -> Tensor:
    """[R, T, H]: the state of each position becomes the one before it; the first keeps its own."""
    return torch.cat([states[:, :1], states[:, :-1]], dim=1)


def build(base: Path, adapter: Path, target: Path, mask_token: str, start_token: str) -> None:
    """Write the folder of a masked model: the base's weights with the adapter merged in.

    Args:
        base: folder of the causal model that the adapter was trained on.
        adapter: safetensors file with ``*.lora_A.default.weight`` [r, in], ``*.lora_B.default.weight`` [out, r] and
            ``mask_embedding`` [E].
        target: folder to make.
        mask_token: an unused token of the vocabulary; its embedding becomes the learned one.
        start_token: put before every text, so that a first token can be read.

    Raises:
        KeyError: the adapter is of another model.
    """
    from safetensors.torch import load_file, save_file
    from transformers import AutoTokenizer

    target.mkdir(parents=True)
    state, own = load_file(base / "model.safetensors"), load_file(adapter)
    for name, down in own.items():
        if ".lora_A." in name:
            up = own[name.replace(".lora_A.", ".lora_B.")]
            weight = state[name.split(".lora_A.")[0] + ".weight"]
            weight += SCALE * (up.float() @ down.float()).to(weight.dtype)
    tokenizer = AutoTokenizer.from_pretrained(base, local_files_only=True)
    _teach(tokenizer, mask_token, start_token)
    (words,) = [n for n in state if n.endswith("embed_tokens.weight")]
    state[words][tokenizer.mask_token_id] = own[MASK].to(state[words].dtype)
    save_file(state, target / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save_pretrained(target)
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    (target / "config.json").write_text(json.dumps({**config, READING: MASKED_NEXT}, indent=1), encoding="utf-8")
    for name in ("generation_config.json", "LICENSE"):
        if (base / name).is_file():
            shutil.copy(base / name, target / name)


def _teach(tokenizer: Any, mask_token: str, start_token: str) -> None:
    """Give a causal tokenizer a mask, a pad and a start token out of its own vocabulary."""
    from tokenizers import processors

    known = tokenizer.get_vocab()
    missing = [token for token in (mask_token, start_token) if token not in known]
    if missing:
        raise KeyError(f"no token {missing[0]!r} in the vocabulary")
    tokenizer.mask_token = mask_token
    tokenizer.cls_token = tokenizer.pad_token = start_token
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start_token} $A", pair=f"{start_token} $A $B", special_tokens=[(start_token, known[start_token])]
    )
