"""Files whose items are not rows: what they become, their units, and what is refused."""

from __future__ import annotations

import pytest

from fewnlu.errors import DataError
from fewnlu.prompts.preview import preview, toy_tokenizer
from fewnlu.tasks.audit import audit
from fewnlu.tasks.metrics import score_rows
from fewnlu.tasks.sources import load_rows
from tests.tasks.samples import ITEMS, sample, sample_task, write_rows
from tests.tasks.test_task import shipped

WSC = ITEMS["wsc"][0]


def rows_of(folder, name, items, which="test"):
    task = sample_task(name)
    return load_rows(task, write_rows(folder, task, which, items), which)


def test_copa_copies_labelled_and_unlabelled_rows_alone(tmp_path):
    found = rows_of(tmp_path, "copa", ITEMS["copa"], "labeled").rows
    assert [(r.id, r.unit, r.label) for r in found] == [
        ("0", "0", "0"), ("0-mirrored", "0", "1"), ("1", "1", "1"), ("1-mirrored", "1", "0")]  # fmt: skip
    assert found[1].fields["choice1"] == found[0].fields["choice2"]
    assert [r.fields["joiner"] for r in found] == ["because", "because", ", so", ", so"]
    assert len(rows_of(tmp_path, "copa", ITEMS["copa"], "test").rows) == 2
    assert {r.label for r in rows_of(tmp_path, "copa", ITEMS["copa"], "unlabeled").rows} == {None}
    with pytest.raises(DataError, match=r"train64\.jsonl:1: question is 'reason'"):
        rows_of(tmp_path, "copa", [{**ITEMS["copa"][0], "question": "reason"}], "labeled")


def test_i008_all_answers_to_a_question_are_different_inputs(tmp_path):
    task, rows = sample(tmp_path, "multirc")
    tokenizer = toy_tokenizer(task, rows)
    for pattern in task.patterns.values():
        texts = [preview(tokenizer, "masked", task, pattern, row, rows).text for row in rows]
        assert len(set(texts)) == len(texts) == 4
        for row, text in zip(rows, texts, strict=True):
            assert "fig tree behind" in text and row.fields["answer"] in text
            assert row.fields["question"].rstrip("?") in text
    assert len({row.unit for row in rows}) == 1 and [r.meta["group"] for r in rows] == ["0-0", "0-0", "0-1", "0-1"]


@pytest.mark.parametrize("name", ITEMS)
def test_i008_no_input_occurs_with_different_gold(tmp_path, name):
    task = sample_task(name)
    data = write_rows(tmp_path, task, "test", ITEMS[name])
    write_rows(tmp_path, task, "labeled", ITEMS[name])
    if task.source.files["unlabeled"]:
        write_rows(tmp_path, task, "unlabeled", ITEMS[name])
    assert not [p for p in audit(task, data).problems if "different gold" in p]


def test_multirc_of_the_hub_is_the_same(tmp_path):
    _, rows = sample(tmp_path, "multirc")
    ids = {"paragraph": 0, "question": 1, "answer": 3}
    flat = {"paragraph": rows[3].fields["passage"], "question": rows[3].fields["question"], "answer": "After six years"}
    assert rows_of(tmp_path, "multirc", [{**flat, "idx": ids, "label": "True"}]).rows[0] == rows[3]


def test_i006_i007_multirc_metrics_by_hand(tmp_path):
    task, (row, *_) = sample(tmp_path, "multirc")
    import dataclasses

    gold = [("p0-q0", 1), ("p0-q0", 0), ("p0-q1", 1), ("p0-q1", 1), ("p1-q0", 0), ("p1-q0", 0)]
    rows = [dataclasses.replace(row, label=str(y), meta={"group": g}) for g, y in gold]

    def of(predicted):
        return score_rows(task, [[1.0 - p, float(p)] for p in predicted], rows)

    found = of([1, 0, 1, 0, 0, 1])
    assert found["em"] == pytest.approx(1 / 3) and found["f1a"] == pytest.approx(2 / 3)
    always = of([1] * 6)  # three of six answers are right; reversed polarity would give 0 or another value
    assert always["f1a"] == pytest.approx(2 / 3) and always["accuracy"] == 0.5


