"""One W&B run per study, so that a dashboard compares studies: h*, scores and all points of H, from records alone.

It is written by the process that prints the summary, whatever launcher ran the jobs, and has the group of the study's
runs. Its id is derived from the study and its seeds: the same command again updates it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewnlu.protocol import loggers
from fewnlu.protocol.records import digest

JOB_TYPE = "study"
TABLE = "points of H"


@dataclass(frozen=True)
class StudyLog:
    """What a dashboard shall know of a study.

    Attributes:
        name / key / seeds / k_total: what the study is; together its identity.
        config: resolved, as in its records.
        summary: flat names and plain values; None where a value is not known, so that none of an earlier time stays.
        header / rows: all points of H.
        failed: whether one of its runs failed.
    """

    name: str
    key: str
    seeds: Mapping[str, int]
    k_total: int | None
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    header: Sequence[str]
    rows: Sequence[Sequence[Any]]
    failed: bool

    @property
    def id(self) -> str:
        return digest({"study": self.key, "seeds": dict(self.seeds), "k_total": self.k_total, "what": JOB_TYPE}, 16)


def log_studies(studies: Sequence[StudyLog], conf: Mapping[str, Any], sweep: Path) -> int:
    """Log each as a W&B run with its files in `<sweep>/wandb`; how many were. What fails costs one warning."""
    if loggers.wandb_mode(dict(conf)) == "disabled":
        return 0
    logged, broken = 0, list[str]()
    for study in studies:
        run = loggers.start(
            dict(conf),
            sweep,
            id=study.id,
            name=f"study {study.name}",
            group=study.name,
            job_type=JOB_TYPE,
            config={**study.config, "seed": dict(study.seeds), "study": study.key, "k_total": study.k_total},
        )
        if run is None:
            continue
        try:
            import wandb

            run.summary.update(dict(study.summary))
            table = wandb.Table(
                columns=list(study.header), data=[list(row) for row in study.rows], allow_mixed_types=True
            )
            run.log({TABLE: table})
            logged += 1
        except Exception as err:
            broken.append(f"{study.name}: {type(err).__name__}: {err}")
        loggers.finish(run, int(study.failed))
    if broken:
        loggers.warn_once(f"logger=wandb: {len(broken)} of {len(studies)} summaries are not whole ({broken[0]})")
    return logged
