"""Launch a plan's jobs through whatever Hydra launcher is configured, with one bar for the whole sweep."""

from __future__ import annotations

import sys
from typing import Any

from fewnlu.progress import SweepBar
from fewnlu.protocol.grid import Plan


def launch(plan: Plan, launcher: Any, config: Any, max_batch_size: int | None = None) -> list[Any]:
    """Run the jobs; a job that fails returns NaN instead of raising, so that all others run and the summary is made.

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
    returns: list[Any] = []
    with SweepBar(total=plan.trainings):
        for start in range(0, len(overrides), size):
            results = launcher.launch(overrides[start : start + size], initial_job_idx=start)
            for result in results:
                _ = result.return_value  # raises what the task function did not catch
            returns.append(results)
    return returns
