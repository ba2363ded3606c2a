import copy
import json
import sys
import types

import pytest

from fewnlu.errors import DataError
from fewnlu.tasks.drawing import limit
from fewnlu.tasks.sources import RowSet, drop_leaks, load, load_rows
from fewnlu.tasks.task import Row, task_from_config
from tests.tasks.test_task import MINIMAL, shipped

NLI = ["entailment", "neutral", "contradiction"]


def toy(**more):
    cfg = copy.deepcopy(MINIMAL) | {
        "id": "id",
        "source": {"files": {"labeled": "l.jsonl", "test": "t.jsonl"}},
    }
    return task_from_config(cfg | more)


def write(folder, name, rows):
    lines = [r if isinstance(r, bytes) else json.dumps(r).encode() for r in rows]
    (folder / name).write_bytes(b"\n".join(lines) + b"\n")
    return {"dir": str(folder)}


def rows(*labels):
    return [{"id": i, "text": f"text {i}", "label": label} for i, label in enumerate(labels)]


def nli(labels):
    words = {name: [name] for name in labels}
    return toy(labels=labels, patterns={0: {"template": "{text} [MASK]", "verbalizer": words}})


def test_rows_of_a_file(tmp_path):
    data = write(tmp_path, "l.jsonl", rows("neg", "pos"))
    found = load_rows(toy(), data, "labeled")
    assert found.rows[1] == Row("1", {"text": "text 1"}, "pos", "1")
    assert found.origin == "file l.jsonl"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({"id": 5, "text": "x", "label": "Pos"}, "did you mean 'pos'?"),
        ({"id": 5, "text": "x"}, "label 'label' is missing"),
        ({"id": 5, "label": "pos"}, "field 'text' is missing"),
        ({"id": 5, "text": 3, "label": "pos"}, "is int, not text"),
        ({"id": 0, "text": "x", "label": "pos"}, "id '0' is there already"),
        (b'{"id": 5, "text": ', "broken JSON"),
        (b"[1]", "list where a JSON object"),
        ('{"id": 5, "text": "é", "label": "pos"}'.encode("latin-1"), "not UTF-8"),
    ],
)
def test_errors_name_file_and_line(tmp_path, line, says):
    data = write(tmp_path, "l.jsonl", [*rows("neg", "pos"), line])
    with pytest.raises(DataError) as error:
        load_rows(toy(), data, "labeled")
    assert says in str(error.value) and f"{tmp_path / 'l.jsonl'}:3: " in str(error.value)


def test_empty_and_missing_files(tmp_path):
    with pytest.raises(DataError, match="no rows"):
        load_rows(toy(), write(tmp_path, "l.jsonl", [b"", b" "]), "labeled")
    with pytest.raises(DataError) as error:
        load_rows(toy(), {"dir": str(tmp_path)}, "test")
    assert str(tmp_path / "t.jsonl") in str(error.value) and "l.jsonl, t.jsonl" in str(error.value)
    with pytest.raises(DataError, match=r"set data.dir=FOLDER with l.jsonl"):
        load_rows(toy(), {"dir": None}, "labeled")
    assert load_rows(toy(), {"dir": str(tmp_path)}, "unlabeled") is None


def test_i001_other_label_counts_stop(tmp_path):
    source = {"files": {"labeled": "l.jsonl"}, "counts": {"labeled": {"neg": 1, "pos": 2}}}
    data = write(tmp_path, "l.jsonl", rows("neg", "pos", "neg"))
    with pytest.raises(DataError, match="neg 2, pos 1, expected neg 1, pos 2"):
        load_rows(toy(source=source), data, "labeled")
    assert shipped("cb").source.hub.counts["labeled"] == {
        "entailment": 115,
        "contradiction": 119,
        "neutral": 16,
    }


def test_i002_i003_names_decide_and_not_their_order(tmp_path):
    data = write(tmp_path, "l.jsonl", rows(*NLI, *NLI))
    one = load_rows(nli(NLI), data, "labeled")
    other = load_rows(nli(NLI[::-1]), data, "labeled")
    assert [r.label for r in one.rows] == [r.label for r in other.rows] == [*NLI, *NLI]
    assert one.sha256 == other.sha256
    with pytest.raises(DataError, match="unknown label"):
        load_rows(nli(["entailment", "neutral", "contradicts"]), data, "labeled")


def test_i004_one_name_keeps_one_id_in_every_split(tmp_path):
    write(tmp_path, "l.jsonl", rows(*NLI))
    data = write(tmp_path, "t.jsonl", rows("neutral", "entailment"))
    task = nli(NLI)
    ids = {which: {r.label: task.label_id(r.label) for r in load_rows(task, data, which).rows}
           for which in ("labeled", "test")}  # fmt: skip
    assert ids["test"].items() <= ids["labeled"].items()
    data = write(tmp_path, "t.jsonl", [*rows("neutral"), {"id": 9, "text": "x", "label": "maybe"}])
    with pytest.raises(DataError, match=r"t.jsonl:2: unknown label 'maybe'"):
        load_rows(task, data, "test")


def test_raw_label_values(tmp_path):
    task = toy(label={"column": "y", "values": {True: "pos", False: "neg", "1": "pos"}})
    data = write(tmp_path, "l.jsonl", [{"id": i, "text": "x", "y": y} for i, y in enumerate([True, False, 1, "neg"])])
    assert [r.label for r in load_rows(task, data, "labeled").rows] == ["pos", "neg", "pos", "neg"]


