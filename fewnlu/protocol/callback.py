"""Hydra callback: the summary when a run or a sweep ends. It only calls what `python -m fewnlu.report` calls."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback

from fewnlu.protocol.expected import Expected

status = 0  # exit status of the command: 1 where a run failed or is missing
expected: Expected | None = None  # what the command is to leave behind; None: whatever is in the folder
submitted = 0  # jobs that go on without this command
sweeping: Any = None  # Hydra's config of the sweep that was begun


class SummaryCallback(Callback):
    """Prints the studies of the sweep's folder; a job that was killed elsewhere leaves this to the report command."""

    def on_multirun_start(self, config: Any, **kwargs: Any) -> None:
        global sweeping
        sweeping = config

    def on_multirun_end(self, config: Any, **kwargs: Any) -> None:
        _summary(Path(config.hydra.sweep.dir), _logger(config))

    def on_run_end(self, config: Any, **kwargs: Any) -> None:
        _summary(Path(config.hydra.sweep.dir), _logger(config))


def _logger(config: Any) -> dict[str, Any]:
    from omegaconf import OmegaConf

    found = OmegaConf.select(config, "logger")
    return dict(OmegaConf.to_container(found, resolve=True)) if found is not None else {}  # type: ignore[arg-type]


def _summary(sweep: Path, logger: dict[str, Any]) -> None:
    global status
    # The one import that runs up: a callback is where the protocol hands over to the report.
    from fewnlu.reporting.answers import answer_tables
    from fewnlu.reporting.checks import mixtures
    from fewnlu.reporting.layout import count
    from fewnlu.reporting.status import gaps_text, read_status
    from fewnlu.reporting.studies import read_studies, summarise
    from fewnlu.reporting.sure import worth_a_table
    from fewnlu.reporting.tables import studies_text

    shown_dir = os.path.relpath(sweep) if not os.path.relpath(sweep).startswith("..") else str(sweep)
    print()
    if submitted:
        print(f"{count(submitted, 'job goes', 'jobs go')} on without this command.")
        print(f"states:  python -m fewnlu.report status {shown_dir}")
        print(f"results: python -m fewnlu.report show {shown_dir}")
        return
    studies = read_studies([sweep])
    only = expected.studies if expected is not None and not expected.sampled else None
    shown = [s for s in studies if only is None or s.name in only]
    summaries = [summarise(s) for s in shown]
    for text in mixtures(shown):
        print(f"warning: {text}", file=sys.stderr)
    print(studies_text(summaries) if shown else f"no records in {sweep}")
    for table in [*answer_tables(shown), *worth_a_table(summaries)]:
        print(f"\n{table.text()}")
    if others := len(studies) - len(shown):
        are = count(others, "other study is", "other studies are")
        print(f"\n{are} in {shown_dir}: python -m fewnlu.report show {shown_dir}")
    if logger.get("name") == "wandb":
        _wandb(summaries, logger, sweep, shown_dir)
    if not shown:
        status = 1
    if expected is None or not expected.runs:  # nobody knows which runs are this command's: it answers for all
        status = 1 if any(s.failed or s.damaged for s in shown) else status
    else:
        gaps = [run for run in read_status(sweep, [expected]).runs if run.wanted and run.state != "done"]
        if gaps:
            status = 1
            print()
            print(gaps_text(gaps, len(expected.runs)))


def _wandb(summaries: list[Any], logger: dict[str, Any], sweep: Path, shown_dir: str) -> None:
    """One W&B run per study; whatever fails here costs a warning, for all of it is in the records."""
    from fewnlu.protocol.loggers import warn_once
    from fewnlu.protocol.studylog import StudyLog, log_studies
    from fewnlu.reporting.layout import count
    from fewnlu.reporting.overview import flat_summary, points_table

    try:
        logs = []
        for s in (one for one in summaries if one.study.config):
            what = (s.study.name, s.study.key, s.study.seeds, s.study.k_total, s.study.config)
            logs.append(StudyLog(*what, flat_summary(s), *points_table(s), failed=bool(s.study.failed)))
        logged = log_studies(logs, logger, sweep)
    except Exception as err:
        warn_once(f"logger=wandb: no summary of the studies: {type(err).__name__}: {err}")
        return
    if logged:
        print(
            f"\nW&B: {count(logged, 'run')} of job type study; what is offline: wandb sync {shown_dir}/wandb/offline-*"
        )
