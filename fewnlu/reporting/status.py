"""The state of every run of a sweep: done, running, failed, damaged, interrupted or missing, and why.

Read off the records, off what was begun and not ended, and off the lists of what commands asked for.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fewnlu.protocol.atomic import is_alive
from fewnlu.protocol.expected import Expected, read_expected
from fewnlu.protocol.records import Found, damage, scan

STATES = ("done", "running", "failed", "damaged", "interrupted", "missing")


@dataclass
class RunState:
    """One run: its folder below the sweep's, its state, why it is not done, and whether a command asked for it."""

    path: str
    state: str
    why: str
    wanted: bool


@dataclass
class Status:
    """All runs of a sweep, ordered by path, and files in its tree that belong to no run."""

    sweep: Path
    runs: list[RunState] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        found = Counter(run.state for run in self.runs)
        return {state: found[state] for state in STATES if found[state]}


def read_status(sweep: Path, commands: Sequence[Expected] | None = None) -> Status:
    """States of all runs below a sweep's folder.

    Args:
        sweep: the folder.
        commands: what is expected; None takes all commands that were given for this folder.
    """
    keys: dict[str, str] = {}
    for command in read_expected(sweep) if commands is None else commands:
        keys.update({path: run.key for path, run in command.runs.items()})
    status = Status(sweep)
    seen = set()
    cluster: dict[str, str] = {}
    for found in scan(sweep):
        path = str(found.folder.relative_to(sweep))
        seen.add(path)
        state, why = _state(found, keys.get(path), cluster)
        status.runs.append(RunState(path, state, why, path in keys))
    for path in sorted(set(keys) - seen):
        folder = sweep / path
        why = "not begun" if not folder.exists() else "nothing but an empty folder"
        status.runs.append(RunState(path, "missing", why, True))
    status.runs.sort(key=lambda run: run.path)
    status.foreign = _foreign(sweep)
    return status


def status_text(status: Status, most: int = 20) -> str:
    """Counts per study, then every run that is not done with its reason."""
    shown = os.path.relpath(status.sweep)
    lines = [f"{shown}: " + ", ".join(f"{n} {state}" for state, n in status.counts().items())]
    studies: dict[str, Counter[str]] = {}
    for run in status.runs:
        studies.setdefault(run.path.split(os.sep)[0], Counter())[run.state] += 1
    if len(studies) > 1:
        for name, counts in studies.items():
            lines.append(f"  {name}: " + ", ".join(f"{counts[s]} {s}" for s in STATES if counts[s]))
    for state in STATES[1:]:
        lines += _listed([r for r in status.runs if r.state == state], most)
    if status.foreign:
        lines.append(f"  not of fewnlu, left alone: {', '.join(status.foreign[:most])}")
    left = [run for run in status.runs if run.state not in {"done", "running"}]
    asked = any(run.wanted for run in status.runs)  # else a sweep of before commands were kept, or of another sweeper
    if any(run.wanted or not asked for run in left):
        lines.append("  the same command again computes what is not done")
    if foreign := sum(asked and not run.wanted for run in left):
        lines.append(f"  no command here asked for {foreign} of these: move their folders away, nothing computes them")
    return "\n".join(lines)


def gaps_text(gaps: Sequence[RunState], total: int, most: int = 20) -> str:
    """What a command did not get done: how many, and each with its reason."""
    order = sorted(gaps, key=lambda run: STATES.index(run.state))
    return "\n".join([f"{total - len(gaps)} of {total} runs done; not done:", *_listed(order, most)])


def _listed(runs: Sequence[RunState], most: int) -> list[str]:
    lines = [f"  {run.state:<11} {run.path}  {run.why}".rstrip() for run in runs[:most]]
    rest = Counter(run.state for run in runs[most:])
    return lines + ([f"  … and {', '.join(f'{n} more {state}' for state, n in rest.items())}"] if rest else [])


def _state(found: Found, key: str | None, cluster: dict[str, str]) -> tuple[str, str]:
    """(state, why) of a run folder; a run that is computed anew counts as running whatever lies beside."""
    started = found.started
    alive = is_alive(started) if started else False
    if found.result is not None:
        wrong = damage(found.folder, key)
        return ("damaged", wrong) if wrong else ("done", "")
    if started and alive is None and started.get("job"):
        state = _slurm_state(str(started["job"]), cluster)
        alive = state in {"RUNNING", "COMPLETING", "SUSPENDED"} if state else None
    if started and alive is not False:
        since = f"since {_ago(started.get('time'))}"
        note = "" if alive else "; it can't be seen from here whether it still runs"
        return "running", f"{_who(started)} {since}{note}"
    if found.failure is not None:
        return "failed", " ".join(str(found.failure.get("error")).split())[:200]
    if found.damage:
        return "damaged", found.damage
    return "interrupted", f"{_who(started or {})} ended without a result"


def _who(started: dict[str, Any]) -> str:
    job = f"job {started['job']}, " if started.get("job") else ""
    return f"{job}process {started.get('pid')} on {started.get('host')}"


def _ago(then: Any) -> str:
    seconds = int(max(0, time.time() - then)) if isinstance(then, (int, float)) else 0
    if seconds < 120:
        return f"{seconds} s ago"
    return f"{seconds // 60} min ago" if seconds < 7200 else f"{seconds // 3600} h ago"


def _slurm_state(job: str, known: dict[str, str]) -> str:
    """State of a SLURM job as squeue tells it; "" where it doesn't know it or there is no squeue."""
    if job not in known:
        known[job] = ""
        if shutil.which("squeue"):
            command = ["squeue", "-h", "-o", "%T", "-j", job]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=10)
                known[job] = done.stdout.strip().split("\n")[0] if done.returncode == 0 else "ENDED"
            except (OSError, subprocess.TimeoutExpired):
                pass
    return known[job]


def _foreign(sweep: Path) -> list[str]:
    """Files in run folders and beside them that are not fewnlu's."""
    own = {"result.json", "meta.json", "predictions.parquet", "failure.json", "started.json", "metrics.csv"}
    found = []
    for directory, names, files in os.walk(sweep):
        depth = len(Path(directory).relative_to(sweep).parts)
        names[:] = [] if depth >= 3 else [n for n in sorted(names) if not n.startswith(".")]
        if depth == 0 and "wandb" in names:  # summaries of studies, see protocol.studylog
            names.remove("wandb")
        ignored = own if depth == 3 else {"multirun.yaml", "optimization_results.yaml"} if depth == 0 else set()
        found += [
            str((Path(directory) / f).relative_to(sweep))
            for f in sorted(files)
            if f not in ignored and not f.startswith(".")
        ]
    return found
