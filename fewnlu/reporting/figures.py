"""Figures as PNG and SVG with matplotlib (the optional extra `report`), imported when the first is drawn.

Equal records give equal SVG bytes: no date, fixed ids.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fewnlu.errors import ConfigError
from fewnlu.protocol.comparison import Comparison
from fewnlu.reporting.layout import count
from fewnlu.reporting.names import method_name, model_name, split_name, study_file, task_name
from fewnlu.reporting.outcomes import Outcomes, outcomes
from fewnlu.reporting.studies import Summary, dev_test_means
from fewnlu.reporting.sure import chosen_runs
from fewnlu.reporting.views import factor_values

MOST_LINES = 10  # in a panel
INK, STAR, SOFT = "#1f4e8c", "#c8501e", "#8a94a6"


@contextmanager
def _figure(out: Path, name: str, columns: int = 1, size: tuple[float, float] = (4.2, 3.4)) -> Iterator[Any]:
    """Axes of a new figure, written to `<out>/<name>.png` and `.svg` at the end."""
    try:
        import matplotlib
    except ImportError:
        raise ConfigError(
            "figures need matplotlib: pip install 'fewnlu[report]', or leave them out with --no-figures"
        ) from None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "fewnlu", "font.size": 8, "axes.titlesize": 9, "svg.fonttype": "none"}):
        figure = Figure(figsize=(size[0] * columns, size[1]), layout="constrained", dpi=110)
        axes = figure.subplots(1, columns, squeeze=False)[0]
        for axis in axes:
            axis.grid(True, color="#e4e7ec", linewidth=0.6)
            axis.set_axisbelow(True)
            axis.spines[["top", "right"]].set_visible(False)
        yield axes[0] if columns == 1 else axes
        out.mkdir(parents=True, exist_ok=True)
        FigureCanvasAgg(figure).print_png(out / f"{name}.png")  # savefig would draw each twice
        figure.set_layout_engine("none")  # laid out once
        FigureCanvasSVG(figure).print_svg(out / f"{name}.svg", metadata={"Date": None})


def draw_all(
    summaries: Sequence[Summary], curves: dict[Any, dict[int, Summary]], out: Path, most: int = 8
) -> list[str]:
    """Every figure that the records have something for, those of single studies for the first `most`; their names."""
    names = []
    for s in summaries[:most]:
        if s.study.runs and study_figure(s, out):
            names.append(f"study-{study_file(s.study)}")
    names += k_figures(curves, out)
    if sensitivity_figure(summaries, out):
        names.append("sensitivity")
    return names


def study_figure(s: Summary, out: Path) -> bool:
    """Three panels of one study: dev against test per h; dev looks of h*'s runs with the chosen step; confusion."""
    points, runs = dev_test_means(s.study), chosen_runs(s)
    found = outcomes(runs) if runs and all(r["test"] for r in runs) else "no test rows"
    if not points and not runs:
        return False
    with _figure(out, f"study-{study_file(s.study)}", columns=3) as (scatter, curve, matrix):
        _scatter(scatter, s, points)
        _learning(curve, runs)
        _confusion(matrix, s, found)
    return True


def _scatter(axis: Any, s: Summary, points: Sequence[tuple[dict[str, Any], float, float]]) -> None:
    axis.set(xlabel="dev mean, %", ylabel="test mean, %")
    axis.set_title("dev against test" + (f", {count(len(points), 'point')} of H" if points else ""))
    if not points:
        axis.text(0.5, 0.5, "no h with dev and test", ha="center", transform=axis.transAxes, color=SOFT)
        return
    axis.scatter([100 * p[1] for p in points], [100 * p[2] for p in points], s=14, color=INK, alpha=0.6, linewidths=0)
    star = [p for p in points if s.choice.h is not None and p[0] == dict(s.choice.h)]
    if star:
        at = (100 * star[0][1], 100 * star[0][2])
        axis.scatter(*at, s=90, marker="*", color=STAR, zorder=3)
        axis.annotate("h*", at, xytext=(-14, 4), textcoords="offset points", color=STAR)
    rho = "not defined" if math.isnan(s.rho) else f"{s.rho:.2f}"
    axis.text(0.02, 0.98, f"Spearman {rho}", transform=axis.transAxes, va="top", color=SOFT)


