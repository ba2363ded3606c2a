"""What a trial is made of and can be known without a model: rows, splits, study, keys. No torch here."""

from __future__ import annotations

import dataclasses
import hashlib
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fewnlu.errors import ConfigError
from fewnlu.plugins import find, source_of
from fewnlu.prompts.readers import Reading
from fewnlu.protocol import devices
from fewnlu.protocol.grid import LOOK_KEYS, resolve_hp, templates_of
from fewnlu.protocol.model import adapter_rank, frozen_layers, kind_of, model_name, where
from fewnlu.protocol.records import canonical, digest, run_folder, run_key
from fewnlu.splits.strategy import Split, SplitStrategy, build_strategy, runs_of
from fewnlu.tasks import sources
from fewnlu.tasks.task import Pattern, Row, Task, task_from_config
from fewnlu.trainer_flags import HOW_FLAGS


@dataclass
class Setup:
    """A composed config read into its parts, checked.

    Attributes:
        cfg: the composed config.
        data: labelled and test rows with hashes and origins.
        splits: the K (train, dev) pairs of row positions; `ks` are the ones to run.
        hs: the points of H of this job; they share one training.
        pool: unlabelled rows without labelled and test ones, where something reads them.
    """

    cfg: dict[str, Any]
    task: Task
    data: sources.TaskData
    strategy: SplitStrategy
    splits: list[Split]
    ks: list[int]
    hs: list[dict[str, Any]]
    paradigm: Any
    pool: sources.RowSet | None = None

    @property
    def rows(self) -> Sequence[Row]:
        return self.data.labeled.rows

    @property
    def seeds(self) -> dict[str, int]:
        return dict(self.cfg["seed"])

    def pattern(self, h: dict[str, Any]) -> Pattern:
        """What rows are read through: the pattern that h names, or the plain input of a classifier."""
        if self.cfg["method"]["input"] == "cls":
            assert self.task.cls is not None  # read_setup has checked
            return self.task.cls
        if templates_of(self.cfg) == "ptuning":
            return self.task.ptuning[h["pattern"]]
        return self.task.pattern(h["pattern"])

    @property
    def reading(self) -> Reading:
        """How several masks are read; single-mask patterns ignore it."""
        return Reading(**(self.cfg.get("reading") or {}), **(self.cfg.get("wsc") or {}))

    def run_seed(self, k: int, rep: int) -> int:
        """Training seed of run (k, rep), derived from `seed.train`; the same for all h and methods."""
        return int(digest({"train": self.cfg["seed"]["train"], "k": k, "rep": rep}, 8), 16)

    def seed_of(self, what: str, *which: int) -> int:
        """A seed for one more kind of draw, derived from `seed.train`."""
        return int(digest({"train": self.cfg["seed"]["train"], "what": what, "which": list(which)}, 8), 16)

    def pool_rows(self, n: int | None) -> sources.RowSet:
        """`n` unlabelled rows drawn by `seed.data`; all for None or where there are fewer."""
        assert self.pool is not None  # read_setup has checked
        rows = list(self.pool.rows)
        random.Random(self.cfg["seed"]["data"]).shuffle(rows)
        return sources.RowSet.of(rows[:n], self.pool.origin, self.pool.notes)

    @cached_property
    def drawn_pool(self) -> sources.RowSet:
        """The unlabelled rows that the paradigm reads."""
        return self.pool_rows(self.paradigm.pool)

    def study_config(self) -> dict[str, Any]:
        """Everything of the resolved config that is compared: no hp, seeds, K, paths, nor how it is run."""
        cfg, args = self.cfg, self.cfg["model_args"]
        options = {k: v for k, v in cfg["split"].items() if k not in {"k", "run"}}
        foreign = {kind: source_of(kind, cfg[kind]["name"]) for kind in ("method", "split", "paradigm")}
        code = {kind: hashlib.sha256(file.read_bytes()).hexdigest() for kind, file in foreign.items() if file}
        return {
            **({"plugins": code} if code else {}),
            # P-tuning's templates are part of what is compared only where they are read.
            "task": {k: v for k, v in cfg["task"].items() if k != "ptuning" or cfg["method"].get("templates") == k},
            **({"reading": dataclasses.asdict(self.reading)} if self.task.several else {}),
            "data": {k: cfg["data"].get(k) for k in ("n_labeled", "limit_test")}
            | ({"per_class": cfg["data"]["per_class"]} if cfg["data"].get("per_class") else {}),
            "model": {
                "name": model_name(cfg),
                "source": cfg["model"]["source"],
                "kind": kind_of(cfg),
                "revision": where(cfg)[3],
                "dtype": args["dtype"],
                "freeze_layers": frozen_layers(cfg),
                **({"lora_rank": rank} if (rank := adapter_rank(cfg)) else {}),
            },
            "method": {k: v for k, v in cfg["method"].items() if k != "reads"},
            "split": options,
            "paradigm": {**cfg["paradigm"], **self.paradigm.depends(self)},
            **({"aux": cfg["aux"]} if (cfg.get("aux") or {}).get("mlm_weight") else {}),
            **({"pool": self.pool.sha256} if self.pool is not None else {}),
            "trainer": {k: v for k, v in cfg["trainer"].items() if k not in HOW_FLAGS},
        }

    def study(self, weights_sha: str) -> tuple[str, str]:
        """(study key, folder name) given the hash of the model's weights."""
        key = digest(
            {
                "config": self.study_config(),
                "weights": weights_sha,
                "labeled": self.data.labeled.sha256,
                "test": self.data.test.sha256 if self.data.test else None,
            }
        )
        cfg = self.cfg
        parts = [cfg["task"]["name"], cfg["method"]["name"], model_name(cfg), cfg["split"]["name"]]
        if cfg["paradigm"]["name"] != "single":
            parts.append(cfg["paradigm"]["name"])
        return key, re.sub(r"[^A-Za-z0-9._+-]+", "_", "-".join(map(str, parts))) + f"-{key[:8]}"

    def row_hashes(self, k: int) -> dict[str, str | None]:
        """Hashes of the ids that run k trains, selects and tests on."""
        split = self.splits[k]
        return {
            "train": ids_hash([self.rows[i].id for i in split.train]),
            "dev": ids_hash([self.rows[i].id for i in split.dev]),
            "test": self.data.test.sha256 if self.data.test else None,
        }

    def key(self, study_key: str, h: dict[str, Any], k: int, rep: int) -> str:
        return run_key(study_key, h, k, rep, self.row_hashes(k), self.seeds)

    def folder(self, sweep: Path, study: tuple[str, str], h: dict[str, Any], k: int, rep: int) -> Path:
        return run_folder(sweep, study[1], h, k, rep, self.key(study[0], h, k, rep))

    def counts(self, positions: Sequence[int]) -> dict[str, int]:
        """Rows per label among labelled rows, labels in the task's order, zeros shown."""
        found = Counter(self.rows[i].label for i in positions)
        return {label: found.get(label, 0) for label in self.task.labels}

    def warnings(self, k: int) -> list[str]:
        """What a reader of run k should know: classes missing in train or dev, rows dropped."""
        out = []
        for name, positions in (("train", self.splits[k].train), ("dev", self.splits[k].dev)):
            missing = [label for label, n in self.counts(positions).items() if n == 0] if positions else []
            if missing:
                out.append(f"no row of class {', '.join(missing)} in {name}")
        out += [*self.data.labeled.notes, *(self.data.test.notes if self.data.test else ())]
        if self.data.n_leaks:
            out.append(f"{self.data.n_leaks} labelled rows dropped because their text is in test")
        return out


