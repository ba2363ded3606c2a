"""One self-contained HTML page: studies → points of H → runs → the rows that h* gets wrong. No network, no library.

The page builds text nodes only, and the JSON in it holds no `<`, so text from data cannot become markup.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from fewnlu.protocol.intervals import ESTIMAND
from fewnlu.protocol.records import canonical
from fewnlu.reporting.layout import METRIC_NAMES, Table
from fewnlu.reporting.names import method_name, model_name, score_name, split_name, study_file, task_name
from fewnlu.reporting.outcomes import Outcomes, outcomes
from fewnlu.reporting.overview import control, notes_of
from fewnlu.reporting.studies import Study, Summary
from fewnlu.reporting.sure import chosen_runs, sureness
from fewnlu.reporting.tables import runs_text
from fewnlu.reporting.texts import texts_of

MOST_ROWS = 400  # wrong rows per study
MOST_TEXT = 600  # characters of a row's text


def page(
    summaries: Sequence[Summary], tables: Sequence[Table], warnings: Sequence[str], out: Path, *, text: bool = True
) -> str:
    """The page as HTML.

    Args:
        out: folder that it will lie in; records are named relative to it.
        text: whether texts of rows may be in it.
    """
    usable = [s for s in summaries if s.study.config]
    studies = [_study(s, out) for s in usable]
    texts: dict[str, dict[str, str]] = {}
    for one, summary in zip(studies, usable, strict=True):
        if text and one["rows"] and one["rows"]["list"]:
            wanted = {row[0] for row in one["rows"]["list"]}
            found = texts_of(chosen_runs(summary)[0])
            mine = texts.setdefault(one["sha"], {})
            mine.update(
                {i: t[:MOST_TEXT] + ("…" if len(t) > MOST_TEXT else "") for i, t in found.items() if i in wanted}
            )
    data = {
        "studies": studies,
        "tables": [
            {"name": t.name, "title": t.title, "header": t.header, "rows": t.rows, "notes": t.notes} for t in tables
        ],
        "warnings": list(warnings),
        "texts": texts,
        "noText": "Texts are left out (--no-text)." if not text else "The rows' texts are not at hand: ids only.",
        "foot": f"Intervals are about {ESTIMAND}. Every number is read off the records named with it.",
    }
    template = resources.files("fewnlu.reporting").joinpath("page.html").read_text(encoding="utf-8")
    return template.replace("@DATA@", embedded(data))


def embedded(data: Any) -> str:
    """JSON that can stand inside a script element: without <, >, & and the line ends that JavaScript has of its own."""
    text = json.dumps(_rounded(data), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for mark in ("<", ">", "&", "\u2028", "\u2029"):
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None  # digits, not decimals: a rate may be 1e-7
    if isinstance(value, dict):
        return {str(k): _rounded(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(v) for v in value]
    return value


def _study(s: Summary, out: Path) -> dict[str, Any]:
    study, runs, sure = s.study, chosen_runs(s), sureness(s)
    names = sorted({n for results in study.runs.values() for n in results[0]["h"]})
    order = list(study.runs)
    interval = sure.interval
    select = s.test.get("select")
    star = order.index(canonical(dict(s.choice.h))) if s.choice.h is not None else (0 if len(order) == 1 else -1)
    return {
        "id": study_file(study),
        "name": study.name,
        "key": study.key[:8],
        "task": task_name(study),
        "method": method_name(study),
        "model": model_name(study),
        "split": split_name(study),
        "seeds": ", ".join(f"{k} {v}" for k, v in study.seeds.items()),
        "folder": os.path.relpath(study.folder, out).replace(os.sep, "/"),
        "runs": study.n_runs,
        "nFailed": len(study.failed),
        "failed": _failures(study),
        "done": runs_text(s),
        "notes": [n for n in notes_of(s) if not n.startswith("failed: ")],
        "dev": [s.choice.mean, s.choice.std],
        "select": [select.mean, select.std] if select else None,
        "test": [
            [score_name(study.config) if n == "select" else METRIC_NAMES.get(n, n), [v.mean, v.std]]
            for n, v in s.test.items()
            if n != "select" or len(s.test) > 2
        ],
        "majority": control(s, "majority"),
        "score": score_name(study.config),
        "interval": [interval.low, interval.high] if not isinstance(interval, str) and interval.known else None,
        "varied": interval if isinstance(interval, str) else "; ".join(filter(None, [interval.varied, interval.note])),
        "rho": s.rho,
        "rhoRange": [sure.rho.low, sure.rho.high] if math.isfinite(sure.rho.low) else None,
        "points": s.n_points,
        "tied": s.choice.tied,
        "distinct": f"{sure.distinct} distinct of {sure.splits}" if sure.distinct < sure.splits else None,
        "labels": [str(x) for x in study.config["task"].get("labels") or []],
        "sha": ((runs[0]["rows"].get("test") or {}).get("sha256") or "") if runs else "",
        "star": star,
        "hp": names,
        "hs": [_point(results, names) for results in study.runs.values()],
        "looks": {r["key"][:8]: r["looks"] for r in _with_looks(study, runs)},
        "rows": _rows(runs, study),
    }


def _failures(study: Study, most: int = 20) -> list[str]:
    lines = [f"k{f.get('k')}-r{f.get('rep')}: {str(f.get('error'))[:300]}" for f in study.failed[:most]]
    return lines + ([f"and {len(study.failed) - most} more"] if len(study.failed) > most else [])


def _point(results: Sequence[dict[str, Any]], names: Sequence[str]) -> list[Any]:
    h = results[0]["h"]
    return [[h.get(n) for n in names], [_run(r) for r in results], Path(results[0]["folder"]).parent.name]


def _run(r: dict[str, Any]) -> list[Any]:
    dev, test = r["dev"], r["test"]
    scores = [dev["select"] if dev else None, test["select"] if test else None]
    return [r["k"], r["rep"], *scores, r["chosen_step"], r["steps_done"], r["key"][:8]]


def _with_looks(study: Study, runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs whose looks are in the page: all of a small study, else those of h*."""
    return [r for results in study.runs.values() for r in results] if study.n_runs <= 400 else list(runs)


def _rows(runs: Sequence[dict[str, Any]], study: Study) -> dict[str, Any] | None:
    """Test rows that a run of h* gets wrong, those that most get wrong first; labels as numbers where fixed."""
    found = outcomes(runs) if runs and all(r["test"] for r in runs) else "no test rows"
    if not isinstance(found, Outcomes) or not study.config["task"].get("labels"):
        return None  # of candidates several may be right, and predictions name but one
    labels = {str(x): i for i, x in enumerate(study.config["task"].get("labels") or [])}

    def code(label: Any) -> Any:
        return labels.get(str(label), str(label))

    wrong = (found.right == 0).sum(0)
    order = sorted((i for i in range(len(found.ids)) if wrong[i]), key=lambda i: (-wrong[i], i))
    rows = [
        [
            found.ids[i],
            code(found.gold[i]),
            int(wrong[i]),
            [None if found.right[r, i] else code(found.said[r][i]) for r in range(len(found.said))],
        ]
        for i in order[:MOST_ROWS]
    ]
    return {"total": len(order), "runs": [f"k{r['k']}-r{r['rep']}" for r in found.runs], "list": rows}
