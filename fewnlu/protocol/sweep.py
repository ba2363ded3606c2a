"""Launch a plan's jobs through whatever Hydra launcher is configured, with one bar for the whole sweep."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fewnlu.errors import FewnluError
from fewnlu.progress import SweepBar
from fewnlu.protocol import callback, cluster, devices, stop
from fewnlu.protocol.atomic import is_disk_full
from fewnlu.protocol.grid import Plan
from fewnlu.protocol.machine import cores


def launch(plan: Plan, launcher: Any, config: Any, max_batch_size: int | None = None) -> list[Any]:
    """Run the jobs; one that fails or is lost costs the others nothing, and the summary is made in any case.

    Args:
        plan: the expanded and checked sweep.
        launcher: Hydra launcher, already set up.
        config: the sweep's master config.
        max_batch_size: jobs handed over at a time; None: all.
    """
    for note in dict.fromkeys(plan.notes):
        print(note, file=sys.stderr)
    print(plan.summary(), file=sys.stderr)
    overrides = [job.overrides for job in plan.jobs]
    size = max_batch_size or max(1, len(overrides))
    own = OmegaConf.select(config, "launcher") or {}
    wait = bool(own.get("wait", True))
    returns: list[Any] = []
    with SweepBar(total=plan.trainings), stop.scope(Path(str(config.hydra.sweep.dir)).resolve(), keep=not wait):
        for start in range(0, len(overrides), size):
            part = overrides[start : start + size]
            try:
                if cluster.is_submitit(launcher):
                    parallel = int(own.get("parallel") or cores())
                    results = cluster.submit(launcher, config, part, start, wait=wait, parallel=parallel)
                else:
                    _limit_to_devices(launcher)
                    results = launcher.launch(part, initial_job_idx=start)
            except OSError as err:
                if not is_disk_full(err):
                    raise
                print(f"error: no space left on the disk ({err}); finished runs are kept", file=sys.stderr)
                callback.status = 1
                break
            _tell(results)
            returns.append(results)
    if not wait:
        callback.submitted = len(overrides)
    return returns


def _tell(results: Sequence[Any]) -> None:
    """Say what the task function did not catch; runs that failed have said so themselves."""
    for result in results:
        try:
            _ = result.return_value
        except Exception as err:
            callback.status = 1
            name = "" if isinstance(err, FewnluError) else f"{type(err).__name__}: "
            print(f"error in job {' '.join(result.overrides or [])}: {name}{err}", file=sys.stderr)


def _limit_to_devices(launcher: Any) -> None:
    """Never more joblib workers than GPUs, where there are GPUs: each takes one for itself."""
    settings = getattr(launcher, "joblib", None)
    found = devices.visible()
    if settings is None or not found:
        return
    jobs = int(settings.get("n_jobs") or 1)
    if jobs < 0 or jobs > len(found):
        print(f"hydra.launcher.n_jobs={jobs}: {len(found)} at once, one for each GPU", file=sys.stderr)
        settings["n_jobs"] = len(found)
