"""Summaries as text, for the end of a sweep and for `report show`."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fewnlu.protocol.records import SHORT
from fewnlu.reporting.average import averages
from fewnlu.reporting.layout import METRIC_NAMES, count
from fewnlu.reporting.names import method_choice, score_name, seeds_differ, seeds_text
from fewnlu.reporting.studies import Spread, Summary, places


def points(value: float, digits: int = 1) -> str:
    """A fraction as percentage points; `–` where there is no number."""
    return "–" if value is None or math.isnan(value) else f"{100 * value:.{digits}f}"


def alike(value: Spread) -> bool:
    """Whether several runs have one and the same score, which must not look like a tiny spread (fault I021)."""
    return value.n > 1 and value.std < 1e-12


def spread(value: Spread) -> str:
    """Mean ± sample standard deviation in points; the second half only where there are two runs that differ."""
    return (
        points(value.mean) if math.isnan(value.std) or alike(value) else f"{points(value.mean)} ± {points(value.std)}"
    )


def hp_text(h: Any) -> str:
    """h as ``name=value`` pairs, what matters most first."""
    names = [n for n in SHORT if n in h] + [n for n in h if n not in SHORT]
    return " ".join(f"{n}={h[n]:g}" if isinstance(h[n], float) else f"{n}={h[n]}" for n in names)


def study_text(summary: Summary) -> str:
    """One study as an aligned block of lines."""
    study, choice = summary.study, summary.choice
    config = study.config
    n_h = len(study.runs)
    title = f"{study.name}"
    lines: list[tuple[str, str]] = []
    if config:
        lines.append(
            (
                "compared",
                f"task {config['task']['name']}, method {method_choice(study)}, model "
                f"{config['model']['name']}, split {_split(config, study.k_total)}; seeds {seeds_text(study)}",
            )
        )
    select = config.get("task", {}).get("select") or config.get("task", {}).get("metrics") or ["score"]
    what = score_name(config)
    if choice.h is not None:
        tied = f"{choice.tied} tied on the dev mean" if choice.tied > 1 else "no tie"
        lines.append(("h*", hp_text(choice.h)))
        drawn = f" sampled by {study.sampled}" if study.sampled else ""
        lines.append(("", f"best dev mean of {count(choice.candidates, 'point')} of H{drawn}, {tied}"))
        dev = Spread(choice.mean, choice.std, len(study.runs[_canon(choice.h)]))
        note = f"{what}, mean ± std over {dev.n} runs" if dev.n > 1 else f"{what}, one run"
        note = f"{what}, all {dev.n} runs score the same" if alike(dev) else note
        if not summary.test:
            note += f"; optimistic: best of |H| = {n_h}" if n_h > 1 else ""
        if knows_dev(study.runs[_canon(choice.h)]):
            note += "; optimistic: teachers had trained on dev rows"
        lines.append(("dev", f"{spread(dev)}   {note}"))
    elif study.runs:
        lines.append(
            ("h*", "nothing to select: no dev set" if n_h == 1 else f"none of {n_h} points has a usable dev score")
        )
    for name, value in summary.test.items():
        if name == "select" and len(select) < 2:
            continue
        label = METRIC_NAMES.get(name, what if name == "select" else name)
        extra = f"variance {1e4 * value.variance:.2f} points²" if not math.isnan(value.std) else "one run"
        if alike(value):
            extra = f"no spread: all {value.n} runs score the same"
        base = ", ".join(f"{kind} {points(v[name])}" for kind, v in summary.controls.items() if name in v)
        lines.append(
            (
                "test" if name == next(iter(summary.test)) else "",
                f"{spread(value)}   {label} on {summary.n_test} rows; {extra}" + (f"; {base}" if base else ""),
            )
        )
    if study.runs and not summary.test:
        lines.append(("test", "no test set"))
    if summary.test:
        lines.append(("Spearman", rho_text(summary)))
    lines.append(("runs", runs_text(summary)))
    for failure in distinct_failures(study.failed):
        lines.append(("", failure))
    for text, n in summary.warnings.items():
        lines.append(("note", f"{text} ({n} of {study.n_runs} runs)"))
    lines.append(("records", relative(study.folder)))
    return title + "\n" + "\n".join(f"  {name:<9} {text}" for name, text in lines)


def rho_text(summary: Summary) -> str:
    """Spearman's rho with the points that it rests on, or why there is none."""
    over = f"dev against test means over {count(summary.n_points, 'point')} of H"
    if not math.isnan(summary.rho):
        return f"{summary.rho:.3f}   {over}"
    if not summary.n_points:
        return "not defined   no point of H has both dev and test scores"
    why = "fewer than 3" if summary.n_points < 3 else "a constant vector"
    return f"not defined   {over}: {why}"


def study_runs(summary: Summary) -> list[dict[str, Any]]:
    """The runs of h*; none where nothing was selected."""
    return summary.study.runs[_canon(summary.choice.h)] if summary.choice.h is not None else []


def knows_dev(runs: Sequence[dict[str, Any]]) -> bool:
    """Whether a run learnt from teachers that had trained on rows of its dev set (paradigm.labeling=cross)."""
    return any(
        teacher["dev_rows_trained_on"] > 0 for r in runs for teacher in r.get("self_training", {}).get("teachers", ())
    )


