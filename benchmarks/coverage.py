"""Do the intervals of `fewnlu.protocol.intervals` cover, and is the paired test as often wrong as it says?

    python benchmarks/coverage.py [--studies 4000] [--seed 0]

Simulated studies with known truth: logit P(run k has row i right) = 0.8 + split_k + row_i, normal effects with
σ_split {0.3, 0.6} and σ_row {1, 1.5}; K {4, 8} runs, n {56, 277, 1000} test rows. Prints per setting how often the 95 %
interval of a score holds the true score, and how often the paired test at 5 % separates two methods of equal true
score, for three degrees of likeness: both find the same rows hard (1), partly (0.5), or unrelated ones (0). Each method
has split effects of its own. About 20 s for 4,000 studies each, one core.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.special import expit, logit

from fewnlu.protocol.intervals import MeanSquares, mean_squares

SPLITS, ROWS, RUNS, SIZES, LIKE = (0.3, 0.6), (1.0, 1.5), (4, 8), (56, 277, 1000), (1.0, 0.5, 0.0)
INTERCEPT = 0.8
CELLS = 4_000_000  # of one batch, to bound memory


@dataclass(frozen=True)
class Setting:
    split: float
    row: float
    k: int
    n: int


@dataclass(frozen=True)
class Measured:
    """Shares over the studies of one setting: covered by score intervals; falsely separated, by likeness of rows."""

    setting: Setting
    covered: float
    false: dict[float, float]


def settings() -> Iterator[Setting]:
    for split, row, k, n in itertools.product(SPLITS, ROWS, RUNS, SIZES):
        yield Setting(split, row, k, n)


def true_score(setting: Setting) -> float:
    """E sigmoid(0.8 + split + row), by Gauss-Hermite quadrature."""
    x, w = np.polynomial.hermite_e.hermegauss(201)
    return float((w / w.sum()) @ expit(INTERCEPT + np.hypot(setting.split, setting.row) * x))


def measure(setting: Setting, studies: int, rng: np.random.Generator, level: float = 0.95) -> Measured:
    k, n = setting.k, setting.n
    truth, covered, false = true_score(setting), 0, dict.fromkeys(LIKE, 0)
    batch = max(1, CELLS // (k * n))
    for start in range(0, studies, batch):
        m = min(batch, studies - start)

        def normal(*shape: int, sd: float) -> np.ndarray:
            return rng.standard_normal(shape, dtype=np.float32) * np.float32(sd)

        def right(effects: np.ndarray, shape: tuple[int, ...] = (m, k, n)) -> np.ndarray:
            return (rng.random(shape, dtype=np.float32) < expit(np.float32(INTERCEPT) + effects)).astype(np.float32)

        rows = normal(m, 1, n, sd=setting.row)
        a = right(normal(m, k, 1, sd=setting.split) + rows)
        covered += int(score_covered(mean_squares(a), truth, level).sum())
        for like in LIKE:
            theirs = like * rows + normal(m, 1, n, sd=setting.row * np.sqrt(1 - like**2))
            b = right(normal(m, k, 1, sd=setting.split) + theirs)
            false[like] += int(separated(mean_squares(a - b), level).sum())
    return Measured(setting, covered / studies, {like: count / studies for like, count in false.items()})


def score_covered(ms: MeanSquares, truth: float, level: float) -> np.ndarray:
    """Whether `score_interval` of each table holds the truth (the same formula, for a batch)."""
    variance, df = ms.variance()
    half = stats.t.ppf((1 + level) / 2, df) * np.sqrt(variance) / (ms.mean * (1 - ms.mean))
    return np.abs(logit(ms.mean) - logit(truth)) <= half


def separated(ms: MeanSquares, level: float) -> np.ndarray:
    variance, df = ms.variance()
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.abs(ms.mean) / np.sqrt(variance)
    return 2 * stats.t.sf(t, df) < 1 - level


def main() -> None:
    parser = argparse.ArgumentParser(description="Coverage of intervals and false positives of the paired test.")
    parser.add_argument("--studies", type=int, default=4000, help="simulated studies per setting")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    error = 100 * np.sqrt(0.05 * 0.95 / args.studies)
    print(f"{args.studies} studies per setting; Monte Carlo error {error:.2f} points")
    print("σ_split σ_row  K     n   covered %   false positives % (rows alike 1, 0.5, 0)")
    worst: list[float] = []
    for setting in settings():
        found = measure(setting, args.studies, rng)
        worst += [found.covered, *(1 - f for f in found.false.values())]
        print(
            f"{setting.split:7.1f} {setting.row:5.1f} {setting.k:2d} {setting.n:5d}   {100 * found.covered:9.1f}   "
            + "  ".join(f"{100 * f:4.1f}" for f in found.false.values()),
            flush=True,
        )
    print(f"covered or rightly not separated: {100 * min(worst):.1f} to {100 * max(worst):.1f} %")


if __name__ == "__main__":
    main()
