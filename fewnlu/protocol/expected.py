"""What a command is to leave behind: the list of its runs, kept in the sweep's folder so that gaps have names.

``<sweep>/.expected/<hash>.json`` is written before the first job starts; the same command again writes the same file.
It is for `report status` and for exit codes. Results never depend on it, and losing it loses no result.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fewnlu.protocol.atomic import read_json, sweep_out, write_atomic
from fewnlu.protocol.records import digest, is_done, to_json
from fewnlu.protocol.setup import Setup

FOLDER = ".expected"
LARGE = 100e6  # bytes of records worth a line beforehand


@dataclass(frozen=True)
class ExpectedRun:
    """A run that should exist: `path` is its folder below the sweep's."""

    path: str
    key: str


@dataclass
class Expected:
    """The runs of one command.

    Attributes:
        command: its overrides.
        studies: names of the studies that it belongs to.
        sampled: the sweeper that draws h as it goes; its runs cannot be listed beforehand.
        runs: in the order of their jobs.
        bytes: rough size of their records.
    """

    command: list[str]
    sweep: Path | None = None
    studies: set[str] = field(default_factory=set)
    sampled: str | None = None
    runs: dict[str, ExpectedRun] = field(default_factory=dict)
    bytes: int = 0

    def add(self, setup: Setup, weights: str, sweep: Path) -> None:
        """Add the runs of one composed trial."""
        study = setup.study(weights)
        self.sweep = sweep
        self.studies.add(study[1])
        for h in setup.hs:
            for k in setup.ks:
                for rep in range(setup.paradigm.reps):
                    path = str(setup.folder(sweep, study, h, k, rep).relative_to(sweep))
                    if path not in self.runs:
                        self.runs[path] = ExpectedRun(path, setup.key(study[0], h, k, rep))
                        self.bytes += run_bytes(setup, k)

    def missing(self) -> list[ExpectedRun]:
        """Runs whose record is not whole."""
        assert self.sweep is not None
        return [run for run in self.runs.values() if not is_done(self.sweep / run.path, run.key)]

    def room(self) -> str:
        """A line on the size of the records to come, where it is large or more than there is; else empty."""
        assert self.sweep is not None
        there = next(p for p in (self.sweep, *self.sweep.parents) if p.is_dir())
        free = shutil.disk_usage(there).free
        need = self.bytes * len(self.missing()) / len(self.runs) if self.runs else 0
        if need < LARGE and need < free:
            return ""
        text = f"records will take about {need / 1e6:,.0f} MB in {self.sweep} ({free / 1e6:,.0f} MB are free)"
        return text if need < free else f"warning: {text}; the sweep will stop when the disk is full"

    def write(self) -> None:
        """Keep the list in the sweep's folder.

        Raises:
            DiskFull: not even this fits.
        """
        assert self.sweep is not None
        content: dict[str, Any] = {
            "command": self.command,
            "studies": sorted(self.studies),
            "sampled": self.sampled,
            "runs": {path: run.key for path, run in self.runs.items()},
        }
        sweep_out(self.sweep / FOLDER)
        write_atomic(self.sweep / FOLDER / f"{digest(content, 16)}.json", to_json(content))


def run_bytes(setup: Setup, k: int) -> int:
    """Rough size of a run's record: rows with a double per label, ids thrice, and the texts around them."""
    scored = len(setup.splits[k].dev) + (len(setup.data.test.rows) if setup.data.test else 0)
    return 20_000 + scored * (60 + 12 * len(setup.task.labels)) + 40 * len(setup.rows)


def read_expected(sweep: Path) -> Sequence[Expected]:
    """The commands that were given for a sweep's folder, in the order of their files' names."""
    found = []
    for path in sorted((sweep / FOLDER).glob("*.json")):
        content = read_json(path)
        if not isinstance(content, dict) or not isinstance(content.get("runs"), dict):
            continue  # damaged: it is only a list of wishes
        runs = {str(p): ExpectedRun(str(p), str(key)) for p, key in content["runs"].items()}
        one = Expected([str(c) for c in content.get("command") or []], sweep, set(content.get("studies") or []))
        one.sampled, one.runs = content.get("sampled"), runs
        found.append(one)
    return found
