"""Tiny causal models and toy tokenizers for decoders."""

from __future__ import annotations

from functools import cache
from typing import Any

from tests.tiny import tiny_model, tiny_tokenizer


@cache
def backbone(family: str = "llama") -> Any:
    """A random tiny causal model with its tokenizer."""
    import torch

    from fewnlu.backbones.backbone import Backbone

    torch.set_num_threads(1)
    tokenizer = tiny_tokenizer(family)
    tokenizer.pad_token = tokenizer.eos_token
    return Backbone(tiny_model(family, tokenizer), tokenizer, "causal", "tiny")


@cache
def backend(family: str = "llama") -> Any:
    from fewnlu.decoding.transformers import TransformersBackend

    return TransformersBackend(backbone(family))


@cache
def metaspace() -> Any:
    """SentencePiece-like: ▁ marks a word's start; bytes are spelt <0xNN>."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = ["<unk>", "<s>", "</s>", "▁P", "izza", "P", "i", "z", "a", "▁", "A", "n", "s", "w", "e", "r", ":", "▁A"]
    pieces += ["▁An", "▁Ans", "sw", "er", "▁Answ", "▁Answer", "iz", "za", "<0xC3>", "<0xA9>"]
    merges = [("▁", "P"), ("▁", "A"), ("▁A", "n"), ("▁An", "s"), ("e", "r"), ("i", "z"), ("z", "a"), ("iz", "za")]
    merges += [("▁Ans", "w"), ("▁Answ", "er")]
    model = models.BPE({p: i for i, p in enumerate(pieces)}, merges, unk_token="<unk>", byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<unk>", "<s>", "</s>")])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
