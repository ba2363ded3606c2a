"""PET from rows to records on tasks of several masks, spans and candidates: tiny models, self-written rows."""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq
import pytest

from fewnlu.protocol.trial import run_trial
from tests.running import Workplace, failures, results
from tests.tasks.samples import ITEMS, sample_task, write_rows

COPA = [{**ITEMS["copa"][i % 2], "premise": f"The {w} was cold.", "idx": i} for i, w in enumerate("abcdefgh")]
WSC = [{**ITEMS["wsc"][i % 2], "text": f"Tom gave Ana the map because she was {w}.", "idx": i} for i, w in
       enumerate("abcdefgh")]  # fmt: skip
_SPANS = [{"start": 0, "end": 3}, {"start": 10, "end": 13}]
RECORD = [
    {"idx": i, "passage": {"text": f"Lund beat Oslo {n}", "entities": _SPANS},
     "qas": [{"query": "The team of @placeholder won.", "idx": i, "answers": [{"text": "Lund"}]}]}
    for i, n in enumerate("abcdefgh")
]  # fmt: skip
ROWS = {"copa": COPA, "wsc": WSC, "record": RECORD}


def trial(place: Workplace, name: str, family: str, *overrides: str, test: Any = None) -> list[dict[str, Any]]:
    task = sample_task(name)
    write_rows(place.folder, task, "labeled", ROWS[name])
    write_rows(place.folder, task, "test", test or ROWS[name][:4])
    cfg = place.config(f"task={name}", f"data.dir={place.folder}", "data.n_labeled=null", *overrides, family=family)
    cfg["task"]["source"]["counts"], cfg["task"]["max_length"] = {}, 220
    if test is None:  # texts of the labelled rows: other ones, so that none is dropped
        for item in (items := [dict(one) for one in ROWS[name][:4]]):
            key = "premise" if name == "copa" else "text"
            if name == "record":
                item["passage"] = {**item["passage"], "text": item["passage"]["text"] + " again"}
            else:
                item[key] = item[key].replace("was", "was very")
        write_rows(place.folder, task, "test", items)
    run_trial(cfg, place.folder / "s", threads=1)
    assert not failures(place.folder / "s")
    return results(place.folder / "s")


@pytest.mark.parametrize("frozen", [0, 2])
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_copa_is_trained_and_recorded(place: Workplace, family: str, frozen: int) -> None:
    one, two = trial(place, "copa", family, f"model_args.freeze_layers={frozen}")
    assert one["config"]["reading"] == {
        "fill": "most_confident_first", "length": "sum", "hinge": "example", "masks": "labelled"}  # fmt: skip
    assert one["rows"]["train"]["n_per_class"] == {"0": 4, "1": 4} == one["rows"]["dev"]["n_per_class"]
    units = [{i.split("-")[0] for i in one["rows"][which]["ids"]} for which in ("train", "dev")]
    assert not units[0] & units[1] and one["test"]["controls"]["chance"] == {"accuracy": 0.5}
    assert {one["k"], two["k"]} == {0, 1}


def test_frozen_prefixes_change_no_score(place: Workplace) -> None:
    found = []
    for i, cache in enumerate(("2.0", "0")):
        found.append(trial(Workplace(place.folder / str(i), place.models), "copa", "llama",
                           "model_args.freeze_layers=2", f"runtime.cache_gb={cache}"))  # fmt: skip
    for one, two in zip(*found, strict=True):
        assert one["looks"] == two["looks"] and one["test"] == two["test"]


def test_wsc_trains_on_true_rows_alone_and_says_so(place: Workplace) -> None:
    for one in trial(place, "wsc", "bert", "split.ratio=0.5"):
        true, all_ = one["rows"]["train"]["n_per_class"]["True"], len(one["rows"]["train"]["ids"])
        assert f"a cloze trains on rows of class True only: {true} of {all_} train rows" in one["warnings"]
        assert one["config"]["reading"]["masks"] == "labelled"


def test_record_keeps_the_candidates_of_each_row(place: Workplace) -> None:
    for one in trial(place, "record", "bert"):
        assert set(one["test"]["metrics"]) == {"answer_em", "answer_f1"}
        assert one["test"]["controls"]["chance"]["answer_em"] == pytest.approx(0.5, abs=0.05)
    path = next(place.folder.rglob("predictions.parquet"))
    table = pq.read_table(path).to_pylist()
    assert table[0]["candidates"] == ["Lund", "Oslo"] and len(table[0]["scores"]) == 2
    best = max(range(2), key=lambda j: table[0]["scores"][j])
    assert table[0]["prediction"] == table[0]["candidates"][best] and table[0]["gold"] == "Lund"


def test_settings_of_several_masks_are_no_part_of_single_mask_studies(place: Workplace) -> None:
    (one, *_) = place.run("reading.fill=parallel", "wsc.masks=paper")
    assert "reading" not in one["config"] and "ptuning" not in one["config"]["task"]
