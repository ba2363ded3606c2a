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
    print(plan.summary() + _there(), file=sys.stderr)
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
                    if not cluster.is_slurm(launcher):
                        parallel = _at_once(parallel, plan, "launcher.parallel")
                    results = cluster.submit(launcher, config, part, start, wait=wait, parallel=parallel)
                else:
                    if (settings := getattr(launcher, "joblib", None)) is not None:
                        settings["n_jobs"] = _at_once(int(settings.get("n_jobs") or 1), plan, "hydra.launcher.n_jobs")
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


def _there() -> str:
    """What of it an earlier command has left."""
    expected = callback.expected
    if expected is None or not (n := len(expected.runs) - len(expected.missing())):
        return ""
    return f"; {n} of {len(expected.runs)} runs are there already"


def _tell(results: Sequence[Any]) -> None:
    """Say what the task function did not catch; runs that failed have said so themselves."""
    for result in results:
        try:
            _ = result.return_value
        except Exception as err:
            callback.status = 1
            name = "" if isinstance(err, FewnluError) else f"{type(err).__name__}: "
            print(f"error in job {' '.join(result.overrides or [])}: {name}{err}", file=sys.stderr)


def _at_once(jobs: int, plan: Plan, key: str) -> int:
    """Never more jobs at once on this machine than GPUs, where GPUs are used: each job takes one for itself."""
    found = devices.visible()
    if not found or 0 <= jobs <= len(found):
        return jobs
    if all(one.cfg["trainer"].get("accelerator") == "cpu" for one in plan.composed):
        return jobs
    print(f"{key}={jobs}: {len(found)} at once, one for each GPU", file=sys.stderr)
    return len(found)