def _canon(h: Any) -> str:
    from fewnlu.protocol.records import canonical

    return canonical(dict(h))


def _split(config: dict[str, Any], k_total: int | None) -> str:
    split = config["split"]
    options = [f"K={k_total}"] if k_total else []
    options += [f"{k}={v}" for k, v in split.items() if k != "name" and v not in (None, False)]
    return f"{split['name']} ({', '.join(options)})" if options else str(split["name"])


def runs_text(summary: Summary) -> str:
    """How many runs are done, failed, missing or damaged."""
    study = summary.study
    wanted = study.wanted
    total = wanted * len({*study.runs, *(_canon(f["h"]) for f in study.failed if "h" in f)})
    text = f"{study.n_runs} of {total} done"
    if study.failed:
        text += f", {len(study.failed)} FAILED"
    full = study.full
    short = [len(r) for r in study.runs.values() if places(r) != full]
    if full and len(full) < wanted:
        lacking = ", ".join(f"k{k}-r{rep}" for k, rep in sorted(study.places - full)[:5])
        text += f"; no point has all {wanted} runs, compared are those with {len(full)} (without {lacking})"
    if short:
        have = ", ".join(map(str, sorted(set(short))))
        text += f"; {count(len(short), 'point has', 'points have')} only {have} of {count(wanted, 'run')}"
        text += " and is not compared" if len(short) == 1 else " and are not compared"
    if study.older:
        text += f"; {count(study.older, 'run')} of older numerics left out, the same command computes them anew"
    if study.damaged:
        text += f"; {len(study.damaged)} damaged: {', '.join(relative(d) for d in study.damaged[:3])}"
    return text


def distinct_failures(failed: Sequence[dict[str, Any]], most: int = 5) -> list[str]:
    """Failures with the same error as one line that counts them."""
    seen: dict[str, list[str]] = {}
    for one in failed:
        seen.setdefault(" ".join(str(one.get("error")).split())[:160], []).append(f"k{one.get('k')}-r{one.get('rep')}")
    out = [f"{len(runs)} x {text} ({', '.join(sorted(set(runs)))})" for text, runs in seen.items()]
    return out[:most] + ([f"and {count(len(out) - most, 'other error')}"] if len(out) > most else [])


def relative(path: Path) -> str:
    """A path as seen from the working directory, where it is below that."""
    text = os.path.relpath(path)
    return str(path) if text.startswith("..") else text


def studies_text(summaries: Sequence[Summary]) -> str:
    """All studies: a block each, and one table to compare them where there are several."""
    parts = [study_text(s) for s in summaries]
    if len(summaries) > 1:
        parts.append(overview_text(summaries))
    return "\n\n".join(parts)


def overview_text(summaries: Sequence[Summary]) -> str:
    """One line per study, scores in points; below them the paper's average where its seven tasks are there."""
    import io

    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="")
    seeded = seeds_differ([s.study for s in summaries])
    names = ["task", "method", "model", "split", *(["seeds"] if seeded else [])]
    for name in (*names, "|H|", "runs", "dev of h*", "test of h*", "majority", "Spearman"):
        table.add_column(name, justify="right" if name in {"|H|", "runs", "majority", "Spearman"} else "left")
    for s in summaries:
        config = s.study.config
        if not config:
            continue
        select = s.test.get("select")
        names = config["task"].get("select") or config["task"]["metrics"]
        majority = [s.controls["majority"][n] for n in names] if s.controls else []
        dev = Spread(s.choice.mean, s.choice.std, len(study_runs(s)))
        table.add_row(
            escape(config["task"]["name"]),
            escape(method_choice(s.study)),
            escape(str(config["model"]["name"])),
            escape(_split(config, s.study.k_total)),
            *([seeds_text(s.study)] if seeded else []),
            str(len(s.study.runs)),
            f"{s.study.n_runs}" + (f" ({len(s.study.failed)} failed)" if s.study.failed else ""),
            spread(dev),
            spread(select) if select else "no test set",
            points(sum(majority) / len(majority)) if majority else "–",
            "–" if math.isnan(s.rho) else f"{s.rho:.3f}",
        )
    notes = []
    for one in averages(summaries):
        first = one.members[0].study
        config = first.config
        table.add_row(
            f"average of {len(one.members)}",
            escape(method_choice(first)),
            escape(str(config["model"]["name"])),
            escape(_split(config, first.k_total)),
            *([seeds_text(first)] if seeded else []),
            "",
            "",
            points(one.dev),
            points(one.test),
            points(one.majority),
            "–" if math.isnan(one.rho) else f"{one.rho:.3f}",
        )
        if one.limited:
            notes.append(f"not the paper's test sets: data.limit_test in {', '.join(one.limited)}")
    console = Console(file=io.StringIO(), width=200, no_color=True)
    console.print(table)
    lines = console.file.getvalue().rstrip().splitlines()  # type: ignore[attr-defined]
    return "\n".join([*(line.rstrip() for line in lines), *dict.fromkeys(notes)])
