"""python -m fewnlu.tasks list | show NAME | check NAME: the tasks there are, a row as a model gets it, what is wrong.

Exit status of check: 0 nothing found that would spoil a result, 1 something found, 2 the task cannot be read.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fewnlu.errors import ConfigError, FewnluError, choices
from fewnlu.tasks.task import Task, task_from_config


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m fewnlu.tasks", description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["list", "show", "check"])
    parser.add_argument("name", nargs="?", help="a task of conf/task or of --config-dir")
    parser.add_argument(
        "overrides", nargs="*", help="as for fewnlu.train, e.g. data.dir=FOLDER data.per_class=16 seed.data=1"
    )
    parser.add_argument("--config-dir", help="folder with task/NAME.yaml of your own")
    parser.add_argument(
        "--model", help="local:FOLDER, hub:NAME, smollm2 or smollm2_mlm: its tokenizer; default: words (a toy)"
    )
    parser.add_argument("--kind", choices=["masked", "causal"], help="default: as the model is; masked for the toy")
    parser.add_argument("--pattern", type=int, help="show: only this pattern")
    parser.add_argument("--row", help="show: id of the row; default: the first labelled one")
    parser.add_argument("--k", type=int, default=4, help="check: splits that the rows are meant for")
    parser.add_argument("--ratio", type=float, default=0.5, help="check: their share of train rows")
    args = parser.parse_intermixed_args(arguments)
    try:
        if args.command == "list":
            return _list(args)
        if not args.name:
            raise ConfigError(f"{args.command} needs the name of a task; {choices('', _names(args.config_dir))}")
        task, data = _task(args)
        return (_show if args.command == "show" else _check)(args, task, data)
    except FewnluError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _loader(config_dir: str | None) -> Any:
    from fewnlu.protocol.check import config_loader

    return config_loader(config_dir)


def _names(config_dir: str | None) -> list[str]:
    from fewnlu.protocol.compose import options

    return options(_loader(config_dir), "task")


def _config(name: str, overrides: Sequence[str], config_dir: str | None) -> dict[str, Any]:
    from fewnlu.protocol.compose import compose

    # The method only completes the config; nothing of it is used.
    return compose(_loader(config_dir), ["+method=pet", f"task={name}", *overrides]).cfg


def _task(args: argparse.Namespace) -> tuple[Task, dict[str, Any]]:
    known = _names(args.config_dir)
    if args.name not in known:
        raise ConfigError(f"no task {args.name!r}; {choices(args.name, known)}")
    cfg = _config(args.name, args.overrides, args.config_dir)
    args.seed = cfg["seed"]["data"]
    if cfg["task"].get("kind"):
        raise ConfigError(f"task {args.name} is of kind {cfg['task']['kind']}: it has no patterns to show or check")
    data = cfg["data"]
    if data["dir"]:
        data["dir"] = os.path.expanduser(data["dir"])
    return task_from_config(cfg["task"]), data


def _list(args: argparse.Namespace) -> int:
    from fewnlu.config import conf_dir

    folders = [conf_dir() / "task", *([Path(args.config_dir) / "task"] if args.config_dir else [])]
    files = {path.stem: path for folder in folders for path in sorted(folder.glob("*.yaml"))}
    rows: list[tuple[str, ...]] = [("task", "labels", "patterns", "metrics", "rows")]
    for name, path in sorted(files.items()):
        try:
            rows.append((name, *_summary(name, path, args.config_dir)))
        except Exception as error:  # one's own file may break anywhere; the others are still listed
            rows.append((name, f"cannot be read: {(str(error).splitlines() or [type(error).__name__])[0]}"))
    widths = [max(len(row[i]) for row in rows if len(row) == len(rows[0])) for i in range(len(rows[0]))]
    widths[0] = max(len(row[0]) for row in rows)
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip())
    return 0


def _summary(name: str, path: Path, config_dir: str | None) -> tuple[str, str, str, str]:
    """A task's labels, patterns, metrics and sources of rows."""
    import yaml

    from fewnlu.tasks.choice import choice_from_config, is_choice

    text = path.read_text("utf-8")
    cfg = yaml.safe_load(text)
    if not isinstance(cfg, dict) or "defaults" in cfg or "${" in text:  # only then, for Hydra takes a second for each
        cfg = _config(name, [], config_dir)["task"]
    task = choice_from_config(cfg) if is_choice(cfg) else task_from_config(cfg)
    patterns = ",".join(map(str, task.grid)) if isinstance(task, Task) else str(cfg["kind"])
    source = task.source
    where = {"packaged": source.packaged, "hub": source.hub, "data.dir": source.files}
    return (
        ", ".join(task.labels) or "candidates",
        patterns,
        ", ".join(task.metrics),
        " or ".join(place for place, given in where.items() if given),
    )