def ids_hash(ids: Sequence[str]) -> str:
    """SHA-256 (hex) of a sequence of row ids, order included."""
    return digest(list(ids))


def read_setup(cfg: dict[str, Any]) -> Setup:
    """Read a composed config into its parts.

    Raises:
        ConfigError, DataError: whatever keeps this trial from being run; no model has been read by then.
    """
    weight = (cfg.get("aux") or {}).get("mlm_weight") or 0
    if cfg["method"]["input"] == "question":
        if weight:
            raise ConfigError(
                f"aux.mlm_weight={weight}: method={cfg['method']['name']} trains nothing, so there is no loss to add to"
            )
        from fewnlu.protocol.answering import read_answering

        return read_answering(cfg)
    task = task_from_config(cfg["task"])
    where(cfg)
    if cfg["method"]["input"] == "cls" and task.cls is None:
        raise ConfigError(
            f"method={cfg['method']['name']}: task {task.name} has no plain input; "
            "add a template without mask as task.cls"
        )
    strategy = build_strategy(cfg["split"])
    share = cfg["runtime"]["share"] or [{}]
    reads = cfg["method"]["reads"]
    hs = []
    for values in share:
        if not isinstance(values, dict) or set(values) - set(LOOK_KEYS):
            raise ConfigError(
                f"runtime.share={share!r}: expected a list of mappings with only {' and '.join(LOOK_KEYS)}, "
                "the values that can share one training; the sweeper sets this key"
            )
        h = resolve_hp(cfg, {**{n: cfg["hp"][n] for n in reads}, **values})
        if h not in hs:
            hs.append(h)
    check_batch(cfg, task, cfg["hp"]["batch_size"])
    paradigm = find("paradigm", cfg["paradigm"]["name"])(dict(cfg["paradigm"]))
    source_of("method", cfg["method"]["name"])  # an unknown one is refused here, and fewnlu's own import torch
    data = sources.load(task, cfg["data"], cfg["seed"]["data"])
    rows = data.labeled.rows
    if strategy.needs_vectors:
        from fewnlu.splits.vectors import unit_vectors

        texts = [" ".join(r.fields.values()) for r in rows]
        strategy.vectors = unit_vectors(strategy.encoder, [r.unit for r in rows], texts)
    splits = strategy.splits([r.unit for r in rows], cfg["seed"]["split"], [str(r.label) for r in rows])
    ks = runs_of(cfg["split"], strategy.k)
    pool = _pool(cfg, task, data, weight, paradigm) if weight or paradigm.needs_pool else None
    setup = Setup(cfg, task, data, strategy, splits, ks, hs, paradigm, pool)
    paradigm.check(setup)
    return setup


