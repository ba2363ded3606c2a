"""python -m fewnlu.train: compose a config, run one trial, print its study; with -m sweep the grid H.

The order of things: the command line is composed and checked completely (exit status 2 and nothing written where it
can't be run), then Hydra launches jobs, each job is one trial, and a callback prints the studies at the end.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig, OmegaConf

from fewnlu.config import conf_dir
from fewnlu.determinism import before_torch
from fewnlu.errors import ConfigError, FewnluError, interrupted


def job(cfg: DictConfig) -> float | None:
    """Hydra's task function: one trial. Failures are recorded, not raised: a raise would cost the sweep its summary.

    Returns:
        what a sweeper maximises; None where there is nothing (Optuna goes on after None, and breaks off after NaN).
    """
    from fewnlu.protocol import stop
    from fewnlu.protocol.machine import stay

    before_torch()  # this may be a process of a launcher's
    stay()
    value = _trial(cfg)
    if stop.orphaned():
        os._exit(1)  # nobody waits for the answer, and joblib would keep the model in memory for five minutes more
    return None if math.isnan(value) else value


def _trial(cfg: DictConfig) -> float:
    from hydra.core.hydra_config import HydraConfig

    from fewnlu import plugins
    from fewnlu.protocol import devices, stop
    from fewnlu.protocol.atomic import DiskFull
    from fewnlu.protocol.compose import absolute_paths

    if stop.requested():
        return math.nan
    node = HydraConfig.get()
    plain = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(plain, dict)
    values: dict[str, Any] = {str(k): v for k, v in plain.items() if k != "experiment"}
    root = Path(node.runtime.cwd)
    absolute_paths(values, root)
    plugins.trust(values["trust"] or [])
    if (
        node.runtime.choices.get("hydra/launcher") in ("joblib", "submitit_local")
        and values["trainer"].get("accelerator") != "cpu"
    ):
        devices.claim()  # before torch looks at the devices
    from fewnlu.protocol.trial import run_trial

    try:
        return run_trial(values, (root / node.sweep.dir).resolve(), threads=_threads(values, node))
    except FewnluError as err:
        print(f"error: {err}", file=sys.stderr)
        _fail()
        if isinstance(err, DiskFull):
            stop.request("no space left on the disk")
        return math.nan


def _threads(cfg: dict[str, Any], node: Any) -> int:
    """torch threads of this job: as configured, else what SLURM gave it, else the cores divided by the jobs at once."""
    from fewnlu.protocol.machine import cores

    if cfg["runtime"]["threads"]:
        return int(cfg["runtime"]["threads"])
    if given := os.environ.get("SLURM_CPUS_PER_TASK"):
        return max(1, int(given))
    jobs = node.launcher.get("n_jobs") or 1
    if node.runtime.choices.get("hydra/launcher") == "submitit_local":
        jobs = (cfg.get("launcher") or {}).get("parallel") or cores()
    return max(1, cores() // (cores() if jobs < 1 else int(jobs)))


def _fail() -> None:
    from fewnlu.protocol import callback

    callback.status = 1


_SUBMITIT = ("hydra_submitit_launcher", "slurm")
PLUGINS = {  # choices of Hydra's that come with an extra: its module below hydra_plugins, the extra
    "hydra/sweeper=optuna": ("hydra_optuna_sweeper", "optuna"),
    **dict.fromkeys(("launcher=slurm", "launcher=submitit_local"), _SUBMITIT),
    **dict.fromkeys(("hydra/launcher=submitit_slurm", "hydra/launcher=submitit_local"), _SUBMITIT),
}


def precheck(args: Any) -> None:
    """Compose and read everything that the command asks for, up to the rows and the splits; then say what is to come.

    Raises:
        FewnluError: what keeps it from being run.
    """
    from fewnlu.protocol import callback
    from fewnlu.protocol.check import check_command

    for override in args.overrides:
        plugin, extra = PLUGINS.get(override, (None, None))
        if plugin is not None and find_spec(f"hydra_plugins.{plugin}") is None:
            raise ConfigError(f"{override} needs the package {plugin.replace('_', '-')}: pip install 'fewnlu[{extra}]'")
    expected = check_command(args.overrides, multirun=bool(args.multirun), config_dir=args.config_dir)
    callback.expected = expected
    if not args.multirun:  # a sweep says so itself
        print(f"1 study: {len(expected.runs)} run{'s' * (len(expected.runs) != 1)} in 1 job", file=sys.stderr)
    if note := expected.room():
        print(note, file=sys.stderr)
    try:
        expected.write()
    except OSError as err:
        raise ConfigError(
            f"the sweep's folder {expected.sweep} can't be written ({err.strerror}); "
            "start the command in a folder that can"
        ) from None


def main() -> None:
    """Entry point; exit status 0: all runs done, 1: a run failed or is missing, 2: nothing was started."""
    from hydra._internal.utils import get_args_parser

    from fewnlu.protocol import callback, stop

    before_torch()
    # argparse takes overrides in one piece only: `… -m search=none` would be refused without a useful word.
    args = get_args_parser().parse_intermixed_args()
    flags = list(sys.argv[1:])
    for override in args.overrides:
        flags.remove(override)
    shows_only = args.help or args.hydra_help or args.cfg or args.info or args.shell_completion
    if shows_only:  # Hydra wants a sweep or a look, not both
        flags = [flag for flag in flags if flag not in ("-m", "--multirun")]
    else:
        from fewnlu.protocol.compose import of_home, of_swept_groups

        args.overrides = of_home(args.overrides)
        if args.multirun:
            args.overrides = of_swept_groups(args.overrides)
    sys.argv[1:] = [*args.overrides, *flags]
    if not shows_only and args.experimental_rerun is None:
        try:
            precheck(args)
        except BaseException as err:
            if interrupted(err):
                print("interrupted: nothing was begun", file=sys.stderr)
                sys.exit(130)
            if not isinstance(err, FewnluError):
                raise
            print(f"error: {err}", file=sys.stderr)
            sys.exit(2)
    sweep = callback.expected.sweep if callback.expected is not None else None
    # Our sweeper has a scope of its own; under another one jobs could not be told to stop.
    with contextlib.nullcontext() if sweep is None else stop.scope(sweep), _no_trial_completed(args.overrides):
        hydra.main(config_path=str(conf_dir()), config_name="train", version_base="1.3")(_task())()
    sys.exit(callback.status)


@contextlib.contextmanager
def _no_trial_completed(overrides: list[str]) -> Iterator[None]:
    """Optuna asks for its best trial also where each one failed, and Hydra would end there without a summary."""
    from fewnlu.protocol import callback

    if "hydra/sweeper=optuna" not in overrides:
        yield
        return
    asked = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # so that the error gets here
    try:
        yield
    except ValueError as err:
        if "No trials are completed" not in str(err):
            raise
        print("error: optuna has no best h, every trial failed (see above)", file=sys.stderr)
        callback.status = 1
        callback.SummaryCallback().on_multirun_end(callback.sweeping)
    finally:
        os.environ.pop("HYDRA_FULL_ERROR")
        if asked is not None:
            os.environ["HYDRA_FULL_ERROR"] = asked


def _task() -> Any:
    # Under `python -m` this file is __main__, which jobs in other processes cannot import by name.
    from fewnlu.train import job as importable

    return importable


if __name__ == "__main__":
    main()