def _tokenizer(args: argparse.Namespace, task: Task, rows: Sequence[Any]) -> tuple[Any, str]:
    """A tokenizer and the kind of its model; the model itself is not read."""
    if args.model is None:
        from fewnlu.prompts.preview import toy_tokenizer

        return toy_tokenizer(task, rows), args.kind or "masked"
    from fewnlu.backbones.kind import model_kind, read_config
    from fewnlu.backbones.loading import load_tokenizer
    from fewnlu.backbones.weights import model_folder

    source, _, name = args.model.partition(":")
    place: dict[str, Any] = {"name": name if source == "hub" else None, "path": name if source == "local" else None}
    kind = args.kind or model_kind(read_config(source, **place))
    return load_tokenizer(model_folder(source, place["name"], place["path"], None), kind), kind


def _show(args: argparse.Namespace, task: Task, data: dict[str, Any]) -> int:
    from fewnlu.prompts.preview import preview
    from fewnlu.tasks.sources import load

    labeled = load(task, data, args.seed).labeled
    if not labeled.rows:
        raise ConfigError(f"task {task.name} has no labelled rows to show: all of them are in test")
    rows = {row.id: row for row in labeled.rows}
    if args.row is not None and args.row not in rows:
        raise ConfigError(f"--row {args.row}: no labelled row of that id; {choices(args.row, list(rows)[:10])}")
    row = rows[args.row] if args.row is not None else labeled.rows[0]
    tokenizer, kind = _tokenizer(args, task, labeled.rows)
    print(
        f"{task.name} row {row.id}, unit {row.unit}, gold {row.label}, "
        f"tokens of {args.model or 'a toy tokenizer'} ({kind})"
    )
    slotted = list(task.ptuning.values()) if args.pattern is None else []
    shown = list(task.patterns.values()) if args.pattern is None else [task.pattern(args.pattern)]
    for pattern in (*shown, *slotted):
        slots = "P-tuning " if pattern in slotted else ""
        print(f"\n{slots}pattern {pattern.id}: {pattern.template}")
        if kind not in pattern.kinds:
            print(f"  for {', '.join(pattern.kinds)} models only")
            continue
        try:
            print("\n".join(preview(tokenizer, kind, task, pattern, row, labeled.rows).lines(task.max_length)))
        except FewnluError as error:
            print(f"  cannot be read: {error}")
    return 0


def _check(args: argparse.Namespace, task: Task, data: dict[str, Any]) -> int:
    from fewnlu.prompts.preview import left_out, unreadable
    from fewnlu.tasks.audit import audit

    found = audit(task, data, args.k, args.ratio, args.seed)
    for which, text in found.counts.items():
        print(f"{which:10} {text}")
    rows = [*found.labeled, *found.test]
    if not found.labeled:
        found.problems.append("no labelled rows")
    else:
        tokenizer, kind = _tokenizer(args, task, rows)
        found.problems += unreadable(tokenizer, kind, task, rows, found.labeled)
        if others := left_out(kind, task):
            found.notes.append(
                f"patterns {', '.join(map(str, others))} are not for {kind} models: sweeps leave them out"
            )
    for note in found.notes:
        print(f"note       {note}")
    for problem in found.problems:
        print(f"PROBLEM    {problem}")
    if not args.model:
        print("words of several pieces depend on the model: add --model local:FOLDER, hub:NAME or smollm2")
    print("nothing found that would spoil a result" if not found.problems else f"{len(found.problems)} problems")
    return 1 if found.problems else 0


if __name__ == "__main__":
    sys.exit(main())
