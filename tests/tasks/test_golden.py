"""Renderings of one self-written row per (task, pattern), compared with the committed text (fault I010).

After a wanted change: FEWNLU_GOLDEN=write pytest tests/tasks/test_golden.py, then read the difference.
"""

import os
from pathlib import Path

import pytest

from fewnlu.prompts.preview import preview, toy_tokenizer
from fewnlu.prompts.template import usable_by_causal
from tests.tasks.samples import ITEMS, sample

GOLDEN = Path(__file__).parent / "golden"


def rendered(folder: Path, name: str) -> str:
    task, rows = sample(folder, name)
    tokenizer = toy_tokenizer(task, rows)
    out = []
    for pattern in (*task.patterns.values(), *task.ptuning.values()):
        for kind in pattern.kinds:
            if kind == "masked" or usable_by_causal(pattern.template):
                slots = "P-tuning " if pattern is task.ptuning.get(pattern.id) else ""
                out.append(f"{slots}pattern {pattern.id}, {kind}")
                out += preview(tokenizer, kind, task, pattern, rows[0], rows).lines(task.max_length)
    return "\n".join(out) + "\n"


@pytest.mark.parametrize("name", ITEMS)
def test_i010_prompts_and_answers_are_as_committed(tmp_path, name):
    text, path = rendered(tmp_path, name), GOLDEN / f"{name}.txt"
    if os.environ.get("FEWNLU_GOLDEN") == "write":
        path.write_text(text, "utf-8")
    assert text == path.read_text("utf-8")
