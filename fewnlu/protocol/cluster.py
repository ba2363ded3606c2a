"""Jobs through hydra-submitit-launcher, on SLURM or as local processes, so that one lost job costs only itself.

The launcher's own `launch` waits for results in order and raises at the first job that was cancelled, while the others
go on as orphans and the summary is never made; and its local executor starts all jobs at once (faults I096, I107).
Here the same settings are used, but every job is waited for, and what happened to each is said when it happens.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydra.core.singleton import Singleton

from fewnlu.protocol import devices

POLL_S = 0.5


def is_submitit(launcher: Any) -> bool:
    """Whether a Hydra launcher is one of hydra-submitit-launcher's."""
    return hasattr(launcher, "_EXECUTOR") and "submitit" in type(launcher).__module__


def is_slurm(launcher: Any) -> bool:
    """Whether its jobs run on a cluster's nodes."""
    return bool(launcher._EXECUTOR == "slurm")


def submit(
    launcher: Any, config: Any, overrides: Sequence[Sequence[str]], first: int, *, wait: bool, parallel: int
) -> list[Any]:
    """Submit jobs and, unless told otherwise, wait until all have ended, whatever their end.

    Args:
        launcher: a set-up submitit launcher.
        config: master config.
        overrides: per job.
        first: number of the first job.
        wait: False returns as soon as the jobs are submitted.
        parallel: local processes at once (a SLURM array has its own limit).

    Returns:
        Hydra's JobReturns of the jobs that returned one; fewer than `overrides` where jobs were lost.
    """
    executor = _executor(launcher)
    folder = Path(str(config.hydra.sweep.dir))
    folder.mkdir(parents=True, exist_ok=True)
    state = Singleton.get_state()
    params = [
        (list(o), "hydra.sweep.dir", first + i, f"job_id_for_{first + i}", state) for i, o in enumerate(overrides)
    ]
    if is_slurm(launcher):
        jobs = executor.map_array(launcher, *zip(*params, strict=True))
        print(f"submitted {len(jobs)} SLURM jobs: {', '.join(j.job_id for j in jobs)}", file=sys.stderr)
        return _wait(jobs, lambda: None, len(jobs)) if wait else []
    todo = iter(params)
    return _wait([], lambda: next((executor.submit(launcher, *p) for p in todo), None), parallel)


def _wait(jobs: list[Any], more: Callable[[], Any], parallel: int) -> list[Any]:
    live, results = list(jobs), list[Any]()
    exhausted = False
    while True:
        while len(live) < parallel and not exhausted:
            job = more()
            exhausted = job is None
            if job is not None:
                live.append(job)
        if not live:
            return results
        ended = [job for job in live if job.done()]
        for job in ended:
            live.remove(job)
            try:
                results.append(job.results()[0])
            except Exception as err:  # cancelled, killed, out of time or memory
                reason = next((line.strip() for line in str(err).splitlines() if line.strip()), type(err).__name__)
                print(f"LOST job {job.job_id}: {reason}\n  its log: {job.paths.stderr}", file=sys.stderr)
        if not ended:
            time.sleep(POLL_S)


def _executor(launcher: Any) -> Any:
    import submitit

    kind = launcher._EXECUTOR
    general = {
        "timeout_min",
        "cpus_per_task",
        "gpus_per_node",
        "tasks_per_node",
        "mem_gb",
        "nodes",
        "name",
        "stderr_to_stdout",
    }
    given = dict(launcher.params)
    if kind == "local" and given.get("gpus_per_node") is None and (gpus := devices.visible()):
        # submitit hides all GPUs from a job that asks for none; a job claims one of those that it is shown.
        given["setup"] = [*(given.get("setup") or ()), f"export CUDA_VISIBLE_DEVICES={shlex.quote(','.join(gpus))}"]
    init: dict[str, Any] = {"folder": given.pop("submitit_folder")}
    if "max_num_timeout" in given:
        init[f"{kind}_max_num_timeout"] = given.pop("max_num_timeout")
    executor = submitit.AutoExecutor(cluster=kind, **init)
    executor.update_parameters(**{n if n in general else f"{kind}_{n}": v for n, v in given.items()})
    return executor
