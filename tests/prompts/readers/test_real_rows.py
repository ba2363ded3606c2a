"""Real rows of the tasks with layouts, where the shared data folder is there: counts, units, patterns, an oracle."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fewnlu.prompts.preview import toy_tokenizer
from fewnlu.prompts.readers import Reading, reader_for
from fewnlu.prompts.template import usable_by_causal
from fewnlu.prompts.verbalizer import resolve
from fewnlu.tasks.metrics import score_rows
from fewnlu.tasks.sources import load, load_rows
from tests.prompts.readers.stubs import oracle
from tests.tasks.test_task import shipped

DATA = Path(__file__).parents[4] / "shared" / "data" / "superglue"
# labelled rows, labelled units, test rows, pool rows before and after removal
TASKS = {"copa": (128, 64, 100, 800), "wsc": (64, 57, 104, 554), "multirc": (321, 64, 4848, 27243)}

pytestmark = pytest.mark.skipif(
    not DATA.is_dir(), reason="no ../shared/data/superglue: real rows are not in this checkout"
)


@pytest.mark.parametrize("name", TASKS)
def test_counts_units_and_nothing_rejected(name):
    task = shipped(name)
    data = load(task, {"dir": str(DATA)})
    assert data.test is not None and data.n_leaks == 0
    rows = data.labeled.rows
    assert (len(rows), len({r.unit for r in rows}), len(data.test.rows)) == TASKS[name][:3]
    assert data.labeled.notes == () == data.test.notes
    if name == "multirc":
        assert len({r.meta["group"] for r in data.test.rows}) == 953


@pytest.mark.parametrize("name", [*TASKS, "record"])
def test_i030_every_pattern_reads_real_rows_and_an_oracle_is_right(name):
    task = shipped(name)
    sets = [
        load_rows(task, {"dir": str(DATA)}, which) for which in ("labeled", *(["test"] if name != "record" else []))
    ]
    labeled = list(sets[0].rows)[:40] if name != "record" else list(sets[0].rows)[:6]
    rows = labeled + [row for one in sets[1:] for row in one.rows[:40]]
    tokenizer = toy_tokenizer(task, rows)
    for pattern in {(p.template, p.span): p for p in task.patterns.values()}.values():
        for kind in pattern.kinds:
            if kind == "causal" and not usable_by_causal(pattern.template):
                continue
            reader = reader_for(tokenizer, kind, pattern, task, Reading(fill="left_to_right"), labeled)
            encoded, gold = reader.encode(rows), [task.gold(row) for row in rows]
            for one in encoded:
                assert len(one.input_ids) <= task.max_length
                for sequence in one.evaluate or (one,):
                    masks = sequence.input_ids.count(tokenizer.mask_token_id)
                    assert masks == (len(sequence.read) if kind == "masked" else 0)
            words = resolve(tokenizer, pattern, labels=task.labels, kind=kind) if pattern.answer == "words" else None
            part = slice(0, 10)
            model = oracle(reader, encoded[part], gold[part], words)
            with torch.no_grad():
                batch = reader.collate(encoded[part], gold[part], tokenizer.pad_token_id, False)
                scores = reader.scores(model, batch).numpy()
            found = score_rows(task, scores, rows[part])
            assert found["answer_em" if name == "record" else "accuracy"] == 1.0, (pattern.id, kind, found)
