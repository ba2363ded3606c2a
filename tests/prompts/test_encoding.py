import itertools
import logging

import pytest

from fewnlu.errors import ConfigError, DataError
from fewnlu.prompts.encoding import EncodedSet, Encoder, _level, collate, length_sorted_batches, shared
from fewnlu.prompts.verbalizer import resolve
from fewnlu.tasks.task import Pattern, Row
from tests.prompts.toys import MASKED, byte_bpe, characters, unigram, wordpiece

TOKENIZERS = {name: make() for name, make in MASKED.items()}
HOSTILE = 'x [MASK] <mask> </s> <s> [SEP] [CLS] <pad> [PAD] y"'


def row(**fields):
    return Row("r1", fields, None, "r1")


def encode(tokenizer, template, length=64, kind="masked", **fields):
    encoded = Encoder(tokenizer, kind, Pattern(0, template, {"a": ("Yes",)}), length).encode(row(**fields))
    return encoded, tokenizer.convert_ids_to_tokens(encoded.input_ids)


def n_masks(tokenizer, encoded):
    return sum(i == tokenizer.mask_token_id for i in encoded.input_ids)


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("text", ["word " * 2000, HOSTILE, HOSTILE * 40, "", " \n", "é 你好 😀 " * 100])
def test_i030_exactly_the_declared_masks(name, text):
    t = TOKENIZERS[name]
    for template, masks in {
        "{t~} Q: [MASK] .": 1,
        "[MASK], {t~}": 1,
        "{t~} ‖ [MASK] x [MASK]": 2,
        "{t~}[MASK]{t~}": 1,
    }.items():
        encoded, _ = encode(t, template, t=text)
        assert n_masks(t, encoded) == masks == len(encoded.read)
        assert all(encoded.input_ids[i] == t.mask_token_id for i in encoded.read)
        assert len(encoded.input_ids) <= 64
        for special in (t.cls_token_id, t.sep_token_id, t.pad_token_id):
            assert encoded.input_ids[1:-1].count(special) <= 2  # what the pair template itself puts there


def without_separator():
    """A masked model's tokenizer that puts nothing between two sequences, as the embedded masked model's."""
    from tokenizers import processors

    t = byte_bpe()
    t.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 0)]
    )
    return t


@pytest.mark.parametrize("template", ["{a~} ‖ {b~} [MASK] .", "{a~} ? ‖ [MASK], {b~}", "{a~} ‖ {b~}"])
def test_sequences_with_nothing_between_are_one_text_with_a_space(template):
    t = without_separator()
    words = {"a": "It was a great movie", "b": "the question"}
    pattern = Pattern(0, template, {"a": ("Yes",)}) if "[MASK]" in template else Pattern(-1, template, {})
    one = Pattern(pattern.id, template.replace(" ‖", ""), pattern.verbalizer)
    apart, whole = (Encoder(t, "masked", p, 64).encode(row(**words)) for p in (pattern, one))
    assert apart == whole
    separated = Encoder(byte_bpe(), "masked", pattern, 64).encode(row(**words))
    assert len(separated.input_ids) > len(apart.input_ids)


def test_label_words_behind_such_a_boundary_take_their_spaced_form():
    p = Pattern(0, "{t} ‖ [MASK], x", {"a": ("b",), "b": ("2",)})
    t = without_separator()
    assert [t.convert_ids_to_tokens(ids) for ids in resolve(t, p)] == [["Ġb"], ["Ġ2"]]
    t = byte_bpe()
    assert [t.convert_ids_to_tokens(ids) for ids in resolve(t, p)] == [["b"], ["2"]]


def test_a_long_row_with_nothing_to_cut_is_refused():
    """Fields that may be shortened but are empty can give nothing: the row must not pass as if it had been cut."""
    t = TOKENIZERS["wordpiece"]
    with pytest.raises(DataError, match=r"needs \d+ tokens; \d+ cannot be cut, its shortenable fields have 0"):
        encode(t, "{passage~} Question: {question} ? [MASK] .", length=16, passage="", question="great " * 30)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_i030_row_that_cannot_fit_is_an_error(name):
    with pytest.raises(DataError) as error:
        encode(TOKENIZERS[name], "{t} [MASK] {u~}", length=32, t="word " * 200, u="a")
    message = str(error.value)
    assert "'r1'" in message and "pattern 0" in message and "task.max_length is 32" in message


def test_i030_only_shortenable_fields_are_cut():
    t = TOKENIZERS["wordpiece"]
    encoded, tokens = encode(t, "It was {fixed} ? {t~} question [MASK] .", fixed="Yes No", t="great " * 500)
    assert tokens[:6] == ["[CLS]", "It", "was", "Yes", "No", "?"]
    assert tokens[-4:] == ["question", "[MASK]", ".", "[SEP]"]
    assert len(tokens) == 64 and encoded.shortened == 500 - 54


