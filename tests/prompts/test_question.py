"""Rows as questions: the benchmark's prompts, per-row options, demonstrations, spaces and start tokens."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fewnlu.config import conf_dir
from fewnlu.decoding.transformers import encode, single_start
from fewnlu.errors import ConfigError, DataError
from fewnlu.prompts.question import Asker, ChoiceWording, chat_template, parted
from fewnlu.tasks.choice import ChoiceTask, choice_from_config, load_choice_rows
from fewnlu.tasks.task import Row
from tests.decoding.models import backbone, metaspace

TASKS = ("arc_nl", "dbrd", "dutch_cola", "global_mmlu_nl", "xlwic_nl")
DATA = Path(__file__).parents[2] / "fewnlu/tasks/data/dutch"


def config(name: str, **changes: Any) -> dict[str, Any]:
    import yaml

    return {**yaml.safe_load((conf_dir() / f"task/{name}.yaml").read_text(encoding="utf-8")), **changes}


def task(name: str, **changes: Any) -> ChoiceTask:
    return choice_from_config(config(name, **changes))


def rows(name: str) -> tuple[Row, ...]:
    found = load_choice_rows(task(name), {"dir": str(DATA)}, "test")
    assert found is not None
    return found.rows


@pytest.mark.parametrize("name", TASKS)
def test_the_shipped_rows_are_read_and_asked(name):
    found = rows(name)
    assert len(found) == 60 and len({r.id for r in found}) == 60
    asker = Asker(ChoiceWording(task(name)))
    for row in found:
        question = asker.ask(row)
        assert question.gold in question.labels and "{" not in question.prompt
        assert all(f"'{c.strip()}'" in question.prompt for c in question.choices)
    golds = [r.label for r in found]
    assert min(golds.count(g) for g in set(golds)) >= 12


def test_the_published_prompts_as_they_are():
    base = Asker(ChoiceWording(task("dutch_cola")), leading_space="none")
    assert base.ask(Row("1", {"sentence": "Hij komt."}, "grammaticaal", "1")).prompt == (
        "Is de volgende tekst grammaticaal (correct Nederlands) of ongrammaticaal (onjuist Nederlands)?\n\n"
        "Tekst: Hij komt.\n\nAntwoord met 'grammaticaal' of 'ongrammaticaal'. De tekst is "
    )
    arc = Asker(ChoiceWording(task("arc_nl")), leading_space="none")
    row = Row("1", {"question": "Wat?"}, "B", "1", {"options": {"A": "x", "B": "y {z}", "C": "w"}})
    question = arc.ask(row)
    assert question.prompt == (
        "Wat?\n\nAntwoordopties:\nA. x\nB. y {z}\nC. w\n\nAntwoord met 'A', 'B' of 'C'. Het antwoord is"
    )
    assert question.choices == ("A", "B", "C")
    xlwic = Asker(ChoiceWording(task("xlwic_nl")), leading_space="none").ask(
        Row("1", {"target_word": "bank", "example_1": "a", "example_2": "b"}, "identiek", "1")
    )
    assert xlwic.prompt.endswith("Antwoord met 'identiek' of 'verschillend'. De betekenis van 'bank' is ")


def test_three_options_are_three_answers():
    three = [r for r in rows("arc_nl") if len(r.meta["options"]) == 3]
    assert len(three) == 6
    for answers in ("letters", "texts"):
        for row in three:
            question = Asker(ChoiceWording(task("arc_nl"), answers)).ask(row)
            assert len(question.choices) == 3 and "D" not in question.labels and "'D'" not in question.prompt


def test_option_texts_are_the_answers():
    row = Row(
        "1", {"question": "Wat?"}, "C", "1", {"options": {"A": "geen", "B": "water ", "C": "water", "D": "lucht"}}
    )
    question = Asker(ChoiceWording(task("arc_nl"), "texts")).ask(row)
    assert question.choices == (" geen", " water", " lucht") and question.labels == (
        "A",
        "C",
        "D",
    )  # one text, one answer
    assert "\n- water\n" in question.prompt and "A." not in question.prompt
    assert Asker(ChoiceWording(task("dbrd"), "texts")).ask(rows("dbrd")[0]).labels == ("positief", "negatief")


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"answer": "D", "option_d": None}, "none of the row's answers"),
        ({"answer": "E"}, "none of the row's answers"),
        ({"option_b": None, "option_c": None, "option_d": None}, "two or more"),
        ({"instruction": None}, "instruction"),
        ({"answer": None}, "missing"),
    ],
)
def test_rows_that_cannot_be_asked_are_refused(tmp_path, item, message):
    whole = {
        "id": "x",
        "instruction": "q",
        "option_a": "a",
        "option_b": "b",
        "option_c": "c",
        "option_d": "d",
        "answer": "A",
    }
    (tmp_path / "test.jsonl").write_text(json.dumps({**whole, **item}), encoding="utf-8")
    with pytest.raises(DataError, match=message) as error:
        load_choice_rows(task("arc_nl"), {"dir": None, "files": {"test": str(tmp_path / "test.jsonl")}}, "test")
    assert "test.jsonl:1" in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": "{vraag}"}, "task.prompt: unknown field"),
        ({"words": {"A": "B"}}, "task.words"),
        ({"shorten": "text"}, "task.shorten"),
        ({"labels": ["A"]}, "task.labels"),
        ({"promt": "x"}, "did you mean 'prompt'"),
        ({"metrics": ["f1"]}, "task.metrics"),
        ({"options": {"F": "option_f"}}, "task.options"),
    ],
)
def test_a_wrong_task_file_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        task("arc_nl", **changes)


def test_i037_a_space_before_the_answer_belongs_to_it():
    assert parted("it was ") == parted("it was") == ("it was", " ")
    assert parted("<|assistant|>\n") == ("<|assistant|>\n", "")
    tokenizer = backbone().tokenizer
    ids = [encode(tokenizer, p) + tokenizer(s + "great").input_ids for p, s in (parted("it was "), parted("it was"))]
    assert ids[0] == ids[1] == tokenizer("it was great").input_ids
    for name in TASKS:
        question = Asker(ChoiceWording(task(name))).ask(rows(name)[0])
        assert not question.prompt.endswith(" ") and question.separator == " "
        assert all(c.startswith(" ") for c in question.choices)


@pytest.mark.parametrize("adds", [True, False])
def test_i038_exactly_one_start_token(adds):
    from tokenizers import processors

    tokenizer = copy.deepcopy(metaspace())
    start = tokenizer.bos_token_id
    if adds:
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", start), ("</s>", tokenizer.eos_token_id)]
        )
    tokenizer.chat_template = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    template = chat_template(tokenizer, "auto")
    assert template is not None
    ids = encode(tokenizer, template([{"role": "user", "content": "Answer:"}]))
    assert ids[0] == start and ids.count(start) == 1 and tokenizer.eos_token_id not in ids
    assert encode(tokenizer, "Answer:").count(start) == int(adds)
    assert single_start(tokenizer, "<s><s>Answer:") == ("Answer:" if adds else "<s><s>Answer:")


def test_chat_or_base_follows_the_model_and_can_be_set():
    tokenizer = copy.deepcopy(backbone().tokenizer)
    assert chat_template(tokenizer, "auto") is None
    with pytest.raises(ConfigError, match=r"method\.form"):
        chat_template(tokenizer, "chat")
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}\n{% endfor %}{{ '[assistant]\n' }}"
    )
    assert chat_template(tokenizer, "base") is None
    asker = Asker(ChoiceWording(task("dbrd")), chat_template(tokenizer, "auto"), shots=1, pool=rows("dbrd"))
    question = asker.ask(rows("dbrd")[0])
    assert question.prompt.count("[user]") == 2 and question.prompt.count("[assistant]") == 2
    assert question.prompt.endswith("[assistant]\n") and "Het sentiment is" not in question.prompt
    assert question.choices == ("positief", "negatief")  # nothing between the template's line break and the answer


def test_i052_only_the_words_are_shown():
    words = {"grammaticaal": "ja", "ongrammaticaal": "nee"}
    changed = task("dutch_cola", words=words, prompt="Klopt dit? {sentence} Antwoord met {labels}.", stub=None)
    question = Asker(ChoiceWording(changed), shots=2, pool=rows("dutch_cola")).ask(rows("dutch_cola")[0])
    assert "grammaticaal" not in question.prompt and question.choices == (" ja", " nee")
    assert question.labels == ("grammaticaal", "ongrammaticaal")
    shown = [r for r in rows("dutch_cola") if r.id in question.demonstrations]
    for row in shown:
        assert f"{row.fields['sentence']} Antwoord met 'ja' of 'nee'. {words[str(row.label)]}\n" in question.prompt


def test_i057_the_seed_decides_the_demonstrations():
    pool, row = rows("dbrd"), rows("dbrd")[0]

    def drawn(seed: int, shots: int = 4) -> tuple[str, ...]:
        return Asker(ChoiceWording(task("dbrd")), shots=shots, pool=pool, seed=seed).ask(row).demonstrations

    assert drawn(1) != drawn(2) and drawn(1) == drawn(1)
    assert drawn(1, 2) == drawn(1, 4)[:2]
    for one in pool:
        question = Asker(ChoiceWording(task("dbrd")), shots=4, pool=pool, seed=1).ask(one)
        assert one.id not in question.demonstrations and len(set(question.demonstrations)) == 4
    twin = Row("twin", row.fields, row.label, "twin")
    few = Asker(ChoiceWording(task("dbrd")), shots=2, pool=[twin, *pool[1:3]], seed=1)
    assert "twin" not in few.ask(row).demonstrations  # another row with the same text
    with pytest.raises(ConfigError, match=r"method\.shots"):
        Asker(ChoiceWording(task("dbrd")), shots=3, pool=pool[:3])


def test_i058_demonstrations_do_not_depend_on_the_process():
    code = (
        "import json, random, sys; random.seed({seed})\n"
        "from fewnlu.prompts.question import Asker, ChoiceWording\n"
        "from fewnlu.tasks.choice import choice_from_config, load_choice_rows\n"
        "task = choice_from_config(json.loads(sys.argv[1]))\n"
        "rows = load_choice_rows(task, dict(dir=sys.argv[2]), 'test').rows\n"
        "print(Asker(ChoiceWording(task), shots=3, pool=rows, seed=7).ask(rows[5]).demonstrations)\n"
        "assert 'torch' not in sys.modules"
    )
    outs = set()
    for seed in (1, 2):
        done = subprocess.run(
            [sys.executable, "-c", code.format(seed=seed), json.dumps(config("dbrd")), str(DATA)],
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[2],
            env={"PYTHONHASHSEED": str(seed), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
            check=True,
        )
        outs.add(done.stdout)
    assert len(outs) == 1 and outs.pop().count(",") == 2


def test_long_rows_are_shortened_where_the_task_says_so():
    tokenizer = backbone().tokenizer
    length = lambda text: len(encode(tokenizer, text))  # noqa: E731
    row = Row("1", {"text": "mooi boek " * 400}, "positief", "1")
    asker = Asker(ChoiceWording(task("dbrd")), length=length, limit=200)
    question = asker.ask(row)
    assert 150 < length(question.prompt) <= 200 and question.cut > 3000
    assert question.prompt.endswith("Antwoord met 'positief' of 'negatief'. Het sentiment is")
    with pytest.raises(DataError, match=r"task\.shorten"):
        Asker(ChoiceWording(task("dutch_cola")), length=length, limit=100).ask(
            Row("1", {"sentence": "woord " * 200}, "grammaticaal", "1")
        )
    with pytest.raises(DataError, match="even without"):
        Asker(ChoiceWording(task("dbrd")), length=length, limit=20).ask(row)
