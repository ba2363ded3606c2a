"""A model that knows everything scores 1.0 and one that knows nothing scores as chance, on every task and pattern."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fewnlu.prompts.preview import toy_tokenizer
from fewnlu.prompts.readers import Reading, reader_for
from fewnlu.prompts.readers.base import FILLS
from fewnlu.prompts.template import usable_by_causal
from fewnlu.prompts.verbalizer import resolve
from fewnlu.tasks.metrics import controls, score_rows
from tests.prompts.readers.stubs import oracle
from tests.tasks.samples import ITEMS, sample
from tests.tasks.test_task import shipped

CASES = [
    (name, pattern.id, kind, fill)
    for name in ITEMS
    for pattern in shipped(name).patterns.values()
    for kind in pattern.kinds
    if kind == "masked" or usable_by_causal(pattern.template)
    for fill in (FILLS if kind == "masked" and pattern.answer != "words" else FILLS[:1])
]


@pytest.mark.parametrize(("name", "pattern_id", "kind", "fill"), CASES)
def test_i010_i002_i028_an_oracle_scores_one(tmp_path, name, pattern_id, kind, fill):
    task, rows = sample(tmp_path, name)
    pattern = task.patterns[pattern_id]
    tokenizer = toy_tokenizer(task, rows)
    reader = reader_for(tokenizer, kind, pattern, task, Reading(fill=fill), rows)
    encoded, gold = reader.encode(rows), [task.gold(row) for row in rows]
    words = resolve(tokenizer, pattern, labels=task.labels, kind=kind) if pattern.answer == "words" else None
    model = oracle(reader, encoded, gold, words)
    with torch.no_grad():
        scores = reader.scores(model, reader.collate(encoded, gold, tokenizer.pad_token_id, False)).numpy()
    assert set(score_rows(task, scores, rows).values()) == {1.0}


@pytest.mark.parametrize("name", ITEMS)
def test_i010_a_random_reader_is_within_three_standard_errors_of_chance(tmp_path, name):
    task, rows = sample(tmp_path, name)
    gold, meta = [task.gold(row) for row in rows], [row.meta for row in rows]
    chance = controls(task, gold, meta=meta)["chance"]
    rng = np.random.default_rng(7)
    widths = np.array([len(task.column_names(row)) for row in rows])
    draws = []
    for _ in range(1000):
        scores = rng.normal(size=(len(rows), widths.max()))
        scores[np.arange(widths.max())[None, :] >= widths[:, None]] = -np.inf
        draws.append(score_rows(task, scores, rows))
    for metric, expected in chance.items():
        values = np.array([one[metric] for one in draws])
        error = values.std(ddof=1) / np.sqrt(len(values))
        own = 0.0 if metric == "accuracy" and task.labels else error  # chance is itself a mean of 1,000 draws
        assert abs(values.mean() - expected) <= 3 * np.hypot(error, own), (metric, values.mean(), expected)