def _learning(axis: Any, runs: Sequence[dict[str, Any]]) -> None:
    axis.set(xlabel="optimiser step", ylabel="dev score, %", title="dev looks of h*, chosen step marked")
    for r in runs:
        looks = [(step, 100 * score) for step, score in r["looks"] if score is not None]
        if not looks:
            continue
        (line,) = axis.plot(*zip(*looks, strict=True), linewidth=1, marker=".", markersize=3, label=f"k={r['k']}")
        chosen = dict(looks).get(r["chosen_step"])
        if chosen is not None:
            axis.plot(r["chosen_step"], chosen, marker="o", markersize=7, fillstyle="none", color=line.get_color())
    if axis.lines:
        axis.legend(frameon=False, fontsize=7)
    else:
        axis.text(0.5, 0.5, "dev was not looked at", ha="center", transform=axis.transAxes, color=SOFT)


def _confusion(axis: Any, s: Summary, found: Outcomes | str) -> None:
    axis.grid(False)
    labels = [str(x) for x in s.study.config["task"].get("labels") or []]
    if isinstance(found, str) or not labels or len(labels) > 12 or not set(found.gold) <= set(labels):
        why = found if isinstance(found, str) else f"{len(labels)} labels" if len(labels) > 12 else "no fixed labels"
        axis.text(0.5, 0.5, why, ha="center", va="center", transform=axis.transAxes, color=SOFT, wrap=True)
        axis.set_title("confusion on test")
        return
    import numpy as np

    columns = [*labels, *sorted({said for row in found.said for said in row} - set(labels))]  # answers that are none
    place = {label: i for i, label in enumerate(columns)}
    counts = np.zeros((len(labels), len(columns)))
    for row in found.said:
        for gold, said in zip(found.gold, row, strict=True):
            counts[place[str(gold)], place[said]] += 1 / len(found.said)
    axis.imshow(counts / np.maximum(counts.sum(1, keepdims=True), 1e-9), cmap="Blues", vmin=0, vmax=1)
    for (i, j), n in np.ndenumerate(counts):
        dark = n > 0.6 * max(counts[i].sum(), 1e-9)
        axis.text(j, i, f"{n:.1f}".removesuffix(".0"), ha="center", va="center", color="white" if dark else "black")
    axis.set(xticks=range(len(columns)), yticks=range(len(labels)), xlabel="predicted", ylabel="gold")
    axis.set_xticklabels([_short(x) for x in columns], rotation=30 if len(columns) > 2 else 0)
    axis.set_yticklabels([_short(x) for x in labels])
    axis.set_title("confusion on test, rows per run of h*")


def _short(text: str, most: int = 16) -> str:
    text = text.replace("$", r"\$")
    return text if len(text) <= most else text[: most - 1] + "…"


def k_figures(curves: dict[Any, dict[int, Summary]], out: Path) -> list[str]:
    """Per task the paper's three K-curves, one line per strategy: test score, Spearman, std over the K runs."""
    groups: dict[tuple[str, ...], dict[str, dict[int, Summary]]] = {}
    for (task, model, method, strategy), by_k in curves.items():
        groups.setdefault((task, model, method), {})[strategy] = by_k
    names = []
    for ident, by_strategy in groups.items():
        if max(len(by_k) for by_k in by_strategy.values()) < 2:
            continue
        name = re.sub(r"[^A-Za-z0-9._+=-]+", "_", "k_curves-" + "-".join(ident))
        nan = math.nan
        with _figure(out, name, columns=3) as axes:
            for strategy, by_k in by_strategy.items():
                ks = sorted(by_k)
                test = [by_k[k].test.get("select") for k in ks]
                values = (
                    [100 * t.mean if t else nan for t in test],
                    [by_k[k].rho for k in ks],
                    [100 * t.std if t else nan for t in test],
                )
                for axis, value in zip(axes, values, strict=True):
                    axis.plot(ks, value, marker="o", markersize=4, linewidth=1.2, label=strategy)
            for axis, what in zip(axes, ("test of h*, %", "Spearman over H", "std over K runs, points"), strict=True):
                axis.set_xscale("log", base=2)
                ticks = sorted({k for by_k in by_strategy.values() for k in by_k})
                axis.set_xticks(ticks, [str(k) for k in ticks])
                axis.set(xlabel="K", title=f"{what}")
            handles, shown = axes[0].get_legend_handles_labels()  # below, where it covers no curve
            axes[0].figure.legend(handles, shown, loc="outside lower center", ncols=6, frameon=False, fontsize=7)
        names.append(name)
    return names


