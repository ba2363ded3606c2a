"""Between runs the weights go back bit for bit, in memory and in place, and memory stays flat."""

from __future__ import annotations

import gc
import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.backbones.test_backbone import encode


def digest(backbone) -> str:
    sha = hashlib.sha256()
    for name, parameter in backbone.model.named_parameters():
        sha.update(name.encode() + parameter.detach().numpy().tobytes())
    return sha.hexdigest()


def train(backbone, steps=2):
    ids, mask, types = encode(backbone)
    backbone.train()
    optimiser = torch.optim.AdamW([p for p in backbone.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(steps):
        backbone.logits(backbone.hidden(ids, mask, types)[:, 1]).logsumexp(-1).sum().backward()
        optimiser.step()
        optimiser.zero_grad()
    backbone.eval()


@pytest.mark.parametrize("frozen", [0, 2])
@pytest.mark.parametrize("family", ["bert", "deberta_v2", "gpt2"])
def test_restore_is_bit_for_bit(load, family, frozen):
    backbone = load(family, freeze_layers=frozen)
    before, addresses = digest(backbone), [p.data_ptr() for p in backbone.parameters()]
    train(backbone)
    assert digest(backbone) != before
    backbone.restore()
    assert digest(backbone) == before
    assert [p.data_ptr() for p in backbone.parameters()] == addresses
    assert all(p.grad is None for p in backbone.parameters())
    trainable = {n for n, p in backbone.model.named_parameters() if p.requires_grad}
    assert backbone.initial_state().keys() == trainable


def test_a_second_load_is_the_same_object_with_its_first_weights(load):
    backbone = load("bert", freeze_layers=2)
    before = digest(backbone)
    train(backbone)
    assert load("bert", freeze_layers=2) is backbone and digest(backbone) == before
    train(backbone)
    assert load("bert", freeze_layers=0) is backbone and digest(backbone) == before
    assert all(p.requires_grad for p in backbone.model.parameters())
    train(backbone)
    assert load("bert", freeze_layers=3) is backbone and digest(backbone) == before
    assert load("gpt2") is not backbone


def test_snapshot_keeps_the_best_weights(load):
    backbone = load("roberta", freeze_layers=1)
    train(backbone)
    best, at_best = backbone.snapshot(), digest(backbone)
    train(backbone)
    assert digest(backbone) != at_best
    backbone.load_snapshot(best)
    assert digest(backbone) == at_best
    backbone.freeze(2)
    with pytest.raises(ValueError, match="other trainable tensors"):
        backbone.load_snapshot(best)


def test_memory_is_flat_over_runs(load):
    """I088: bytes of living tensors and of the process, flat from the third of 20 runs on."""
    backbone = load("bert", freeze_layers=1)

    def memory() -> tuple[int, int]:
        gc.collect()
        kinds = (torch.Tensor, torch.nn.Parameter)
        tensors = {t.data_ptr(): t.nbytes for t in gc.get_objects() if type(t) in kinds}
        statm = Path("/proc/self/statm")
        resident = int(statm.read_text().split()[1]) if statm.exists() else 0
        return sum(tensors.values()), resident

    seen = {}
    for run in range(20):
        backbone.restore()
        train(backbone, steps=1)
        backbone.load_snapshot(backbone.snapshot())
        if run in (2, 10, 19):
            seen[run] = memory()
    for run in (10, 19):
        assert seen[run][0] <= seen[2][0] * 1.05 and seen[run][1] <= seen[2][1] * 1.05, seen


_FRESH = """
import sys, torch
sys.path.insert(0, {root!r})
from fewnlu.backbones.loading import load_backbone
from tests.backbones.test_restore import digest
torch.manual_seed(int(sys.argv[1]))
print(digest(load_backbone("local", path={folder!r})))
"""


def test_loaded_weights_depend_on_no_seed(tiny, load):
    """I067: nothing is drawn when a model is read; new layers are the methods' and seeded there."""
    root = str(Path(__file__).resolve().parents[2])
    code = _FRESH.format(root=root, folder=str(tiny("bert")))
    done = subprocess.run([sys.executable, "-c", code, "43"], capture_output=True, text=True, check=True)
    torch.manual_seed(42)
    state = torch.get_rng_state()
    assert digest(load("bert")) == done.stdout.strip()
    load("bert", freeze_layers=2)
    assert torch.equal(torch.get_rng_state(), state), "reading a model must not move the global generator"
