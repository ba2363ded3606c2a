"""python -m fewnlu.prepare …: fetch the models and rows of a command beforehand, so that its jobs need no network.

Takes what `python -m fewnlu.train` takes, sweeps included. Afterwards the same command runs with HF_HUB_OFFLINE=1.
"""

from __future__ import annotations

import sys
from typing import Any

from fewnlu.errors import FewnluError


def prepare(overrides: list[str], config_dir: str | None = None) -> list[str]:
    """Fetch everything that these choices read, each thing once; returns one line for each.

    Raises:
        FewnluError: a choice that cannot be composed, or something that cannot be fetched.
    """
    from fewnlu.protocol.check import config_loader
    from fewnlu.protocol.compose import parse
    from fewnlu.protocol.grid import expand

    loader = config_loader(config_dir)
    # Hyper-parameters need no files; a method is asked for by composing, and any will do.
    asked = [ov for ov in parse(loader, overrides) if not ov.key_or_group.startswith(("hp.", "hydra"))]
    lines = [ov.input_line for ov in asked if ov.key_or_group != "method"]
    method = next((ov.input_line for ov in asked if ov.key_or_group == "method"), "+method=cls")
    told: dict[str, None] = {}
    for one in expand(loader, [method, *lines, "search=none"]).composed:
        for line in (_rows(one.cfg), _model(one.cfg)):
            if line not in told:
                told[line] = None
                print(line)
    return list(told)


def _rows(cfg: dict[str, Any]) -> str:
    from fewnlu.tasks import sources
    from fewnlu.tasks.task import task_from_config

    task = task_from_config(cfg["task"])
    data = sources.load(task, cfg["data"], cfg["seed"]["data"])
    parts = [f"{len(data.labeled.rows)} labelled ({data.labeled.origin})"]
    if data.test is not None:
        parts.append(f"{len(data.test.rows)} test ({data.test.origin})")
    return f"task {task.name}: {', '.join(parts)}"


def _model(cfg: dict[str, Any]) -> str:
    from fewnlu.backbones.weights import fingerprint, model_folder, weight_files
    from fewnlu.protocol.model import kind_of, model_name, where

    kind = kind_of(cfg)
    folder = model_folder(*where(cfg))
    size = sum(file.resolve().stat().st_size for file in weight_files(folder))
    return f"model {model_name(cfg)}: {kind}, {size / 1e6:,.0f} MB in {folder}, {fingerprint(*where(cfg))[:8]}"


def main(argv: list[str] | None = None) -> None:
    """Entry point; exit status 0, 2 where something cannot be had."""
    from hydra._internal.utils import get_args_parser

    args = get_args_parser().parse_args(sys.argv[1:] if argv is None else argv)
    if args.help:
        print(__doc__)
        sys.exit(0)
    try:
        prepare(args.overrides, args.config_dir)
    except FewnluError as err:
        print(f"error: {err}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
