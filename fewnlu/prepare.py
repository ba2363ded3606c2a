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
    from fewnlu.protocol.check import config_loader, sweep_params
    from fewnlu.protocol.compose import of_home, of_swept_groups, parse
    from fewnlu.protocol.grid import expand

    loader, overrides = config_loader(config_dir), of_home(overrides)
    # Hyper-parameters need no files.
    asked = [ov for ov in parse(loader, of_swept_groups(overrides)) if not ov.key_or_group.startswith(("hp.", "hydra"))]
    lines = [ov.input_line for ov in asked]
    whole, params = sweep_params(loader, lines)
    params = {k: v for k, v in params.items() if not k.startswith("hp.")}
    named = "method" in whole or "+method" in params or any(ov.key_or_group == "method" for ov in asked)
    known: set[str] = set()
    told: list[str] = []
    for one in expand(loader, [*lines, "search=none", *([] if named else ["+method=cls"])], params).composed:
        for title, parts in (_rows(one.cfg, named), _model(one.cfg)):
            if new := [part for part in parts if f"{title} {part}" not in known]:
                known |= {f"{title} {part}" for part in new}
                told.append(f"{title}: {', '.join(new)}")
                print(told[-1])
    return told


def _rows(cfg: dict[str, Any], named: bool) -> tuple[str, list[str]]:
    """What is read of a task: all that the method needs, or its rows where no method was named."""
    from fewnlu.protocol.setup import read_setup
    from fewnlu.tasks import choice, sources
    from fewnlu.tasks.task import task_from_config

    pool = None
    if named:
        setup = read_setup(cfg)
        labeled, test, pool = setup.data.labeled, setup.data.test, setup.pool
    elif choice.is_choice(cfg["task"]):
        labeled, test = (
            sources.RowSet.of((), "none"),
            choice.load_choice_rows(choice.choice_from_config(cfg["task"]), cfg["data"], "test"),
        )
    else:
        data = sources.load(task_from_config(cfg["task"]), cfg["data"], cfg["seed"]["data"])
        labeled, test = data.labeled, data.test
    sets = (("labelled", labeled), ("test", test), ("unlabelled", pool))
    parts = [f"{len(found.rows)} {name} ({found.origin})" for name, found in sets if found is not None and found.rows]
    return f"task {cfg['task']['name']}", parts


def _model(cfg: dict[str, Any]) -> tuple[str, list[str]]:
    from fewnlu.backbones.weights import fingerprint, model_folder, weight_files
    from fewnlu.protocol.model import kind_of, model_name, where

    kind = kind_of(cfg)
    folder = model_folder(*where(cfg))
    size = sum(file.resolve().stat().st_size for file in weight_files(folder))
    weights = fingerprint(*where(cfg))[:8]
    return f"model {model_name(cfg)}", [f"{kind}, {size / 1e6:,.0f} MB in {folder}, {weights}"]


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
