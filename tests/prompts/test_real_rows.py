"""Every row of the real sets under every pattern, where the shared data folder is there."""

from pathlib import Path

import pytest

from fewnlu.prompts.encoding import Encoder
from fewnlu.prompts.template import usable_by_causal
from fewnlu.prompts.verbalizer import resolve
from fewnlu.tasks.sources import load
from tests.prompts.toys import byte_bpe, wordpiece
from tests.tasks.test_task import shipped

DATA = Path("../shared/data/superglue")
TASKS = {"rte": (64, 277), "cb": (64, 56), "boolq": (64, 3270), "wic": (64, 638)}

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no {DATA}: the real rows are not in this checkout")


@pytest.mark.parametrize("name", TASKS)
def test_i030_every_row_under_every_pattern(name):
    task = shipped(name)
    data = load(task, {"dir": str(DATA), "n_labeled": None, "limit_test": None})
    assert (len(data.labeled.rows), len(data.test.rows), data.n_leaks) == (*TASKS[name], 0)
    rows = [*data.labeled.rows, *data.test.rows]
    masked, causal = wordpiece(), byte_bpe(causal="bos")
    for pattern in task.patterns.values():
        resolve(masked, pattern, labels=task.labels)
    # Patterns that differ in their words only encode alike.
    for pattern in {p.template: p for p in task.patterns.values()}.values():
        for row in Encoder(masked, "masked", pattern, 64).encode_rows(rows):
            assert row.input_ids.count(masked.mask_token_id) == 1 == len(row.read)
            assert len(row.input_ids) <= 64 and row.input_ids[row.read[0]] == masked.mask_token_id
        if usable_by_causal(pattern.template) and name != "wic":
            encoder = Encoder(causal, "causal", pattern, 128)
            for row in encoder.encode_rows(rows[:64]):
                assert len(row.input_ids) <= 128 and row.input_ids.count(causal.bos_token_id) == 1


def test_templates_beyond_ten_repeat_those_below():
    for name in TASKS:
        patterns = shipped(name).patterns
        for i, pattern in patterns.items():
            if i >= 10:
                assert pattern.template == patterns[i - 10].template
                assert all(len(words) == 2 for words in pattern.verbalizer.values())
