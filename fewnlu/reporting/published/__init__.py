"""The paper's own numbers, each row with its status; see README.md beside this file."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from fewnlu.errors import DataError, choices

STATUSES = ("published", "inferred", "from_memory", "read_off_plot")
TASKS = ("BoolQ", "RTE", "WiC", "CB", "MultiRC", "WSC", "COPA")
TWO_METRICS = {"CB": ("CB_acc", "CB_f1"), "MultiRC": ("MultiRC_f1a", "MultiRC_em")}  # the average takes their mean


@dataclass(frozen=True)
class PublishedRow:
    """One row as printed: column -> text ("" where the source has none)."""

    cells: Mapping[str, str]
    status: str
    note: str

    def value(self, column: str) -> float | None:
        """The mean of a cell ``mean±std``, None where there is no number."""
        text = self.cells.get(column, "").split("±")[0]
        try:
            return float(text)
        except ValueError:
            return None

    def shown(self, column: str) -> str:
        """The cell as a report may show it: anything but print is marked with its status."""
        text = self.cells.get(column, "")
        return text if self.status == "published" or not text else f"{text} ({self.status.replace('_', ' ')})"


def tables() -> list[str]:
    """Names of the tables that ship."""
    found = resources.files("fewnlu.reporting.published").iterdir()
    return sorted(f.name[:-4] for f in found if f.name.endswith(".csv"))


def load(name: str) -> list[PublishedRow]:
    """Rows of a table such as ``arxiv_table5``.

    Raises:
        DataError: no such table, or a row without a known status.
    """
    if name not in tables():
        raise DataError(f"published table {name!r}: {choices(name, tables())}")
    text = resources.files("fewnlu.reporting.published").joinpath(f"{name}.csv").read_text(encoding="utf-8")
    rows = []
    for number, row in enumerate(csv.DictReader(text.splitlines()), start=2):
        status, note = row.pop("status", None), row.pop("note", None) or ""
        if status not in STATUSES:
            raise DataError(f"published/{name}.csv:{number}: status {status!r}; {choices(status, STATUSES)}")
        rows.append(PublishedRow({k: v or "" for k, v in row.items()}, status, note))
    return rows


def average(values: Mapping[str, float | None], *, first_metric_only: bool = False) -> float | None:
    """The paper's Avg.: mean over the seven tasks, CB and MultiRC as the mean of their two metrics (spec 1.3).

    Args:
        values: by column: a task, or ``CB_acc`` and so on.
        first_metric_only: CB as accuracy and MultiRC as F1a, as in the rows "Best combined" and RoBERTa.

    Returns:
        None where a cell is missing: an average over fewer tasks is another quantity.
    """
    cells: list[float] = []
    for task in TASKS:
        names = (task,) if task in values else TWO_METRICS.get(task, (task,))[: 1 if first_metric_only else 2]
        found = [values.get(name) for name in names]
        if any(v is None for v in found):
            return None
        cells.append(sum(v for v in found if v is not None) / len(found))
    return sum(cells) / len(cells)
