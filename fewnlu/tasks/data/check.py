#!/usr/bin/env python
"""Check the bundled data sets for malformed rows, unbalanced labels and duplicates.

Usage: ``python fewnlu/tasks/data/check.py [FOLDER ...]``; with no folder, every
sub-folder beside this script. Exits 1, naming both ids of each offending pair,
if anything is wrong. Standard library only.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

FILES = {"labeled.jsonl": True, "test.jsonl": True, "unlabeled.jsonl": False}
MAX_SHINGLE_JACCARD = 0.4
MAX_WORD_JACCARD = 0.7


@dataclass(frozen=True)
class Row:
    """One example, with its texts joined and normalised."""

    file: str
    id: str
    label: str | None
    length: int
    words: tuple[str, ...]
    word_set: frozenset[str]
    shingles: frozenset[tuple[str, ...]]


def normalise(text: str) -> tuple[str, ...]:
    """Lower-case the text and split it on white space and punctuation."""
    text = re.sub(r"['\u2018\u2019]", "", text.lower())
    return tuple(re.findall(r"[^\W_]+", text))


def jaccard(a: frozenset, b: frozenset) -> float:
    """Return the Jaccard similarity of two sets (0 when both are empty)."""
    union = len(a | b)
    return len(a & b) / union if union else 0.0


def read_rows(path: Path, labelled: bool, errors: list[str]) -> list[Row]:
    """Read one JSON-lines file, appending a message to errors for each bad row."""
    rows: list[Row] = []
    first_keys: tuple[str, ...] | None = None
    for number, line in enumerate(path.read_text("utf-8").rstrip().split("\n"), 1):
        where = f"{path.parent.name}/{path.name}:{number}"
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            errors.append(f"{where}: not JSON ({error})")
            continue
        if not isinstance(record, dict):
            errors.append(f"{where}: not a JSON object")
            continue
        if not all(isinstance(v, str) and v.strip() for v in record.values()):
            errors.append(f"{where}: a value is empty or not a string")
            continue
        text_keys = tuple(sorted(record.keys() - {"id", "label"}))
        first_keys = first_keys or text_keys
        if "id" not in record or not text_keys or ("label" in record) != labelled:
            errors.append(f"{where}: wrong keys {sorted(record)}")
            continue
        if text_keys != first_keys:
            errors.append(f"{where}: text keys {text_keys} differ from {first_keys}")
        text = " ".join(record[key] for key in text_keys)
        words = normalise(text)
        size = min(3, len(words))
        shingles = {words[i : i + size] for i in range(len(words) - size + 1)}
        rows.append(
            Row(path.name, record["id"], record.get("label"), len(text.split()),
                words, frozenset(words), frozenset(shingles))
        )  # fmt: skip
    return rows


def report(name: str, rows: list[Row]) -> None:
    """Print the count and the word lengths of one file, per label."""
    for label in sorted({row.label or "(none)" for row in rows}):
        sizes = [row.length for row in rows if (row.label or "(none)") == label]
        print(f"  {name:16} {label:14} n={len(sizes):4} words "
              f"min={min(sizes)} mean={mean(sizes):.1f} max={max(sizes)}")  # fmt: skip


def find_pairs(rows: list[Row]) -> list[str]:
    """Return a message for each duplicate or near-duplicate pair of rows."""
    found: list[str] = []
    for i, a in enumerate(rows):
        for b in rows[i + 1 :]:
            pair = f"{a.id} ({a.file}) and {b.id} ({b.file})"
            if a.words == b.words:
                found.append(f"exact duplicate: {pair}")
            elif (score := jaccard(a.shingles, b.shingles)) > MAX_SHINGLE_JACCARD:
                found.append(f"near-duplicate (3-grams {score:.2f}): {pair}")
            elif (score := jaccard(a.word_set, b.word_set)) > MAX_WORD_JACCARD:
                found.append(f"near-duplicate (words {score:.2f}): {pair}")
    return found


def check_folder(folder: Path) -> list[str]:
    """Check one data set, print its statistics, and return its problems."""
    print(folder.name)
    errors: list[str] = []
    rows: list[Row] = []
    for name, labelled in FILES.items():
        path = folder / name
        if not path.is_file():
            errors.append(f"{folder.name}/{name}: missing")
            continue
        part = read_rows(path, labelled, errors)
        if not part:
            errors.append(f"{folder.name}/{name}: no usable rows")
        report(name, part)
        counts = Counter(row.label for row in part)
        slack = 0 if len(counts) == 2 else 1  # e.g. 64 rows cannot split evenly in 3
        spread = max(counts.values(), default=0) - min(counts.values(), default=0)
        if labelled and (len(counts) < 2 or spread > slack):
            errors.append(f"{folder.name}/{name}: labels not balanced {dict(counts)}")
        rows += part
    for key, count in Counter(row.id for row in rows).items():
        if count > 1:
            errors.append(f"{folder.name}: id {key} used {count} times")
    return errors + find_pairs(rows)


def main(arguments: list[str]) -> int:
    """Check the named folders, or every sub-folder beside this script."""
    here = Path(__file__).resolve().parent
    folders = [Path(name).resolve() for name in arguments] or sorted(
        path for path in here.iterdir() if (path / "labeled.jsonl").is_file()
    )
    problems: list[str] = []
    for folder in folders:
        problems += check_folder(folder)
    for problem in problems:
        print(f"ERROR {problem}", file=sys.stderr)
    print(f"{len(folders)} folder(s), {len(problems)} problem(s)")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