def test_i011_wsc_rows_on_one_text_keep_their_two_answers(tmp_path):
    task, rows = sample(tmp_path, "wsc")
    assert rows[0].fields["marked"] == rows[1].fields["marked"] == "Tom gave Ana the map because *she* was lost."
    assert [(r.fields["candidate"], r.label) for r in rows] == [("Ana", "True"), ("the map", "False")]
    assert rows[0].unit == rows[1].unit
    tokenizer = toy_tokenizer(task, rows)
    for pattern in task.patterns.values():
        for row in rows:
            shown = preview(tokenizer, "masked", task, pattern, row, rows)
            assert "' * she * '" in shown.text and shown.answers[0].startswith(
                f"True if the answer is: {row.fields['candidate']}"
            )


def wsc(text, span, index, pronoun, at, **more):
    target = {"span1_text": span, "span1_index": index, "span2_text": pronoun, "span2_index": at}
    return {"text": text, "target": target, "label": True, "idx": 7, **more}


@pytest.mark.parametrize(
    ("item", "marked"),
    [
        (wsc('"Lev Kamen", he said, was late.', "lev kamen", 0, "he", 2), '"Lev Kamen", *he* said, was late.'),
        (wsc("Ana said that it, too, fell.", "Ana", 0, "it", 3), "Ana said that *it*, too, fell."),
        (wsc("Ana fell because she ran.", "Ana", 0, "she", 2), "Ana fell because *she* ran."),  # one word off
        (wsc("Emma's dog liked her.", "Emma", 0, "her", 3), "Emma's dog liked *her*."),
    ],
)
def test_i012_spans_are_found_whatever_case_and_punctuation(tmp_path, item, marked):
    assert rows_of(tmp_path, "wsc", [item]).rows[0].fields["marked"] == marked


@pytest.mark.parametrize(
    "item",
    [
        wsc("Ana fell because she ran.", "Lev", 0, "she", 3),
        wsc("Ana fell because she ran.", "Ana", 0, "he", 3),
        wsc("Ana fell because she ran.", "Ana", 0, "she", 40),
        wsc("Ana fell because she ran.", "Ana", 4, "she", 3),
    ],
)
def test_i012_a_span_that_is_not_there_is_rejected_and_counted(tmp_path, item):
    found = rows_of(tmp_path, "wsc", [{**WSC, "idx": 1}, item])
    assert [r.id for r in found.rows] == ["1"]
    assert found.notes[0].startswith("test: 1 rows rejected (7: span")


def test_wsc_files_with_both_targets_become_two_rows_of_one_unit(tmp_path):
    item = {"text": WSC["text"], "idx": 3, "true_target": WSC["target"], "false_target": ITEMS["wsc"][1]["target"]}
    found = rows_of(tmp_path, "wsc", [item], "labeled").rows
    assert [(r.id, r.label, r.fields["candidate"]) for r in found] == [
        ("3-true", "True", "Ana"), ("3-false", "False", "the map")]  # fmt: skip
    assert found[0].unit == found[1].unit == sample(tmp_path, "wsc")[1][0].unit
    assert not any(r.meta for r in found)  # both are rows of the set, not copies


def test_wsc_counts_are_of_files_with_one_target_a_line(tmp_path):
    """The official WSC-64 has both targets in each line; the file's counts are those of the other layout."""
    item = {"text": WSC["text"], "idx": 3, "true_target": WSC["target"], "false_target": ITEMS["wsc"][1]["target"]}
    task = shipped("wsc")
    assert task.source.counts["labeled"]
    data = write_rows(tmp_path, task, "labeled", [item, {**item, "idx": 4}])
    assert [r.label for r in load_rows(task, data, "labeled").rows] == ["True", "False"] * 2
    write_rows(tmp_path, task, "labeled", ITEMS["wsc"])
    with pytest.raises(DataError, match="False 1, True 1, expected False 22, True 42"):
        load_rows(task, data, "labeled")


