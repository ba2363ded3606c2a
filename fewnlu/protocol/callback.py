"""Hydra callback: the summary when a run or a sweep ends. It only calls what `python -m fewnlu.report` calls."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback

from fewnlu.protocol.expected import Expected

status = 0  # exit status of the command: 1 where a run failed or is missing
expected: Expected | None = None  # what the command is to leave behind; None: whatever is in the folder
submitted = 0  # jobs that go on without this command


class SummaryCallback(Callback):
    """Prints the studies of the sweep's folder; a job that was killed elsewhere leaves this to the report command."""

    def on_multirun_end(self, config: Any, **kwargs: Any) -> None:
        _summary(Path(config.hydra.sweep.dir))

    def on_run_end(self, config: Any, **kwargs: Any) -> None:
        _summary(Path(config.hydra.sweep.dir))


def _summary(sweep: Path) -> None:
    global status
    # The one import that runs up: a callback is where the protocol hands over to the report.
    from fewnlu.reporting.answers import answer_tables
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
    print(studies_text(summaries) if shown else f"no records in {sweep}")
    for table in [*answer_tables(shown), *worth_a_table(summaries)]:
        print(f"\n{table.text()}")
    if others := len(studies) - len(shown):
        are = count(others, "other study is", "other studies are")
        print(f"\n{are} in {shown_dir}: python -m fewnlu.report show {shown_dir}")
    if any(s.failed or s.damaged for s in shown) or not shown:
        status = 1
    if expected is not None and expected.runs:
        gaps = [run for run in read_status(sweep, [expected]).runs if run.wanted and run.state != "done"]
        if gaps:
            status = 1
            print()
            print(gaps_text(gaps, len(expected.runs)))
