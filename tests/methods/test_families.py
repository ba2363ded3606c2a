"""Every family of models through PET and CLS, from the config to the record: two labels and three, one word and two."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from fewnlu.protocol.trial import run_trial
from tests.backbones.test_enhanced_decoder import microsoft
from tests.running import SMALL, Workplace, config, results
from tests.tiny import CAUSAL, FAMILIES

LABELS = ("entailment", "contradiction", "neutral")
NLI3 = """\
name: nli3
labels: [entailment, contradiction, neutral]
fields: {premise: premise, hypothesis: hypothesis}
label: label
id: idx
metrics: [accuracy, macro_f1]
max_length: 64
source: {files: {labeled: labeled.jsonl, test: test.jsonl}}
cls: '{premise~} ‖ {hypothesis~}'
grid: [0]
patterns:
  0:
    template: '{premise~} question: {hypothesis~}? answer: [MASK].'
    verbalizer: {entailment: [true], contradiction: [false], neutral: [maybe]}
  10:
    template: '{premise~} question : {hypothesis~} ? answer : [MASK]'
    verbalizer: {entailment: ["true", good], contradiction: ["false", bad], neutral: [maybe, okay]}
  11:
    template: '{hypothesis~}? ‖ it is [MASK], {premise~}'
    verbalizer: {entailment: ["true", good], contradiction: ["false", bad, "no"], neutral: [maybe, okay]}
"""
WORDS = {"entailment": ["true", "good"], "contradiction": ["false", "bad"], "neutral": ["maybe", "okay"]}


@pytest.fixture
def nli3(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """A config of the three-label task on rows written here: labels are hidden in the hypothesis."""
    conf, data = tmp_path / "conf", tmp_path / "nli3"
    (conf / "task").mkdir(parents=True)
    (conf / "task" / "nli3.yaml").write_text(NLI3.replace("[true]", '["true"]').replace("[false]", '["false"]'))
    data.mkdir()
    rng = random.Random(1)
    for name, n in (("labeled", 18), ("test", 12)):
        rows = []
        for i in range(n):
            noun, other = rng.sample(["movie", "food", "city", "dog", "road", "book"], 2)
            said = {"entailment": f"the {noun} is good", "contradiction": f"the {noun} is bad"}
            said["neutral"] = f"the {other} was okay"
            label = LABELS[i % 3]
            rows.append({"idx": i, "premise": f"the {noun} was great in {name} {i}", "hypothesis": said[label]})
            rows[-1]["label"] = label
        (data / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def composed(*overrides: str) -> dict[str, Any]:
        small = [o for o in SMALL if not o.startswith("data.")]
        return config("task=nli3", f"data.dir={data}", "model=local", *small, *overrides, config_dir=conf)

    return composed


def folder_of(place: Workplace, family: str) -> Path:
    return microsoft(place.folder / "microsoft") if family == "deberta_v2 as stored" else place.models(family)


def check(folder: Path, labels: tuple[str, ...], metrics: dict[str, Any], n_test: int) -> dict[str, np.ndarray]:
    """Recompute the record of one run from its predictions with scikit-learn alone; returns scores per test row."""
    from sklearn.metrics import accuracy_score, f1_score

    table = pq.read_table(folder / "predictions.parquet").to_pylist()
    result = json.loads((folder / "result.json").read_bytes())
    assert list(metrics) == list(result["test"]["metrics"])
    for which in ("dev", "test"):
        rows = [row for row in table if row["set"] == which]
        gold, predicted = [row["gold"] for row in rows], [row["prediction"] for row in rows]
        again = {"accuracy": accuracy_score(gold, predicted), "macro_f1": f1_score(gold, predicted, average="macro")}
        for name, value in result[which]["metrics"].items():
            assert value == pytest.approx(again[name], abs=1e-12)
        assert result[which]["select"] == pytest.approx(np.mean(list(result[which]["metrics"].values())), abs=1e-12)
    scores = {}
    for row in table:
        values = {name.removeprefix("score:"): v for name, v in row.items() if name.startswith("score:")}
        assert tuple(values) == labels and np.isfinite(list(values.values())).all()
        assert abs(np.exp(list(values.values())).sum() - 1) < 1e-5
        assert row["prediction"] == max(values, key=lambda name: values[name])  # I005: columns carry names
        if row["set"] == "test":
            scores[row["id"]] = np.array(list(values.values()))
    assert len(scores) == n_test
    return scores


@pytest.mark.parametrize("method", ["pet", "cls"])
@pytest.mark.parametrize("family", [*FAMILIES, "deberta_v2 as stored"])
def test_each_family_on_two_labels(place: Workplace, family: str, method: str) -> None:
    pattern = ["hp.pattern=1"] if method == "pet" else []
    model = ["model=local", f"model_args.path={folder_of(place, family)}"]
    cfg = config("task=entail", f"+method={method}", *model, *SMALL, "split.k=2", *pattern)
    assert run_trial(cfg, place.folder / "s", threads=1) >= 0
    found = results(place.folder / "s")
    assert [r["k"] for r in found] == [0, 1] and all(r["steps_done"] == 4 for r in found)
    for path in (place.folder / "s").rglob("result.json"):
        check(path.parent, ("entailment", "not_entailment"), {"accuracy": 0}, 12)


@pytest.mark.parametrize("method", ["pet-0", "pet-10", "pet-11", "cls"])
@pytest.mark.parametrize("family", [*FAMILIES, "deberta_v2 as stored"])
def test_each_family_on_three_labels(place: Workplace, nli3: Any, family: str, method: str) -> None:
    """Ids from 10 on have several words a label; pattern 11 has text after its mask, which no causal model reads."""
    if family in CAUSAL and method == "pet-11":
        pytest.skip("a causal model cannot read it; refused, see test_causal_models_are_refused…")
    name, _, pattern = method.partition("-")
    overrides = [f"+method={name}", f"model_args.path={folder_of(place, family)}", "split.run=0"]
    cfg = nli3(*overrides, *([f"hp.pattern={pattern}"] if pattern else []))
    run_trial(cfg, place.folder / "s", threads=1)
    (result,) = results(place.folder / "s")
    assert result["h"].get("pattern") == (int(pattern) if pattern else None)
    (path,) = (place.folder / "s").rglob("result.json")
    check(path.parent, LABELS, {"accuracy": 0, "macro_f1": 0}, 12)


def test_causal_models_are_refused_a_pattern_that_ends_in_text(place: Workplace, nli3: Any) -> None:
    from fewnlu.errors import ConfigError
    from fewnlu.protocol.setup import read_setup

    with pytest.raises(ConfigError, match=r"hp\.pattern=11.*field after its mask.*or a masked model"):
        read_setup(nli3("+method=pet", f"model_args.path={place.models('gpt2')}", "hp.pattern=11"))


@pytest.mark.parametrize("family", FAMILIES)
def test_untrained_scores_are_those_of_the_model_alone(place: Workplace, nli3: Any, family: str) -> None:
    """Two words a label, without this package: transformers' logits of the written-out text, averaged by hand."""
    import transformers as tf

    path = place.models(family)
    cfg = nli3("+method=pet", f"model_args.path={path}", "split.run=0", "hp.pattern=10", "hp.max_steps=0")
    run_trial(cfg, place.folder / "s", threads=1)
    (result,) = results(place.folder / "s")
    assert any("untrained" in text for text in result["warnings"])
    (record,) = (place.folder / "s").rglob("result.json")
    scores = check(record.parent, LABELS, {"accuracy": 0, "macro_f1": 0}, 12)
    tokenizer = tf.AutoTokenizer.from_pretrained(path)
    auto = tf.AutoModelForCausalLM if family in CAUSAL else tf.AutoModelForMaskedLM
    model = auto.from_pretrained(path).eval()
    before = " " if family in (*CAUSAL, "roberta") else ""
    ids = {
        label: [tokenizer(before + w, add_special_tokens=False).input_ids for w in ws] for label, ws in WORDS.items()
    }
    for line in (place.folder / "nli3" / "test.jsonl").read_text().splitlines():
        row = json.loads(line)
        text = f"{row['premise']} question : {row['hypothesis']} ? answer :"
        if family in CAUSAL:
            inputs, position = tokenizer(text, return_tensors="pt"), -1
        else:
            space = "" if family == "roberta" else " "  # RoBERTa's mask swallows the space before it (I033)
            inputs = tokenizer(f"{text}{space}{tokenizer.mask_token}", return_tensors="pt")
            position = int((inputs.input_ids[0] == tokenizer.mask_token_id).nonzero().item())
        inputs.pop("token_type_ids", None)
        with torch.no_grad():
            logits = model(**inputs).logits[0, position].double().numpy()
        means = np.array([np.mean([logits[one] for (one,) in ids[label]]) for label in LABELS])
        want = means - np.log(np.exp(means - means.max()).sum()) - means.max()
        np.testing.assert_allclose(scores[str(row["idx"])], want, atol=1e-4)


