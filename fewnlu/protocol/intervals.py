"""How sure a score or a difference is, when K runs are scored on the same n test rows.

Model: d[k, i] = mu + run_k + row_i + rest_ki, runs and rows crossed and both drawn at random, one value per cell. The
mean squares of the two-way table give an unbiased variance of the grand mean (Searle, Casella & McCulloch, *Variance
Components*, 1992, ch. 4),

    Var = (MS_run + MS_row - MS_rest) / (K n),

because E MS_run = n s_run + s_rest, E MS_row = K s_row + s_rest, E MS_rest = s_rest. A bootstrap over K = 4 runs covers
too little, and a standard error over rows alone leaves the runs out.

Three choices, each measured by `benchmarks/coverage.py` on studies with known truth:

- *Truncation.* The row component MS_row - MS_rest is not taken below 0. The run component is not truncated: doing so
  too makes intervals too wide where runs hardly differ (coverage up to 99 %).
- *Degrees of freedom.* Satterthwaite's f = Var² / (MS_run²/(K-1) + MS_row²/(n-1) + MS_rest²/((K-1)(n-1))), at least
  K - 1 and damped: df = (K-1) (f/(K-1))^(3/4). With K = 4 a small MS_run makes the interval narrow and f large at once,
  so the plain f covers 93 %; the exponent brings the critical value close to Welch's second-order expansion (1947).
  With it 95 % intervals of K = 4 to 16 runs cover 94 to 96 %. Two or three runs know too little of how runs differ:
  with smaller exponents they cover 92 to 99 % (K = 2) and 93 to 97 % (K = 3), and their notes say so.
- *Scale.* A score lies in 0..1 and its runs are skewed, so its interval is symmetric in logits (delta method).

Metrics that are no mean over rows are made into one by `influence`; where rows come in groups, groups stand for rows.

What an interval is about: h* as chosen, over new splits of *these* labelled rows and new test rows of the same kind.
New labelled sets are not covered: the K splits share one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

ESTIMAND = (
    "h* over new splits of these labelled rows and new test rows; new labelled sets are not covered, nor is the choice "
    "of h* itself"
)
DAMPING = 0.75  # exponent of Satterthwaite's degrees of freedom, see above
DAMPING_FEW = {2: 0.4, 3: 0.6}  # by number of runs
FEW = {2: "two runs: such intervals cover 92 to 99 %", 3: "three runs: such intervals cover 93 to 97 %"}


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval, as fractions.

    Attributes:
        low / high: NaN where no interval can be given; `note` says why.
        std_error: of the estimate; 0 only where every cell has the same value.
        df: degrees of freedom (as many as infinity where the interval is exact).
        varied: what the interval lets vary.
    """

    estimate: float
    low: float
    high: float
    std_error: float
    df: float
    level: float
    n_runs: int
    n_rows: int
    varied: str
    note: str = ""

    @property
    def known(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)


@dataclass(frozen=True)
class MeanSquares:
    """Two-way table of runs × rows, or a batch of them: every field has the batch's shape."""

    mean: Any
    run: Any
    row: Any
    rest: Any
    n_runs: int
    n_rows: int

    def variance(self) -> tuple[Any, Any]:
        """Variance of the grand mean and its degrees of freedom."""
        import numpy as np

        k, n = self.n_runs, self.n_rows
        total = self.run + np.maximum(self.row - self.rest, 0.0)
        # Runs with equal means by chance: only the rest is left to judge by. All 0 only where all cells agree.
        total = np.where(total > 1e-15, total, self.rest)
        spread = self.run**2 / (k - 1) + self.row**2 / (n - 1) + self.rest**2 / ((k - 1) * (n - 1))
        with np.errstate(divide="ignore", invalid="ignore"):
            f = np.where(spread > 0, total**2 / spread, k - 1.0)
        # Runs that agree in every cell are one run: the rows' own degrees of freedom.
        one = (self.run <= 1e-15) & (self.rest <= 1e-15)
        df = np.where(one, n - 1.0, (k - 1) * np.maximum(f / (k - 1), 1.0) ** DAMPING_FEW.get(k, DAMPING))
        return total / (k * n), np.minimum(df, k * n - 1)


def mean_squares(table: Any) -> MeanSquares:
    """Mean squares of tables [..., K, n], K and n at least 2."""
    import numpy as np

    d = np.asarray(table)
    k, n = d.shape[-2:]
    if k < 2 or n < 2:
        raise ValueError(f"a two-way table needs 2 runs and 2 rows, got {k} and {n}")
    by_run, by_row = d.mean(-1, dtype=np.float64), d.mean(-2, dtype=np.float64)
    mean = by_run.mean(-1)
    run = n * ((by_run - mean[..., None]) ** 2).sum(-1)
    row = k * ((by_row - mean[..., None]) ** 2).sum(-1)
    # Centred first for the sake of precision: values are 0, 1 and -1, but tables may be large.
    total = np.square(d - mean[..., None, None], dtype=np.float64).sum((-2, -1))
    rest = np.where(total - run - row > 1e-9 * np.maximum(total, 1e-300), total - run - row, 0.0)
    return MeanSquares(mean, run / (k - 1), row / (n - 1), rest / ((k - 1) * (n - 1)), k, n)