def test_nested_ids_and_units(tmp_path):
    task = toy(id="idx.q", unit="p{idx.p}")
    data = write(tmp_path, "l.jsonl", [{"idx": {"p": 7, "q": q}, "text": "x", "label": "pos"} for q in (1, 2)])
    assert [(r.id, r.unit) for r in load_rows(task, data, "labeled").rows] == [("1", "p7"), ("2", "p7")]
    data = write(tmp_path, "l.jsonl", [{"text": "x", "label": "pos"}])
    with pytest.raises(DataError, match=r"id 'idx\.q' \(task\.id\) is missing; the row has text, label"):
        load_rows(task, data, "labeled")
    data = write(tmp_path, "l.jsonl", [{"idx": {"q": 1}, "text": "x", "label": "pos"}])
    with pytest.raises(DataError, match=r"'idx.p' of task.unit"):
        load_rows(task, data, "labeled")
    assert load_rows(toy(id=None), data, "labeled").rows[0].id == "1"  # no id: the line number


def test_unlabeled_rows_have_no_label_and_may_repeat_ids(tmp_path):
    task = toy(source={"files": {"unlabeled": "u.jsonl"}})
    data = write(tmp_path, "u.jsonl", [{"id": 1, "text": "x", "label": "pos"}, {"id": 1, "text": "y"}])
    assert [(r.id, r.label) for r in load_rows(task, data, "unlabeled").rows] == [("1", None), ("1@2", None)]


def test_i062_rows_shared_with_test_are_dropped_and_counted(tmp_path):
    pool = [{"id": i, "text": f"Text number {i}", "label": "pos"} for i in range(10)]
    write(tmp_path, "l.jsonl", pool)
    test = [{"id": 0, "text": t, "label": "neg"} for t in ("Text number 3",)]
    test += [
        {"id": 1, "text": "  text  NUMBER 4\n", "label": "neg"},
        {"id": 2, "text": "Text number 9", "label": "neg"},
    ]
    data = write(tmp_path, "t.jsonl", test)
    for limit_test in (None, 1):
        found = load(toy(), {**data, "n_labeled": 7, "limit_test": limit_test})
        assert found.n_leaks == 3
        assert [r.id for r in found.labeled.rows] == ["0", "1", "2", "5", "6", "7", "8"]
    assert drop_leaks(found.labeled.rows, ()) == (list(found.labeled.rows), 0)


def test_drawing_labelled_rows(tmp_path):
    data = write(tmp_path, "l.jsonl", rows(*["neg", "pos"] * 50)) | {"n_labeled": 16}
    one, same, other = (load_rows(toy(), data, "labeled", seed) for seed in (1, 1, 2))
    assert one == same and one.sha256 != other.sha256 and len(one.rows) == 16
    assert [int(r.id) for r in one.rows] == sorted(int(r.id) for r in one.rows)
    with pytest.raises(DataError, match=r"data.n_labeled: 101"):
        load_rows(toy(), data | {"n_labeled": 101}, "labeled")


def test_limited_test_sets_are_nested():
    all_rows = [Row(str(i), {"text": "x"}, "neg", str(i)) for i in range(50)]
    ten, twenty = limit(all_rows, 10), limit(all_rows, 20)
    assert len(ten) == 10 and {r.id for r in ten} < {r.id for r in twenty}
    assert limit(all_rows[::-1], 10) == ten[::-1] and limit(all_rows, 99) == all_rows
    assert [r.id for r in ten] != [str(i) for i in range(10)]


def test_i064_origin_and_hash_do_not_depend_on_the_place(tmp_path):
    content = rows("neg", "pos")
    found = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        found.append(load_rows(toy(), write(tmp_path / name, "l.jsonl", content), "labeled"))
        content = [dict(reversed(r.items())) for r in content]  # key order is no content
    assert found[0] == found[1] and str(tmp_path) not in found[0].origin
    changed = RowSet.of([*found[0].rows[:1], Row("1", {"text": "other"}, "pos", "1")], "x")
    assert changed.sha256 != found[0].sha256


def test_packaged_rows():
    for name in ("reviews", "entail"):
        found = load(shipped(name), {"dir": None, "n_labeled": None, "limit_test": 100})
        assert (len(found.labeled.rows), len(found.test.rows), found.n_leaks) == (64, 100, 0)
        assert found.labeled.origin == f"packaged {name}/labeled.jsonl"
        assert load_rows(shipped(name), {}, "unlabeled").rows[0].label is None


class Table(list):
    def __init__(self, names, labels):
        super().__init__({"idx": i, "premise": f"p{i}", "hypothesis": "h", "label": n} for i, n in enumerate(labels))
        self.features = {"label": types.SimpleNamespace(names=names)}


def fake_hub(monkeypatch, answer):
    def load_dataset(path, name, revision, split):
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))


def test_hub_class_numbers_are_read_by_name(monkeypatch):
    counts = {"entailment": 23, "contradiction": 28, "neutral": 5}
    names = ["contradiction", "entailment", "neutral"]
    fake_hub(monkeypatch, Table(names, [names.index(n) for n, k in counts.items() for _ in range(k)]))
    found = load_rows(shipped("cb"), {"dir": None}, "test")
    assert found.rows[0].label == "entailment" and found.rows[-1].label == "neutral"
    assert found.origin.startswith("hub aps/super_glue/cb@") and found.origin.endswith(" validation")
    fake_hub(monkeypatch, Table(["a", "b", "c"], [0]))
    with pytest.raises(DataError, match="label names"):
        load_rows(shipped("cb"), {"dir": None}, "test")


def test_unreachable_hub_says_what_to_do(monkeypatch):
    fake_hub(monkeypatch, ConnectionError("no route"))
    with pytest.raises(DataError) as error:
        load_rows(shipped("rte"), {"dir": None}, "labeled")
    assert "data.dir=FOLDER with RTE/train64.jsonl, RTE/val.jsonl" in str(error.value)
    assert "HF_HOME" in str(error.value) and "no route" in str(error.value)