def test_i031_either_text_may_be_the_long_one(caplog):
    t = TOKENIZERS["wordpiece"]
    with caplog.at_level(logging.WARNING):
        encoded, tokens = encode(t, "{a~} ‖ [MASK], {b~}", a="good " * 5, b="bad " * 500)
    assert len(tokens) == 64 and tokens.count("good") == 5 and tokens.count("bad") == 54
    assert encoded.token_type_ids == [0] * 7 + [1] * 57
    assert not caplog.records


def test_longest_field_is_cut_first_and_no_field_vanishes():
    t = TOKENIZERS["wordpiece"]
    _, tokens = encode(t, "{a~} {b~} [MASK]", 23, a="good " * 500, b="bad " * 500)
    assert (tokens.count("good"), tokens.count("bad")) == (10, 10)
    _, tokens = encode(t, "{a~} {b~} [MASK]", 22, a="good " * 500, b="bad " * 500)
    assert (tokens.count("good"), tokens.count("bad")) == (10, 9)  # ties go to the later field
    _, tokens = encode(t, "{a~} {b~} [MASK]", 8, a="good", b="bad " * 500)
    assert (tokens.count("good"), tokens.count("bad")) == (1, 4)


def test_levelling_equals_taking_one_token_at_a_time():
    for lengths in itertools.product([0, 1, 2, 5, 9], repeat=3):
        for budget in range(sum(lengths) + 1):
            keep = list(lengths)
            for _ in range(sum(lengths) - budget):
                keep[max(range(3), key=lambda i: (keep[i], i))] -= 1
            assert _level(lengths, budget) == keep


def test_i032_question_and_options_stay_whole():
    t = byte_bpe(causal="bos")
    template = "{passage~} question: {q} Yes or No? answer: [MASK]"
    encoded, tokens = encode(t, template, 96, "causal", passage="great " * 3000, q="It was true?")
    text = "".join(tokens).replace("Ġ", " ")
    assert text.endswith("question: It was true? Yes or No? answer:") and encoded.shortened > 2900
    assert len(tokens) == 96 and tokens.count("Ġgreat") > 0


@pytest.mark.parametrize("template", ["It was [MASK].", "It was[MASK].", "It was   [MASK]."])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_i033_no_lone_space_before_a_mask(template, name):
    t = TOKENIZERS[name]
    encoded, tokens = encode(t, template)
    before = tokens[encoded.read[0] - 1]
    assert n_masks(t, encoded) == 1 and before.strip("Ġ▁ ") and not before.endswith((" ", "Ġ", "▁"))
    assert tokens[encoded.read[0] + 1] == "."  # and no word start is made up behind it


@pytest.mark.parametrize("name", TOKENIZERS)
def test_i033_mask_at_the_start_of_a_sequence(name):
    encoded, tokens = encode(TOKENIZERS[name], " [MASK], said the text.")
    assert encoded.read == [1] and tokens[2] == ","


def test_text_behind_a_mask_keeps_its_space():
    for name, start in {"byte_bpe": "Ġwas", "unigram": "▁was", "wordpiece": "was"}.items():
        _, tokens = encode(TOKENIZERS[name], "[MASK] was")
        assert tokens[2] == start


def test_i036_merge_across_prompt_and_answer():
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    from fewnlu.prompts.verbalizer import resolve

    pieces = ["<unk>", *"aAnswer: CD", " C", " D", ": C"]
    vocab = {p: i for i, p in enumerate(dict.fromkeys(pieces))}
    model = models.BPE(vocab, [(" ", "C"), (" ", "D"), (":", " C")], unk_token="<unk>")
    t = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), unk_token="<unk>")
    p = Pattern(0, "{t}Answer: [MASK]", {"c": ("C",), "d": ("D",)})
    assert t.tokenize("Answer: C")[-1] == ": C"
    encoded = Encoder(t, "causal", p, 64).encode(row(t="a"))
    assert t.convert_ids_to_tokens(encoded.input_ids)[-1] == ":"
    assert [t.convert_ids_to_tokens(ids) for ids in resolve(t, p, kind="causal")] == [[" C"], [" D"]]


@pytest.mark.parametrize("causal", ["bos", "plain"])
def test_i037_space_between_prompt_and_answer_does_not_matter(causal):
    t = byte_bpe(causal=causal)
    spaced, tokens = encode(t, "{t} It was [MASK].", kind="causal", t="good")
    glued, _ = encode(t, "{t} It was[MASK].", kind="causal", t="good")
    assert spaced == glued and tokens[-1] == "Ġwas"
    assert tokens.count("<s>") == (1 if causal == "bos" else 0)  # as the tokenizer itself has it
    assert spaced.read == [len(tokens) - 1] and "</s>" not in tokens


