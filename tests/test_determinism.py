"""Numbers do not depend on the number of threads: what is set before torch is loaded does what it is set for."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from fewnlu.determinism import before_torch
from tests.running import ROOT

# Gradients of a weight sum over all tokens of a batch; MKL splits such a sum over its threads unless told otherwise.
SCRIPT = """
from fewnlu.determinism import before_torch
before_torch()
import torch
found = []
for threads in (1, 2):
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(576, 192, bias=False), torch.randn(32, 100, 576)
    layer(x).square().mean().backward()
    found.append(layer.weight.grad)
print(torch.equal(*found))
"""


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this torch is built without MKL")
def test_one_thread_and_two_give_the_same_gradient() -> None:
    env = {k: v for k, v in os.environ.items() if k not in ("MKL_CBWR", "OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        timeout=120,
        env={**env, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.strip() == "True", done.stderr


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    before_torch()
    assert os.environ["MKL_CBWR"] == "COMPATIBLE" and os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
