"""Hydra callback: the summary when a run or a sweep ends. It only calls what `python -m fewnlu.report show` calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback

status = 0  # exit status of the command: 1 where a run failed
only: set[str] | None = None  # names of the studies of this command; None: all in the folder


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
    from fewnlu.reporting.studies import read_studies, summarise
    from fewnlu.reporting.tables import studies_text

    studies = read_studies([sweep])
    shown = [s for s in studies if only is None or s.name in only]
    print()
    print(studies_text([summarise(s) for s in shown]) if shown else f"no records in {sweep}")
    for table in answer_tables(shown):
        print(f"\n{table.text()}")
    if len(studies) > len(shown):
        print(f"\n{len(studies) - len(shown)} other studies are in {sweep}: python -m fewnlu.report show {sweep}")
    if any(s.failed or s.damaged for s in shown) or not shown:
        status = 1
