"""Tiny random language models with real tokenizers, built on the spot: enough to run everything, too small
to learn."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

FAMILIES = ("bert", "roberta", "albert", "deberta_v2", "llama", "gpt2")
MORE_FAMILIES = ("distilbert", "electra", "modernbert")
CAUSAL = ("llama", "gpt2")
TAUGHT = "llama_masked"  # a causal model that was taught to fill masks
HIDDEN, LAYERS, HEADS, POSITIONS = 32, 4, 4, 256

SENTENCES = [
    "yes no maybe true false great terrible good bad okay right wrong",
    "the movie was great and the acting was good , but the ending was terrible .",
    "the food is bad and the service was okay ; we will not come back .",
    "a man is playing a guitar on the street while people are walking by .",
    "question : did the dog eat the cake ? answer : yes , it did .",
    "does the word bank have the same meaning in both sentences ? no .",
    "the premise says that the city was founded in 1850 by two brothers .",
    "it is true that water boils at 100 degrees , and false that ice is hot .",
    "because it rained , the children stayed at home and read a book .",
    "what was the cause of this ? the road was wet , so the car could not stop .",
    "He thought that She would be late ; They waited for an hour anyway .",
    "In summary , the review says : All in all , it was bad .",
]


def tiny_tokenizer(family: str, vocab_size: int = 400) -> Any:
    """A WordPiece (BERT-like) or byte-level BPE (RoBERTa, GPT-2, Llama) tokenizer that knows `SENTENCES`."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    names: dict[str, str]
    if family in ("roberta", "modernbert", *CAUSAL):
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        if family in CAUSAL:
            names = {"eos_token": "<|end|>"}
            special = ["<|end|>"]
        else:
            names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
            names |= {"cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}
            special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator([f" {sentence}" for sentence in (*SENTENCES, *[SENTENCES[0]] * 9)], trainer)
    else:
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        words = sorted({word for sentence in SENTENCES for word in sentence.lower().split()})
        letters = string.ascii_lowercase + string.digits + string.punctuation
        # Listed, not trained: the WordPiece trainer gives another vocabulary at each call.
        pieces = dict.fromkeys([*special, *letters, *(f"##{letter}" for letter in letters), *words])
        tokenizer = Tokenizer(models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        names = {f"{token[1:-1].lower()}_token": token for token in special}
        tokenizer.add_special_tokens(special)
    if family not in CAUSAL:
        first, last = names["cls_token"], names["sep_token"]
        double = f" {last}:0" if family == "roberta" else ""
        types = 0 if family in ("roberta", "modernbert") else 1
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first}:0 $A:0 {last}:0",
            pair=f"{first}:0 $A:0 {last}:0{double} $B:{types} {last}:{types}",
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in (first, last)],
        )
    inputs = ["input_ids", "attention_mask"]
    if family in ("bert", "albert", "electra", "deberta_v2"):
        inputs.insert(1, "token_type_ids")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=POSITIONS - 4, model_input_names=inputs, **names
    )


