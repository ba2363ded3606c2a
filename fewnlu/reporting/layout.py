"""Tables as rows of text, rendered as Markdown, CSV or aligned text."""

from __future__ import annotations

import csv
import io
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field

PAPER_NAMES = {
    "boolq": "BoolQ",
    "rte": "RTE",
    "wic": "WiC",
    "cb": "CB",
    "multirc": "MultiRC",
    "wsc": "WSC",
    "copa": "COPA",
    "record": "ReCoRD",
}
METHOD_NAMES = {"cls": "CLS", "pet": "PET", "adapet": "ADAPET", "ptuning": "P-tuning", "zeroshot": "zero-shot"}
PARADIGM_NAMES = {"ipet": "iPET", "noisy_student": "Noisy Student"}
SPLIT_NAMES = {
    "multisplit": "Multi-Splits",
    "cv": "CV",
    "mdl": "MDL",
    "bagging": "Bagging",
    "rand": "Random",
    "mi": "Model-informed",
    "single": "Single split",
    "fixed": "Fixed",
}
METRIC_NAMES = {  # in sentences; the paper's columns have Acc for accuracy and F1 for macro-F1
    "accuracy": "accuracy",
    "macro_f1": "macro-F1",
    "weighted_f1": "weighted F1",
    "f1_binary": "F1",
    "f1a": "F1a",
    "em": "EM",
    "answer_em": "EM",
    "answer_f1": "F1",
    "mcc": "MCC",
}
MISSING = "–"
WIDTH = 116  # characters of a line of notes in text


@dataclass
class Table:
    """A titled table; cells are text, missing ones "–".

    Attributes:
        name: file name without ending.
        notes: sentences below it: what varied, what is not known.
    """

    name: str
    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        lines = [f"### {self.title}", "", _line(self.header), _line(["---"] * len(self.header))]
        lines += [_line([plain(c) for c in row]) for row in self.rows]
        return "\n".join([*lines, "", *(f"- {plain(n)}" for n in self.notes)]).rstrip() + "\n"

    def csv(self) -> str:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.header)
        writer.writerows([["" if c == MISSING else _no_formula(c) for c in row] for row in self.rows])
        return out.getvalue()

    def text(self) -> str:
        grid = [self.header, *self.rows]
        widths = [max(len(row[i]) for row in grid) for i in range(len(self.header))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in grid]
        notes = [line for n in self.notes for line in textwrap.wrap(n, WIDTH)]
        return "\n".join([self.title, *(f"  {line}" for line in [*lines, *notes])])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def plain(text: str) -> str:
    """Text that Markdown shows as it stands: no cell ends early, no tag or link begins."""
    for mark in "\\`*_[]<>|#":
        text = text.replace(mark, "\\" + mark)
    return " ".join(text.split())


def _no_formula(text: str) -> str:
    """A cell that a spreadsheet would run as a formula gets a leading apostrophe; numbers stay numbers."""
    if text[:1] in ("=", "@", "\t", "\r") or (text[:1] in ("+", "-") and not _is_number(text)):
        return "'" + text
    return text


def _is_number(text: str) -> bool:
    try:
        float(text.split("±")[0])
    except ValueError:
        return False
    return True


def percent(value: float | None, digits: int = 2) -> str:
    """A fraction in percent, as the paper prints scores."""
    return MISSING if value is None or math.isnan(value) else f"{100 * value:.{digits}f}"


def mean_std(mean: float, std: float) -> str:
    """``82.67±0.78``; no ± for a single run (never ±0.00)."""
    return percent(mean) if math.isnan(std) else f"{percent(mean)}±{percent(std)}"


def count(n: int, one: str, many: str = "") -> str:
    """``1 study``, ``2 studies``."""
    return f"{n} {one if n == 1 else many or one + 's'}"


def number(value: float | None, digits: int = 4) -> str:
    """A number with so many digits; "–" where there is none."""
    return MISSING if value is None or math.isnan(value) else f"{value:.{digits}f}"