def check_batch(cfg: dict[str, Any], task: Task, batch: int) -> None:
    """Refuse an hp.batch_size that devices and forwards cannot share evenly.

    Raises:
        ConfigError: runtime.micro_batch or trainer.devices do not divide it, or share what one loss is made of.
    """
    given, micro = cfg["trainer"].get("devices", 1), cfg["runtime"]["micro_batch"]
    if micro and batch % micro:
        raise ConfigError(
            f"runtime.micro_batch={micro}: does not divide hp.batch_size={batch}, so the loss would not be a "
            "mean over the batch; choose a divisor"
        )
    hinge = task.several and cfg["method"]["input"] == "pattern"
    n = devices.count(cfg["trainer"])
    if batch % n:
        raise ConfigError(
            f"trainer.devices={given}: {n} devices do not divide hp.batch_size={batch}, which they share at each "
            "update; choose a divisor, or another hp.batch_size"
        )
    if hinge and (cfg.get("reading") or {}).get("hinge") == "batch" and (n > 1 or (micro and micro < batch)):
        key = f"trainer.devices={given}" if n > 1 else f"runtime.micro_batch={micro}"
        raise ConfigError(
            f"reading.hinge=batch: this loss compares means over a forward's rows, so with {key} it would be another "
            "one; use reading.hinge=example, or the whole batch on one device"
        )
    if micro and batch % (n * micro):
        raise ConfigError(
            f"runtime.micro_batch={micro}: {n} devices with {micro} rows each do not divide hp.batch_size={batch}; "
            f"choose a divisor of {batch // n}"
        )


def _pool(cfg: dict[str, Any], task: Task, data: sources.TaskData, weight: float, paradigm: Any) -> sources.RowSet:
    who = f"aux.mlm_weight={weight}" if weight else f"paradigm={cfg['paradigm']['name']}"
    pool = sources.load_pool(task, cfg["data"], data)
    if pool is None or not pool.rows:
        what = "no row of it is left without labelled and test rows" if pool else "task.source names none"
        raise ConfigError(
            f"{who}: needs unlabelled rows, and task {task.name} has none ({what}); set task.source.files.unlabeled, "
            f"or {'leave aux.mlm_weight=0' if weight else 'use paradigm=single'}"
        )
    return pool


__all__ = ["Setup", "canonical", "ids_hash", "model_name", "read_setup"]