def test_i002_i003_an_oracle_on_the_gold_names_is_perfect_in_any_order_of_labels(
    place: Workplace, nli3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All mass on the first label word of the gold *name*: accuracy and macro-F1 are 1 whatever the class order."""
    from fewnlu.methods.pet import Method

    gold = {}
    for name in ("labeled", "test"):
        for line in (place.folder / "nli3" / f"{name}.jsonl").read_text().splitlines():
            row = json.loads(line)
            gold["".join(f"{row['premise']} question:{row['hypothesis']}?answer:".split())] = row["label"]
    original = Method.scores
    asked = []

    def oracle(self: Any, batch: dict[str, Any]) -> Any:
        tokenizer = self.backbone.tokenizer
        texts = tokenizer.batch_decode(batch["input_ids"], skip_special_tokens=True)
        names = [gold["".join(t.split())] for t in texts]
        asked.extend(names)
        right = torch.tensor([tokenizer.convert_tokens_to_ids(WORDS[name][0]) for name in names])

        def logits(states: Any, tokens: Any) -> Any:
            return 50.0 * (tokens[None] == right[:, None]) + 0.0 * states.sum()

        monkeypatch.setattr(self.backbone, "logits", logits)
        return original(self, batch)

    monkeypatch.setattr(Method, "scores", oracle)
    found = []
    for order in (LABELS, LABELS[::-1], ("contradiction", "entailment", "neutral")):
        overrides = ["+method=pet", f"model_args.path={place.models('bert')}", "hp.pattern=10", "hp.max_steps=0"]
        cfg = nli3(*overrides, f"task.labels=[{','.join(order)}]", "split.run=0")
        run_trial(cfg, place.folder / order[0], threads=1)
        (result,) = results(place.folder / order[0])
        for which in ("dev", "test"):
            assert result[which]["metrics"] == {"accuracy": 1.0, "macro_f1": 1.0}
        (path,) = (place.folder / order[0]).rglob("predictions.parquet")
        found.append([(r["id"], r["gold"], r["prediction"]) for r in pq.read_table(path).to_pylist()])
    assert asked and found[0] == found[1] == found[2]