def tiny_model(family: str, tokenizer: Any, surplus: int = 0, seed: int = 0, **config: Any) -> Any:
    """A random model of `family` with its LM head, in eval mode, with biases and norms moved off their
    defaults.

    Args:
        surplus: output rows beyond the tokenizer's words.
        config: overrides of the family's config.
    """
    import torch
    import transformers as tf

    vocabulary = len(tokenizer) + surplus
    common: dict[str, Any] = {"vocab_size": vocabulary, "pad_token_id": tokenizer.pad_token_id}
    bert = common | {
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": 2 * HIDDEN,
        "max_position_embeddings": POSITIONS,
    }
    causal = bert | {"pad_token_id": None, "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id}
    gpt2 = {"n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS, "n_positions": POSITIONS}
    distil = {"dim": HIDDEN, "n_layers": LAYERS, "n_heads": HEADS, "hidden_dim": 2 * HIDDEN}
    deberta = bert | {"relative_attention": True, "position_buckets": 8, "norm_rel_ebd": "layer_norm"}
    deberta |= {"pos_att_type": ["p2c", "c2p"], "share_att_key": True, "position_biased_input": False}
    deberta |= {"conv_kernel_size": 3, "conv_act": "gelu", "type_vocab_size": 0}
    special = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id")}
    modern = {
        "cls_token_id": tokenizer.cls_token_id,
        "sep_token_id": tokenizer.sep_token_id,
        "local_attention": 8,
    }
    families: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "bert": (tf.BertConfig, tf.BertForMaskedLM, bert),
        "roberta": (tf.RobertaConfig, tf.RobertaForMaskedLM, bert | special | {"type_vocab_size": 1}),
        "albert": (tf.AlbertConfig, tf.AlbertForMaskedLM, bert | {"embedding_size": 16}),
        "deberta_v2": (tf.DebertaV2Config, tf.DebertaV2ForMaskedLM, deberta),
        "llama": (tf.LlamaConfig, tf.LlamaForCausalLM, causal | {"tie_word_embeddings": True}),
        "gpt2": (tf.GPT2Config, tf.GPT2LMHeadModel, causal | gpt2),
        "distilbert": (
            tf.DistilBertConfig,
            tf.DistilBertForMaskedLM,
            common | distil | {"max_position_embeddings": POSITIONS},
        ),
        "electra": (tf.ElectraConfig, tf.ElectraForMaskedLM, bert | {"embedding_size": 16}),
        "modernbert": (tf.ModernBertConfig, tf.ModernBertForMaskedLM, bert | special | modern),
    }
    config_class, model_class, values = families[family]
    torch.manual_seed(seed)
    model = model_class(config_class(**(values | config)))
    with torch.no_grad():  # so that a head without its bias or norm cannot pass for the whole
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
            elif "embed" in name or name.endswith(("wte.weight", "wpe.weight")):
                parameter.mul_(10)
    return model.eval()


def tiny_model_dir(folder: Path, family: str, surplus: int = 0, seed: int = 0, **config: Any) -> Path:
    """Save a tiny random model and its tokenizer as `folder/tiny-<family>` and return that.

    Args:
        family: one of `FAMILIES` or `MORE_FAMILIES`, or `TAUGHT`.
        surplus, seed, config: see `tiny_model`.
    """
    target = folder / f"tiny-{family}"
    if family == TAUGHT:
        return _taught(folder, target, seed)
    tokenizer = tiny_tokenizer(family)
    tiny_model(family, tokenizer, surplus, seed, **config).save_pretrained(target)
    tokenizer.save_pretrained(target)
    return target


def tiny_adapter(file: Path, base: Path, rank: int = 4) -> Path:
    """Write a random adapter for all projections of a causal model, with a mask embedding, as training leaves one."""
    import torch
    from safetensors.torch import load_file, save_file

    generator = torch.Generator().manual_seed(3)
    own = {"mask_embedding": torch.randn(HIDDEN, generator=generator)}
    for name, weight in load_file(base / "model.safetensors").items():
        if "_proj.weight" in name:
            stem, (out, inner) = name.removesuffix(".weight"), weight.shape
            own[f"{stem}.lora_A.default.weight"] = 0.1 * torch.randn(rank, inner, generator=generator)
            own[f"{stem}.lora_B.default.weight"] = 0.1 * torch.randn(out, rank, generator=generator)
    save_file({name: tensor.half().contiguous() for name, tensor in own.items()}, file)
    return file


def _taught(folder: Path, target: Path, seed: int) -> Path:
    from fewnlu.backbones.masked_next import build

    base = tiny_model_dir(folder, "llama", seed=seed)
    build(base, tiny_adapter(folder / "adapter.safetensors", base), target, "\u0100", "<|end|>")
    return target
