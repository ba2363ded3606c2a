"""Toy tokenizers of the families that behave differently around masks and words."""

from __future__ import annotations

from typing import Any

WORDS = [
    *("Yes", "No", "Maybe", "true", "false", "neither", "True", "False", "great", "terrible", "good", "bad"),
    *("b", "2", "It", "was", "question", "answer"),
]
CORPUS = [f"it {word} . {word} , {word} ? {word} ( {word} )" for word in WORDS] * 20


def _fast(tokenizer: Any, bert: bool, **more: Any) -> Any:
    from transformers import PreTrainedTokenizerFast

    if bert:
        names: dict[str, Any] = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]"}
        names |= {"sep_token": "[SEP]", "mask_token": "[MASK]"}
    else:
        names = {"pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>"}
        names |= {"bos_token": "<s>", "eos_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names, **more)


def _bert_post(tokenizer: Any) -> Any:
    from tokenizers import processors

    return processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )


BERT_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def wordpiece() -> Any:
    """BERT-like."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer(lowercase=False)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=BERT_SPECIAL, show_progress=False)
    t.train_from_iterator(CORPUS, trainer)
    t.post_processor = _bert_post(t)
    return _fast(t, True, model_input_names=["input_ids", "token_type_ids", "attention_mask"])


def byte_bpe(prefix: bool = False, causal: str = "") -> Any:
    """RoBERTa-like (mask with lstrip); `causal` "bos" or "plain": GPT-like, with or without a start token."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors, trainers

    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<s>", "</s>", "<pad>", "<unk>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    t.train_from_iterator(CORPUS, trainer)
    if causal:
        if causal == "bos":
            t.post_processor = processors.TemplateProcessing(
                single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 0)]
            )
        return _fast(t, False)
    t.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0), add_prefix_space=prefix)
    return _fast(t, False, mask_token=AddedToken("<mask>", lstrip=True, special=True))


def unigram() -> Any:
    """ALBERT-like: Metaspace, and the special tokens are pieces of the model itself, with the best score."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,?!()[]<>/\"'-"
    vocab = [(name, 0.0) for name in BERT_SPECIAL]
    vocab += [("▁", -3.0)] + [(c, -6.0) for c in letters] + [(f"▁{c}", -7.0) for c in letters]
    vocab += [(f"▁{w}", -5.0) for w in WORDS if len(w) > 1]
    t = Tokenizer(models.Unigram(vocab, unk_id=1))
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.post_processor = _bert_post(t)
    return _fast(t, True, model_input_names=["input_ids", "token_type_ids", "attention_mask"])


def characters() -> Any:
    """One piece a character, white space among them."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    letters = " abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,?!()[]<>/\"'-"
    vocab = {c: i for i, c in enumerate([*BERT_SPECIAL, *letters])}
    t = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    t.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    t.post_processor = _bert_post(t)
    return _fast(t, True)


def lone_space() -> Any:
    """Words are whole pieces, and the space before them is a piece of its own."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    vocab = {w: i for i, w in enumerate([*BERT_SPECIAL, " ", ".", *WORDS, "a"])}
    t = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    t.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s|\w+|[^\s\w]"), "isolated")
    t.post_processor = _bert_post(t)
    return _fast(t, True)


MASKED = {
    "wordpiece": wordpiece,
    "byte_bpe": byte_bpe,
    "byte_bpe_prefix": lambda: byte_bpe(prefix=True),
    "unigram": unigram,
    "characters": characters,
}