FLAT = {"idx": "7", "text": "Ana fell because she ran.", "span1_text": "Ana", "span1_index": "0"}
FLAT |= {"span2_text": "she", "span2_index": "3", "label": "true"}


def flat(folder, change, name="l.csv"):
    item = {k: v for k, v in (FLAT | change).items() if v is not None}
    delimiter = "," if name.endswith("csv") else "\t"
    (folder / name).write_text(delimiter.join(item) + "\n" + delimiter.join(item.values()) + "\n")
    return load_rows(sample_task("wsc"), {"dir": str(folder), "files": {"test": name}}, "test")


@pytest.mark.parametrize("name", ["l.csv", "l.tsv"])
def test_wsc_rows_of_a_csv(tmp_path, name):
    (found,) = flat(tmp_path, {}, name).rows
    assert (found.fields["marked"], found.label) == ("Ana fell because *she* ran.", "True")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"span2_index": "three"},
            r"l\.csv:2: 'span2_index' is 'three', expected the number of the word that the span",
        ),
        ({"span1_index": ""}, r"l\.csv:2: 'span1_index' is empty, expected the number"),
        ({"span1_index": None}, r"l\.csv:2: 'span1_index' is missing; it has idx, text"),
        ({"text": None, "sentence": "x"}, r"l\.csv:2: 'text' is missing; it has idx, span1_text"),
        ({"text": ""}, r"l\.csv:2: 'text' is empty, expected a text"),
        ({"span1_text": ""}, r"l\.csv:2: 'span1_text' is empty, expected a text"),
        ({"span2_text": "he"}, r"no row of it can be used\.\ntest: 1 rows rejected \(7: span2_text 'he' is not in"),
    ],
)
def test_wsc_rows_that_cannot_be_used_say_why(tmp_path, change, says):
    with pytest.raises(DataError, match=says):
        flat(tmp_path, change)


@pytest.mark.parametrize(("index", "fine"), [(3.0, True), (3.5, False), (True, False), ([3], False)])
def test_wsc_indices_of_other_types(tmp_path, index, fine):
    item = wsc("Ana fell because she ran.", "Ana", 0, "she", index)
    if fine:
        assert rows_of(tmp_path, "wsc", [item]).rows[0].fields["marked"] == "Ana fell because *she* ran."
        return
    with pytest.raises(DataError, match=r"'span2_index' is .*, expected the number"):
        rows_of(tmp_path, "wsc", [item])


def test_record_candidates_and_answers(tmp_path):
    _, rows = sample(tmp_path, "record")
    assert rows[0].meta == {
        "candidates": ("Marigold", "Port Ellis", "Ines Rowe", "Lund"),
        "answers": ("Marigold",),
        "right": (0,),
    }
    assert rows[1].fields["left"] == "Captain " and rows[1].fields["right"] == "'s crew is safe."
    assert "@highlight" not in rows[0].fields["passage"] and "\n- Rowe has" in rows[0].fields["passage"]
    assert rows[0].unit == rows[1].unit
    item = ITEMS["record"][0]
    hub = {"passage": item["passage"]["text"], "query": item["qas"][0]["query"], "entities": ["Marigold", "Lund"]}
    hub |= {"answers": ["Marigold", "Marigold"], "idx": {"passage": 0, "query": 0}}
    found = rows_of(tmp_path, "record", [hub]).rows[0]
    assert (found.id, found.label, found.meta["answers"]) == ("0-0", "Marigold", ("Marigold",))


def test_a_labelled_row_without_a_right_candidate_is_an_error(tmp_path):
    item = {**ITEMS["record"][0], "qas": [{"query": "The @placeholder", "idx": 0, "answers": [{"text": "Oslo"}]}]}
    with pytest.raises(DataError, match=r"train64\.jsonl:1: no candidate equals an answer \(Oslo\)"):
        rows_of(tmp_path, "record", [item], "labeled")
    assert rows_of(tmp_path, "record", [item], "test").rows[0].label is None
    with pytest.raises(DataError, match=r"val\.jsonl:1: the query 'no mark' has no @placeholder"):
        rows_of(tmp_path, "record", [{**item, "qas": [{"query": "no mark", "idx": 0}]}], "test")
