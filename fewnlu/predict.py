"""python -m fewnlu.predict MODEL rows.csv: label your own rows with a model that python -m fewnlu.final saved."""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

from fewnlu import plugins
from fewnlu.config import check_trust
from fewnlu.determinism import before_torch
from fewnlu.errors import ConfigError, FewnluError
from fewnlu.processes import end_unread


def main(argv: list[str] | None = None) -> None:
    """Entry point; exit status 0, or 2 where the model or a row cannot be read."""
    parser = argparse.ArgumentParser(
        prog="python -m fewnlu.predict",
        description="Label rows with a saved model: a label, and the share of each label, per row.",
    )
    parser.add_argument("model", type=Path, help="folder that python -m fewnlu.final wrote")
    parser.add_argument("rows", type=Path, help="CSV, TSV, Parquet or JSON lines; any size, read bit by bit")
    parser.add_argument(
        "-o", "--out", help="CSV file to write, or .jsonl; '-' is the screen (default: ROWS.labels.csv beside the rows)"
    )
    parser.add_argument("--batch", type=int, default=32, help="rows per batch")
    parser.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="MODULE",
        help="module of yours with the model's method, which is imported; as trust=[MODULE] of fewnlu.train",
    )
    args = parser.parse_args(argv)
    try:
        check_trust(args.trust)
        plugins.trust(args.trust)
        n, where = predict(args.model, args.rows, args.out, args.batch)
        sys.stdout.flush()
    except FewnluError as err:
        print(f"error: {err}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        end_unread()
    print(f"{n} rows labelled: {where}", file=sys.stderr)


def predict(model: Path, rows: Path, out: str | None = None, batch: int = 32) -> tuple[int, str]:
    """Label the rows of a file.

    Args:
        out: file to write, '-' for the screen; None: ROWS.labels.csv.

    A file appears whole, when the last row is labelled: until then, and where a row can't be read, what is done lies
    beside it, with the ending ``.part``.

    Returns:
        how many rows, and where they went.
    """
    if batch < 1:
        raise ConfigError(f"--batch {batch}: expected 1 or more")
    target = rows.with_suffix(".labels.csv") if out is None else Path(out)
    if not rows.is_file():
        raise ConfigError(f"{rows}: {'a folder, expected a file with rows' if rows.is_dir() else 'no such file'}")
    if target.resolve() == rows.resolve():
        raise ConfigError(f"--out {target}: that is the file with the rows")
    if out != "-" and (target.is_dir() or not target.absolute().parent.is_dir()):
        what = "is a folder" if target.is_dir() else f"there is no folder {target.absolute().parent}"
        raise ConfigError(f"--out {target}: {what}; name a file in a folder that is there")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    before_torch()
    from fewnlu.protocol.saved import read_saved
    from fewnlu.tasks.streams import stream_rows
    from fewnlu.tasks.task import task_from_config

    saved = read_saved(model)
    try:
        plugins.source_of("method", name := saved["method"]["name"])
    except ConfigError as err:
        raise ConfigError(
            f"{model}: its method '{name}' is not among those that can be found; name the module that has it, as in "
            f"--trust MODULE ({str(err).splitlines()[0]})"
        ) from err
    task = task_from_config(saved["task"])
    stream = stream_rows(task, rows)
    first = next(stream, None)  # a wrong column is found before the model is read and anything is written
    if first is None:
        raise ConfigError(f"{rows}: no rows")
    from fewnlu.protocol.saved import Predictor

    predictor = Predictor(model)
    labels = list(task.labels)
    n = 0
    part = target.with_name(f"{target.name}.part")
    with ExitStack() as stack:
        if out != "-":
            stack.callback(_tell_of, part)
        file = sys.stdout if out == "-" else stack.enter_context(part.open("w", encoding="utf-8", newline=""))
        table = None if target.suffix == ".jsonl" else csv.writer(file)
        if table is not None:
            table.writerow(
                ["id", "label", *(f"score:{name}" for name in labels)] if labels else ["id", "label", "scores"]
            )
        for one in predictor.label(chain([first], stream), batch):
            n += 1
            if table is None:
                line = {"id": one.row.id, "label": one.label, "scores": one.scores}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
            elif labels:
                table.writerow([one.row.id, one.label, *(f"{one.scores[name]:.6g}" for name in labels)])
            else:
                table.writerow([one.row.id, one.label, json.dumps(one.scores, ensure_ascii=False)])
        if out != "-":
            file.close()
            part.replace(target)
    return n, "-" if out == "-" else str(target)


def _tell_of(part: Path) -> None:
    if part.exists():
        print(f"not all rows are labelled; those that are lie in {part}", file=sys.stderr)


if __name__ == "__main__":
    main()
