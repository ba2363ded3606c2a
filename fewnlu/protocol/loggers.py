"""Training curves: CSV, Weights & Biases or none. A logger is never worth a run: what fails is one warning."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fewnlu.protocol.records import h_name
from fewnlu.protocol.setup import Setup

_warned: set[str] = set()


@contextlib.contextmanager
def run_loggers(
    setup: Setup, study: tuple[str, str], h: dict[str, Any], k: int, rep: int, folder: Path
) -> Iterator[list[Any]]:
    """Lightning loggers of one training; W&B runs are finished whatever happens, failed ones marked so (I114)."""
    conf = setup.cfg["logger"]
    if conf["name"] == "csv":
        from pytorch_lightning.loggers import CSVLogger

        folder.mkdir(parents=True, exist_ok=True)
        (folder / "metrics.csv").unlink(missing_ok=True)
        logger = CSVLogger(save_dir=str(folder), name="", version="")
        yield [logger]
        return
    if conf["name"] != "wandb":
        yield []
        return
    run = _start_wandb(conf, setup, study, h, k, rep, folder)
    if run is None:
        yield []
        return
    from pytorch_lightning.loggers import WandbLogger

    code = 1
    try:
        yield [WandbLogger(experiment=run, save_dir=str(folder))]
        code = 0
    finally:
        with contextlib.suppress(Exception):
            run.finish(exit_code=code, quiet=True)


def wandb_mode(conf: dict[str, Any]) -> str:
    """``online`` with a key, else ``offline``: never asks for a login, never waits for one."""
    if conf["mode"] != "auto":
        return str(conf["mode"])
    if os.environ.get("WANDB_MODE") in {"online", "offline", "disabled"}:
        return str(os.environ["WANDB_MODE"])
    if os.environ.get("WANDB_API_KEY"):
        return "online"
    with contextlib.suppress(Exception):
        import netrc

        host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai").split("//")[-1].split("/")[0]
        if netrc.netrc().authenticators(host):
            return "online"
    return "offline"


def _start_wandb(
    conf: dict[str, Any], setup: Setup, study: tuple[str, str], h: dict[str, Any], k: int, rep: int, folder: Path
) -> Any:
    mode = wandb_mode(conf)
    try:
        import wandb
    except ImportError:
        _warn("logger=wandb: the package wandb is not installed (pip install 'fewnlu[wandb]'); nothing is logged")
        return None
    settings = wandb.Settings(
        init_timeout=float(conf["init_timeout"]), silent=True, console="off", x_disable_stats=True
    )
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        **setup.study_config(),
        "hp": h,
        "seed": setup.seeds,
        "k": k,
        "rep": rep,
        "study": study[0],
        "run_seed": setup.run_seed(k, rep),
    }

    def make(how: Any) -> Any:
        return wandb.init(
            project=conf["project"],
            entity=conf["entity"],
            id=setup.key(study[0], h, k, rep),
            name=f"k{k}-r{rep} {h_name(h)}",
            group=study[1],
            job_type=h_name(h)[:64],
            config=config,
            dir=str(folder),
            mode=how,
            settings=settings,
            resume="allow" if how == "online" else None,
            reinit="finish_previous",
        )

    try:
        return make(mode)
    except Exception as err:
        _warn(
            f"logger=wandb: {type(err).__name__}: {' '.join(str(err).split())[:200]}; logging offline "
            f"(wandb sync later)"
        )
    try:
        return make("offline")
    except Exception as err:
        _warn(f"logger=wandb: {type(err).__name__}: {' '.join(str(err).split())[:200]}; nothing is logged")
        return None


def _warn(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        print(text, file=sys.stderr)
