import pytest

from fewnlu.errors import ConfigError
from fewnlu.prompts.template import parse
from fewnlu.prompts.verbalizer import resolve, word_context
from fewnlu.tasks.task import Pattern
from tests.prompts.toys import MASKED, byte_bpe, characters, lone_space, unigram, wordpiece


def pattern(template="{t} It was [MASK] .", **words):
    words = words or {"neg": ("terrible",), "pos": ("great",)}
    return Pattern(3, template, {k: (v,) if isinstance(v, str) else v for k, v in words.items()})


def tokens(tokenizer, p, **more):
    return [tokenizer.convert_ids_to_tokens(ids) for ids in resolve(tokenizer, p, **more)]


def test_i026_word_takes_its_spaced_form():
    t = byte_bpe()
    assert len(t("terrible", add_special_tokens=False)["input_ids"]) > 1
    assert tokens(t, pattern()) == [["Ġterrible"], ["Ġgreat"]]


def test_i026_word_of_several_pieces_is_an_error_naming_word_pieces_and_model():
    t = byte_bpe()
    t.name_or_path = "toy-roberta"
    with pytest.raises(ConfigError) as error:
        resolve(t, pattern(neg="abominable", pos="great"))
    message = str(error.value)
    assert "task.patterns.3.verbalizer.neg" in message and "'abominable'" in message and "toy-roberta" in message
    assert "(a b o m" in message


def test_i028_labels_with_one_start_are_refused_naming_both():
    with pytest.raises(ConfigError, match=r"'neu' and 'neg'|'neg' and 'neu'"):
        resolve(characters(), pattern(neu="neutraal", neg="negatief"))


def test_i028_labels_with_one_piece_are_refused_naming_both():
    t = wordpiece()
    t.backend_tokenizer.normalizer = __import__("tokenizers").normalizers.Replace("good", "bad")
    with pytest.raises(ConfigError) as error:
        resolve(t, pattern(neg="bad", pos="good"))
    assert "label 'neg'" in str(error.value) and "label 'pos'" in str(error.value)


def test_i028_a_lone_space_first_is_not_the_label():
    t = lone_space()
    assert tokens(t, pattern()) == [["terrible"], ["great"]]
    with pytest.raises(ConfigError, match="2 pieces"):  # a causal model would be asked for the space
        resolve(t, pattern(), kind="causal")


@pytest.mark.parametrize(
    ("template", "context"),
    [
        ("It was [MASK].", "word"),
        ("It was[MASK].", "word"),
        ("[MASK], said {t}", "start"),
        ("{t} ‖ [MASK], x", "start"),
        (" [MASK], {t}", "start"),
        ("{t} ([MASK])", "open"),
        ("{t} ( [MASK] )", "word"),
    ],
)
def test_i033_form_follows_the_place_of_the_mask(template, context):
    assert word_context(parse(template)) == context
    found = tokens(byte_bpe(), pattern(template, a="b", c="2"))
    assert found == ([["Ġb"], ["Ġ2"]] if context == "word" else [["b"], ["2"]])


def test_sequences_in_one_text_are_one_context():
    assert word_context(parse("{t} ‖ [MASK]"), joined=True) == "word"
    assert word_context(parse("[MASK] ‖ {t}"), joined=True) == "start"


def test_what_a_splitting_word_stands_under_is_named():
    p = Pattern(3, "{t} [P1] [MASK]", {"neg": ("abominable",), "pos": ("great",)}, section="ptuning")
    with pytest.raises(ConfigError, match=r"^task\.ptuning\.3\.verbalizer\.neg: 'abominable' is"):
        resolve(byte_bpe(), p)


def test_unigram_word_keeps_its_start():
    assert tokens(unigram(), pattern()) == [["▁terrible"], ["▁great"]]
    assert tokens(unigram(), pattern("[MASK], {t}")) == [["▁terrible"], ["▁great"]]


def test_unknown_word_is_an_error():
    with pytest.raises(ConfigError, match="'☃' is not in the vocabulary"):
        resolve(wordpiece(), pattern(neg="☃", pos="great"))


def test_several_words_and_order_of_labels():
    p = pattern(no=("No", "false"), yes=("Yes", "true"))
    assert tokens(wordpiece(), p, labels=["yes", "no"]) == [["Yes", "true"], ["No", "false"]]


@pytest.mark.parametrize("name", [n for n in MASKED if n != "characters"])
def test_every_family_resolves_the_words_of_the_tasks(name):
    assert len(resolve(MASKED[name](), pattern(neg="No", pos="Yes"))) == 2