def sensitivity_figure(summaries: Sequence[Summary], out: Path, factors: Collection[str] | None = None) -> bool:
    """Test mean over the values of one factor, the others as in h*; one panel per factor, one line per study.

    Args:
        factors: only these; None: all.
    """
    panels: dict[str, list[tuple[str, list[tuple[Any, float, float]]]]] = {}
    for s in summaries:
        if s.choice.h is None:
            continue
        name = f"{task_name(s.study)} {method_name(s.study)} {model_name(s.study)} {split_name(s.study)}"
        for factor, values in factor_values(s.study, dict(s.choice.h)).items():
            panels.setdefault(factor, []).append((name, values))
    if factors is not None:
        panels = {factor: lines for factor, lines in panels.items() if factor in factors}
    if not panels:
        return False
    with _figure(out, "sensitivity", columns=len(panels), size=(3.0, 3.0)) as axes:
        for axis, (factor, lines) in zip(axes if len(panels) > 1 else [axes], panels.items(), strict=True):
            every = sorted({v[0] for _, values in lines for v in values}, key=lambda v: (str(type(v)), v))
            place = {value: i for i, value in enumerate(every)}
            for name, values in lines[:MOST_LINES]:
                at = [place[v[0]] for v in values]
                axis.plot(at, [100 * v[2] for v in values], marker="o", markersize=4, linewidth=1, label=name)
            left = len(lines) - MOST_LINES
            axis.set(title=factor + (f" ({left} studies more)" if left > 0 else ""), ylabel="test mean, %")
            axis.set_xticks(range(len(every)), [f"{v:g}" if isinstance(v, float) else str(v) for v in every])
            axis.tick_params(axis="x", rotation=40 if len(every) > 4 else 0)
            if len(lines) > 1:
                axis.legend(frameon=False, fontsize=5)
    return True


def difference_figure(table: Sequence[Comparison], out: Path, name: str = "differences") -> bool:
    """Differences with their intervals; filled where Holm's correction leaves them apart."""
    shown = [c for c in table if c.difference.known]
    if not shown:
        return False
    with _figure(out, name, size=(6.4, 1.2 + 0.32 * len(shown))) as axis:
        for i, c in enumerate(reversed(shown)):
            d, color = c.difference, STAR if c.separated else INK
            axis.plot([100 * d.low, 100 * d.high], [i, i], color=color, linewidth=1.6)
            axis.plot(100 * d.estimate, i, "o", color=color, fillstyle="full" if c.separated else "none")
        axis.axvline(0, color=SOFT, linewidth=0.8)
        axis.set_yticks(range(len(shown)), [f"{c.a} − {c.b}" for c in reversed(shown)])
        sure = f"{100 * shown[0].difference.level:g} % interval"
        axis.set(xlabel=f"difference in test score, points ({sure}; filled: apart after Holm)")
    return True


def critical_differences(ranks: dict[str, float], distance: float, n_tasks: int, out: Path) -> None:
    """Demšar's diagram: mean rank of each method over tasks; bars join methods closer than the critical distance."""
    names = sorted(ranks, key=lambda n: ranks[n])
    bars: list[tuple[float, float]] = []
    for i, first in enumerate(names):
        last = [n for n in names[i:] if ranks[n] - ranks[first] <= distance][-1]
        if last != first and not any(a <= ranks[first] and ranks[last] <= b for a, b in bars):
            bars.append((ranks[first], ranks[last]))
    with _figure(out, "critical_differences", size=(6.4, 1.4 + 0.3 * len(names))) as axis:
        for i, n in enumerate(names):
            axis.plot(ranks[n], -i, "o", color=INK)
            axis.annotate(
                f" {n} ({ranks[n]:.2f})", (ranks[n], -i), va="center", xytext=(5, 0), textcoords="offset points"
            )
        for i, (low, high) in enumerate(bars):
            axis.plot([low, high], [0.5 + 0.3 * i] * 2, color=STAR, linewidth=3, solid_capstyle="butt")
        axis.set(yticks=[], xlabel=f"mean rank over {n_tasks} tasks (1 is best); critical distance {distance:.2f}")
        axis.margins(x=0.25)
