"""What the main job's shortcuts are worth, as ratios measured side by side in one run.

    python benchmarks/speed.py [--repeat 3]

Pairs, each on the embedded model and task (fetched on first use), interleaved A B A B …, median of the ratios:

- frozen layers' outputs kept   against computed anew in every batch (runtime.cache_gb=0)
- evaluation ratios in one job  against one training each
- padding per batch, sorted     against evaluation in file order
Results are the same either way (a test compares them); only the time differs. About eight minutes on two cores.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3, help="pairs of each comparison (default 3)")
    args = parser.parse_args()
    from fewnlu.protocol.check import config_loader
    from fewnlu.protocol.compose import compose

    base = compose(
        config_loader(), ["+method=pet", "search=none", "logger=none", "split.run=[0]", "hp.max_steps=20"]
    ).cfg
    ratios = [0.2, 0.4, 0.5]

    def cached() -> None:
        trial(base)

    def uncached() -> None:
        trial(changed(base, "runtime", cache_gb=0.0))

    def together() -> None:
        trial(changed(base, "runtime", share=[{"eval_ratio": r} for r in ratios]))

    def apart() -> None:
        for ratio in ratios:
            trial(changed(base, "hp", eval_ratio=ratio))

    trial(base)  # reads the model and fills the cache once: a sweep does this once a process, too
    compare("frozen layers computed anew / kept", uncached, cached, args.repeat)
    compare("three evaluation ratios, a training each / one training", apart, together, args.repeat)
    compare("300 test rows in file order, padded alike / sorted by length", *evaluation(base), args.repeat)


def changed(cfg: dict[str, Any], section: str, **values: Any) -> dict[str, Any]:
    cfg = copy.deepcopy(cfg)
    cfg[section].update(values)
    return cfg


def trial(cfg: dict[str, Any]) -> None:
    from fewnlu.protocol.trial import run_trial

    with tempfile.TemporaryDirectory() as folder:
        run_trial(cfg, Path(folder))


def evaluation(cfg: dict[str, Any]) -> tuple[Callable[[], None], Callable[[], None]]:
    import torch

    from fewnlu.methods.method import Context, method_class
    from fewnlu.protocol.lab import Lab
    from fewnlu.protocol.setup import read_setup

    setup = read_setup(changed(cfg, "runtime", cache_gb=0.0))
    lab = Lab(setup, ("", ""), lambda *_: None)
    method = method_class("pet")(Context(lab.backbone, setup.task, setup.hs[0], {})).eval()
    table = lab.table("test", setup.hs[0])
    assert table is not None
    rows = list(range(0, len(table), 3))

    @torch.no_grad()
    def in_order() -> None:
        longest = max(rows, key=lambda r: len(table.encoded[r].input_ids))
        for start in range(0, len(rows), 32):
            method.scores(table.batch([*rows[start : start + 32], longest]))

    @torch.no_grad()
    def by_length() -> None:
        for _, batch in table.batches(rows, 32):
            method.scores(batch)

    return in_order, by_length


def compare(name: str, slow: Callable[[], None], fast: Callable[[], None], repeat: int) -> None:
    pairs = []
    for _ in range(repeat):
        times = []
        for run in (slow, fast):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        pairs.append(times)
    values = [a / b for a, b in pairs]
    print(
        f"{name}: {statistics.median(values):.2f} (min {min(values):.2f}, max {max(values):.2f}; "
        f"medians {statistics.median(p[0] for p in pairs):.1f} s and {statistics.median(p[1] for p in pairs):.1f} s)",
        flush=True,
    )


if __name__ == "__main__":
    main()