def test_causal_joins_the_sequences_and_drops_what_follows():
    _, tokens = encode(byte_bpe(causal="plain"), "{t} ‖ It was [MASK] . No", kind="causal", t="Yes")
    assert "".join(tokens) == "YesĠItĠwas"


def test_causal_refuses_a_field_behind_the_mask():
    with pytest.raises(ConfigError, match=r"\{t\} stands after the mask"):
        encode(byte_bpe(causal="plain"), "It was {u} [MASK] {t}", kind="causal", t="x", u="y")


def test_special_tokens_follow_the_tokenizer():
    _, tokens = encode(TOKENIZERS["byte_bpe"], "good ‖ [MASK] bad")
    assert (tokens[0], tokens[-1]) == ("<s>", "</s>") and tokens.count("</s>") == 3
    encoded, tokens = encode(TOKENIZERS["unigram"], "good [MASK] bad")
    assert (tokens[0], tokens[-1]) == ("[CLS]", "[SEP]") and set(encoded.token_type_ids) == {0}
    assert encode(TOKENIZERS["characters"], "good [MASK]")[0].token_type_ids is None


def test_unusable_models_and_patterns_are_refused():
    with pytest.raises(ConfigError, match="no mask token"):
        encode(byte_bpe(causal="plain"), "{t} [MASK]", t="x")
    with pytest.raises(ConfigError, match="several masks"):
        encode(wordpiece(), "{t} [MASK*]", t="x")
    with pytest.raises(ConfigError, match="beside"):
        encode(wordpiece(), "{t} [MASK] [MASK*]", t="x")
    with pytest.raises(ConfigError, match="kind of model"):
        encode(wordpiece(), "{t} [MASK]", kind="seq2seq", t="x")


def test_text_is_the_same_with_and_without_fields():
    for t in (unigram(), byte_bpe(), characters()):
        whole, _ = encode(t, "good, bad. It was [MASK] .")
        parts, _ = encode(t, "{a~}, {b~}. It was [MASK] .", a="good", b="bad")
        assert whole == parts


def test_rows_encoded_together_or_apart_are_the_same():
    encoder = Encoder(unigram(), "masked", Pattern(0, "{t~} It was [MASK] .", {}), 24)
    rows = [Row(str(i), {"t": "good " * i}, None, str(i)) for i in range(40)]
    assert encoder.encode_rows(rows) == [encoder.encode(r) for r in rows]


def test_rows_are_tokenised_once(monkeypatch):
    encoder = Encoder(wordpiece(), "masked", Pattern(0, "{t} [MASK]", {}), 24)
    done = []
    whole = Encoder.encode_rows
    monkeypatch.setattr(Encoder, "encode_rows", lambda self, rows: done.extend(rows) or whole(self, rows))
    rows = [
        Row("0", {"t": "good"}, "a", "0"),
        Row("1", {"t": "bad"}, "a", "1"),
        Row("0", {"t": "No"}, "a", "0"),
    ]
    encoded = EncodedSet(encoder)
    first = encoded(rows)
    assert len(done) == 3 and encoded(rows[::-1]) == first[::-1] and len(done) == 3
    assert first[0].input_ids != first[2].input_ids  # ids repeat between files, texts decide


def test_shared_sets():
    t, p = wordpiece(), Pattern(0, "{t} [MASK]", {})
    assert shared(t, "masked", p, 24) is shared(t, "masked", p, 24)
    assert shared(t, "masked", p, 24) is not shared(t, "masked", p, 25)


def test_collate_pads_to_the_longest():
    t = TOKENIZERS["wordpiece"]
    encoder = Encoder(t, "masked", Pattern(0, "{t} [MASK]", {}), 24)
    batch = collate(encoder.encode_rows([row(t="good"), row(t="good bad good")]), t.pad_token_id)
    assert batch["input_ids"].shape == (2, 6) == batch["token_type_ids"].shape
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 0, 0], [1] * 6]
    assert batch["read"].tolist() == [[2], [4]] and batch["input_ids"][0, 4:].tolist() == [t.pad_token_id] * 2
    assert "token_type_ids" not in collate([encode(byte_bpe(), "[MASK]")[0]], 0)


def test_length_sorted_batches():
    lengths = [3, 9, 1, 9, 4, 200]
    batches = length_sorted_batches(lengths, 3, 20)
    assert batches == [[5], [1, 3], [4, 0, 2]]
    assert length_sorted_batches([], 3, 20) == []
    with pytest.raises(ConfigError):
        length_sorted_batches([1], 0, 20)


def test_i038_a_start_token_in_the_template_is_not_a_second_one():
    tokenizer = byte_bpe(causal="bos")
    encoded, tokens = encode(tokenizer, "<s> {t} It was [MASK]", kind="causal", t="<s> good")
    assert encoded.input_ids.count(tokenizer.bos_token_id) == 1 and tokens[0] == "<s>"
