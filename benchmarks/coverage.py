"""Do the intervals of `fewnlu.protocol.intervals` cover, and is the paired test as often wrong as it says?

    python benchmarks/coverage.py [--studies 4000] [--seed 0]
    python benchmarks/coverage.py --metrics [--studies 500]

Simulated studies with known truth: logit P(run k has row i right) = 0.8 + split_k + row_i, normal effects with
σ_split {0.3, 0.6} and σ_row {1, 1.5}; K {4, 8} runs, n {56, 277, 1000} test rows. Prints per setting how often the 95 %
interval of a score holds the true score, and how often the paired test at 5 % separates two methods of equal true
score, for three degrees of likeness: both find the same rows hard (1), partly (0.5), or unrelated ones (0). Each method
has split effects of its own. About 20 s for 4,000 studies each, one core.

With --metrics: the metrics that `fewnlu.protocol.influence` linearises, and exact match over groups. Each run prefers
some labels (σ 0.5 per label and run), is right by 1.2 + split (σ 0.4) + row (σ 1) + group (σ 0.7) against Gumbel noise;
56 rows with a rare label (as in CB), 277 rows of two and of three labels, 1,000 rows of four, and 60 and 166 questions
of five answers each (as in MultiRC). About 7 s per setting for 500 studies.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.special import expit, logit

from fewnlu.protocol.influence import METRICS, unit_values
from fewnlu.protocol.intervals import MeanSquares, mean_squares

SPLITS, ROWS, RUNS, SIZES, LIKE = (0.3, 0.6), (1.0, 1.5), (4, 8), (56, 277, 1000), (1.0, 0.5, 0.0)
INTERCEPT = 0.8
SHOWN = tuple(name for name in METRICS if name != "f1a")  # which is f1_binary
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


@dataclass(frozen=True)
class Labelled:
    """Rows with labels in groups: `n` groups of `size` rows, labels drawn by `prior`; the last one is the positive."""

    k: int
    n: int
    size: int
    prior: tuple[float, ...]

    def draw(self, rng: np.random.Generator, runs: int, groups: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """gold [rows], said [runs, rows], group [rows]."""
        c, rows = len(self.prior), groups * self.size
        gold, group = rng.choice(c, size=rows, p=self.prior), np.repeat(np.arange(groups), self.size)
        easy = rng.normal(size=rows) + 0.7 * rng.normal(size=groups)[group]
        score = rng.gumbel(size=(runs, rows, c)) + 0.5 * rng.normal(size=(runs, 1, c))
        score[:, np.arange(rows), gold] += 1.2 + 0.4 * rng.normal(size=(runs, 1)) + easy
        return gold, score.argmax(2), group


LABELLED = tuple(
    Labelled(k, *shape)
    for k in RUNS
    for shape in (
        (56, 1, (0.41, 0.50, 0.09)),
        (277, 1, (0.5, 0.5)),
        (277, 1, (0.41, 0.50, 0.09)),
        (1000, 1, (0.25,) * 4),
        (60, 5, (0.57, 0.43)),
        (166, 5, (0.57, 0.43)),
    )
)


def metrics_covered(
    setting: Labelled, studies: int, rng: np.random.Generator, names: tuple[str, ...] = SHOWN, large: int = 400
) -> dict[str, tuple[float, float, float]]:
    """Per metric its truth (the mean of `large` runs of 20,000 rows), bias and coverage of the 95 % interval."""

    def values(name: str, drawn: tuple[np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
        gold, said, group = drawn
        c = len(setting.prior)
        return unit_values(name, gold, said, c, positive=c - 1, units=group)

    many = [setting.draw(rng, 1, 20_000 // setting.size) for _ in range(large)]
    truth = {name: float(np.mean([values(name, one).mean() for one in many])) for name in names}
    inside: dict[str, list[bool]] = {name: [] for name in names}
    off: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(studies):
        drawn = setting.draw(rng, setting.k, setting.n)
        for name in names:
            ms = mean_squares(values(name, drawn))
            mean, (variance, df) = float(ms.mean), ms.variance()
            if name == "mcc":
                inside[name].append(bool(abs(mean - truth[name]) <= stats.t.ppf(0.975, df) * np.sqrt(variance)))
            elif 0 < mean < 1:
                inside[name].append(bool(score_covered(ms, truth[name], 0.95)))
            off[name].append(mean - truth[name])
    return {name: (truth[name], float(np.mean(off[name])), float(np.mean(inside[name]))) for name in names}


def print_metrics(studies: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    print(f"{studies} studies per setting; Monte Carlo error {100 * np.sqrt(0.05 * 0.95 / studies):.1f} points")
    print("per metric: truth, bias and coverage in %")
    print(" K    n size labels  " + "".join(f"{name:>22}" for name in SHOWN))
    every = []
    for setting in LABELLED:
        found = metrics_covered(setting, studies, rng)
        every += [covered for _, _, covered in found.values()]
        cells = "".join(f"{100 * t:10.1f} {100 * b:+5.2f} {100 * c:5.1f}" for t, b, c in found.values())
        print(f"{setting.k:2d} {setting.n:4d} {setting.size:4d} {len(setting.prior):6d}  {cells}", flush=True)
    print(f"covered: {100 * min(every):.1f} to {100 * max(every):.1f} %, mean {100 * np.mean(every):.1f} %")


def main() -> None:
    parser = argparse.ArgumentParser(description="Coverage of intervals and false positives of the paired test.")
    parser.add_argument("--studies", type=int, help="simulated studies per setting (default 4000; with --metrics 500)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--metrics", action="store_true", help="F1, MCC and exact match over groups instead")
    args = parser.parse_args()
    if args.metrics:
        print_metrics(args.studies or 500, args.seed)
        return
    args.studies = args.studies or 4000
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