def difference_interval(table: Sequence[Sequence[float]], level: float = 0.95) -> Interval:
    """Interval of the mean of d[k, i], any values; for paired differences of two methods on the same rows.

    Args:
        table: [K, n]; K = 1 is allowed and then only rows vary.
    """
    return _interval(table, level, logit=False)


def score_interval(table: Sequence[Sequence[float]], level: float = 0.95) -> Interval:
    """Interval of one method's score, the mean of d[k, i] in 0..1 (1: run k has row i right)."""
    return _interval(table, level, logit=True)


def runs_interval(scores: Sequence[float], level: float = 0.95) -> Interval:
    """Interval over runs alone, for a metric that has no values per row: Student's t on K scores.

    The test rows are fixed, which `varied` says: it is narrower than one that lets them vary.
    """
    import numpy as np
    from scipy import stats

    values = np.asarray(scores, dtype=float)
    k = len(values)
    varied = "splits and training seeds; the test rows are fixed"
    if k == 0 or not np.isfinite(values).all():
        return _none(math.nan, level, k, 0, varied, "no score, or one that is not a number")
    if k < 2:
        return _none(float(values[0]), level, k, 0, varied, "one run: no spread can be seen")
    mean, error = float(values.mean()), float(values.std(ddof=1) / math.sqrt(k))
    if np.ptp(values) < 1e-12:
        return _none(mean, level, k, 0, varied, "all runs have the same score: splits and seeds had no visible effect")
    half = float(stats.t.ppf((1 + level) / 2, k - 1)) * error
    return Interval(mean, mean - half, mean + half, error, k - 1, level, k, 0, varied)


def p_value(interval: Interval) -> float:
    """Two-sided p of `estimate` = 0 by Student's t; 1 where every difference is 0, NaN where nothing is known."""
    from scipy import stats

    if interval.std_error == 0:
        return 1.0 if interval.estimate == 0 else math.nan
    if not math.isfinite(interval.std_error):
        return math.nan
    return float(2 * stats.t.sf(abs(interval.estimate) / interval.std_error, interval.df))


def detectable(interval: Interval, power: float = 0.8) -> float:
    """The smallest true difference that this many runs and rows, spread as these, would show with this power.

    (t[(1+level)/2] + t[power]) · standard error; NaN where there is no standard error.
    """
    from scipy import stats

    if not interval.std_error > 0:
        return math.nan
    t = stats.t.ppf([(1 + interval.level) / 2, power], interval.df)
    return float(t.sum() * interval.std_error)


def _interval(table: Any, level: float, logit: bool) -> Interval:
    import numpy as np
    from scipy import stats

    d = np.asarray(table, dtype=float)
    if d.ndim != 2 or not 0 < level < 1:
        raise ValueError(f"expected a table [runs, rows] and a level between 0 and 1, got {d.shape} and {level}")
    k, n = d.shape
    varied = "splits with their training seeds, and test rows" if k > 1 else "test rows only: one run"
    if d.size == 0 or not np.isfinite(d).all():
        return _none(math.nan, level, k, n, varied, "no cells, or one that is not a number")
    mean = float(d.mean())
    if n < 2:
        return _none(mean, level, k, n, varied, "one test row: no spread can be seen")
    note = FEW.get(k, "") if level == 0.95 else ""
    if k > 1 and bool((d == d[0]).all()):
        note = "all runs agree on every row: splits and training seeds had no effect"
    if np.ptp(d) == 0:
        return _constant(mean, level, k, n, varied, logit, note)
    if k == 1:
        variance, df = float(d.var(ddof=1) / n), float(n - 1)
    else:
        variance, df = (float(x) for x in mean_squares(d).variance())
    error = math.sqrt(variance)
    half = float(stats.t.ppf((1 + level) / 2, df)) * error
    low, high = mean - half, mean + half
    if logit:
        at, by = math.log(mean / (1 - mean)), half / (mean * (1 - mean))
        low, high = (1 / (1 + math.exp(-min(max(x, -700.0), 700.0))) for x in (at - by, at + by))
    return Interval(mean, low, high, error, df, level, k, n, varied, note)


def _constant(mean: float, level: float, k: int, n: int, varied: str, logit: bool, note: str) -> Interval:
    """Every cell alike. A score of 0 or 1 has Clopper and Pearson's exact interval over n rows, others have none."""
    if logit and mean in (0.0, 1.0):
        edge = ((1 - level) / 2) ** (1 / n)
        low, high = (edge, 1.0) if mean == 1 else (0.0, 1 - edge)
        return Interval(
            mean, low, high, 0.0, math.inf, level, k, n, "test rows", "exact, as every row has the same outcome"
        )
    return _none(mean, level, k, n, varied, note or "every cell has the same value", std_error=0.0)


def _none(mean: float, level: float, k: int, n: int, varied: str, note: str, std_error: float = math.nan) -> Interval:
    return Interval(mean, math.nan, math.nan, std_error, math.nan, level, k, n, varied, note)
