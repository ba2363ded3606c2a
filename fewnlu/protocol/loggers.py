"""Training curves: CSV, Weights & Biases or none. A logger is never worth a run: what fails is one warning."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fewnlu.protocol.records import h_name
from fewnlu.protocol.setup import Setup

_warned: set[str] = set()
_LATER = "wandb sync later"
_unreachable: list[str] = []  # not empty: a server did not answer in this process


@dataclass
class RunLog:
    """The loggers of one training, and what it came to per h (set before it closes)."""

    loggers: list[Any]
    outcomes: list[dict[str, Any]] = field(default_factory=list)


@contextlib.contextmanager
def run_log(
    setup: Setup, study: tuple[str, str], hs: Sequence[dict[str, Any]], k: int, rep: int, folders: Sequence[Path]
) -> Iterator[RunLog]:
    """Log one training, which is one run for each of the `hs` that share it.

    CSV: ``metrics.csv`` in each run's folder. W&B: a W&B run per run, all finished whatever happens, those of a failed
    training marked failed (fault I114); the training curve is in the first, looks at dev and the summary are in all.
    """
    kind = setup.cfg["logger"]["name"]
    if kind == "csv":
        from pytorch_lightning.loggers import CSVLogger

        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "metrics.csv").unlink(missing_ok=True)
        yield RunLog([CSVLogger(save_dir=str(folders[0]), name="", version="")])
        for folder in folders[1:]:
            if (folders[0] / "metrics.csv").exists():
                shutil.copyfile(folders[0] / "metrics.csv", folder / "metrics.csv")
        return
    if kind != "wandb":
        yield RunLog([])
        return
    first = _start_wandb(setup, study, hs[0], k, rep, folders[0])
    log = RunLog([])
    if first is not None:
        from pytorch_lightning.loggers import WandbLogger

        log.loggers.append(WandbLogger(experiment=first, save_dir=str(folders[0])))
    code = 1
    try:
        yield log
        code = 0
    finally:
        _finish_wandb(first, log.outcomes[0] if log.outcomes else None, code)
        for i, h in enumerate(hs[1:], start=1):
            run = None if first is None else _start_wandb(setup, study, h, k, rep, folders[i])
            outcome = log.outcomes[i] if log.outcomes else None
            if run is not None and outcome:
                for step, score in outcome["looks"]:
                    run.log({"dev": score}, step=step)
            _finish_wandb(run, outcome, code)


@contextlib.contextmanager
def no_log() -> Iterator[RunLog]:
    """For trainings that are not runs, such as a teacher's."""
    yield RunLog([])


def _finish_wandb(run: Any, outcome: dict[str, Any] | None, code: int) -> None:
    if run is None:
        return
    with contextlib.suppress(Exception):  # what could not be logged is on disk, and never worth a run
        for name, value in (outcome or {}).items():
            if name != "looks" and value is not None:
                run.summary[name] = value
    finish(run, code)


def finish(run: Any, code: int) -> None:
    """End a W&B run; a server that stopped answering is given up after a while, and is not asked again."""
    try:
        run.finish(exit_code=code)
    except TimeoutError:
        _unreachable.append("finish")
        warn_once(f"logger=wandb: the server took no more data; logging offline ({_LATER})")
    except Exception as err:
        warn_once(f"logger=wandb: {_short(err)}")


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


def _start_wandb(setup: Setup, study: tuple[str, str], h: dict[str, Any], k: int, rep: int, folder: Path) -> Any:
    config = {
        **setup.study_config(),
        "hp": h,
        "seed": setup.seeds,
        "k": k,
        "rep": rep,
        "study": study[0],
        "run_seed": setup.run_seed(k, rep),
    }
    return start(
        setup.cfg["logger"],
        folder,
        id=setup.key(study[0], h, k, rep),
        name=f"k{k}-r{rep} {h_name(h)}",
        group=study[1],
        job_type=h_name(h)[:64],
        config=config,
    )


def start(conf: dict[str, Any], folder: Path, **what: Any) -> Any:
    """A W&B run, online where a server answers and else offline; None, and one warning, where there can be none.

    Args:
        conf: the config's `logger`.
        folder: the run's files go below it.
        what: id, name, group, job_type and config of the run. The same id again is the same run.
    """
    mode = wandb_mode(conf) if not _unreachable else "offline"
    try:
        import wandb
    except ImportError:
        warn_once("logger=wandb: the package wandb is not installed (pip install 'fewnlu[wandb]'); nothing is logged")
        return None
    wait = float(conf["init_timeout"])
    patience: dict[str, Any] = {"finish_timeout": max(60.0, 3 * wait), "finish_timeout_raises": True}
    settings = wandb.Settings(
        init_timeout=wait,
        silent=True,
        console="off",
        x_disable_stats=True,
        disable_git=True,
        save_code=False,
        **{name: value for name, value in patience.items() if name in wandb.Settings.model_fields},
    )
    folder.mkdir(parents=True, exist_ok=True)

    def make(how: Any) -> Any:
        return wandb.init(
            **what,
            project=conf["project"],
            entity=conf["entity"],
            dir=str(folder),
            mode=how,
            settings=settings,
            resume="allow" if how == "online" else None,
            reinit="finish_previous",
        )

    # A run that was interrupted starts from its first update again: what its killed attempt logged is of no use, and
    # would be synced as well. Likewise the summary of a study that has grown since.
    for old in folder.glob(f"wandb/offline-run-*-{what['id']}"):
        shutil.rmtree(old, ignore_errors=True)
    before = set(folder.glob(f"wandb/run-*-{what['id']}"))
    try:
        return make(mode)
    except Exception as err:
        _unreachable.append(mode)  # once is enough: each further run would wait as long
        warn_once(f"logger=wandb: {_short(err)}; logging offline ({_LATER})")
    with contextlib.suppress(Exception):  # W&B's process may still wait for the server, and then holds the run's id
        wandb.teardown()
    for begun in set(folder.glob(f"wandb/run-*-{what['id']}")) - before:
        shutil.rmtree(begun, ignore_errors=True)
    try:
        return make("offline")
    except Exception as err:
        warn_once(f"logger=wandb: {_short(err)}; nothing is logged")
        return None


def _short(err: Exception) -> str:
    return f"{type(err).__name__}: {' '.join(str(err).split())[:200]}"


def warn_once(text: str) -> None:
    """A warning that this process has not given yet."""
    if text not in _warned:
        _warned.add(text)
        print(text, file=sys.stderr)
