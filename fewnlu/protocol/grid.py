"""From the command line of a sweep to its exact list of jobs.

H depends on what is compared (RTE has six patterns, CLS none), so the choices are expanded first, each is composed
once, and its own H is taken: the search space, the task's patterns, and of both only the hp keys that the method reads.
Values of h that only change when dev is looked at share one training, hence one job. No torch here.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fewnlu.config import HP_NAMES, canonical_hp
from fewnlu.errors import ConfigError, choices
from fewnlu.plugins import find
from fewnlu.protocol.compose import Composed, compose, options, parse
from fewnlu.protocol.model import kind_of
from fewnlu.splits.strategy import build_strategy, runs_of

LOOK_KEYS = ("eval_ratio", "patience")  # they decide when dev is looked at, never what an update does


@dataclass
class Job:
    """One Hydra job: its overrides, the points of H that it trains (all on one trajectory), and how often: splits times
    repetitions."""

    overrides: list[str]
    hs: list[dict[str, Any]]
    times: int


@dataclass
class Plan:
    """An expanded sweep: its jobs, the composed choices and notes for the user."""

    jobs: list[Job] = field(default_factory=list)
    composed: list[Composed] = field(default_factory=list)
    hs: list[list[dict[str, Any]]] = field(default_factory=list)  # H of each composed config
    notes: list[str] = field(default_factory=list)

    @property
    def points(self) -> int:
        return sum(len(job.hs) for job in self.jobs)

    @property
    def runs(self) -> int:
        return sum(len(job.hs) * job.times for job in self.jobs)

    @property
    def trainings(self) -> int:
        return sum(job.times for job in self.jobs)

    def summary(self) -> str:
        n = len(self.composed)
        runs, jobs = _counted(self.runs, "run"), _counted(len(self.jobs), "job")
        if all(one.cfg["method"]["input"] == "question" for one in self.composed):
            return f"{_counted(n, 'study')}: {runs} in {jobs}"
        return (
            f"{_counted(n, 'study')}: {_counted(self.points, 'point')} of H, {runs} from "
            f"{_counted(self.trainings, 'training')} in {jobs}"
        )


def _counted(n: int, what: str) -> str:
    plural = "studies" if what == "study" else f"{what}s"
    return f"{n} {what if n == 1 else plural}"


def expand(loader: Any, overrides: list[str], params: dict[str, str] | None = None) -> Plan:
    """The jobs of a sweep.

    Args:
        loader: Hydra's config loader.
        overrides: the command line's; they win over `params`.
        params: ``hydra.sweeper.params``.

    Raises:
        ConfigError: a choice, key or value that cannot be run; raised before any job starts.
    """
    merged: dict[str, Any] = {}
    for ov in parse(loader, [f"{k}={v}" for k, v in (params or {}).items()] + list(overrides)):
        merged[ov.get_key_element().lstrip("+")] = ov
    fixed: list[str] = []
    outer: list[list[str]] = []
    given: dict[str, list[Any]] = {}
    for ov in merged.values():
        name = ov.key_or_group.removeprefix("hp.")
        if ov.is_sweep_override() and not ov.is_discrete_sweep():
            raise ConfigError(
                f"{ov.input_line}: this sweeper takes lists of values; for intervals use hydra/sweeper=optuna"
            )
        if ov.key_or_group.startswith("hp.") and not ov.is_delete():
            if name not in HP_NAMES:
                raise ConfigError(f"unknown key 'hp.{name}' in '{ov.input_line}': {choices(name, HP_NAMES)}")
            given[name] = list(ov.sweep_iterator()) if ov.is_sweep_override() else [ov.value()]
        elif ov.is_sweep_override() and ov.key_or_group == "sweep":
            raise ConfigError(f"{ov.input_line}: a sweep has one folder; start one command per name")
        elif ov.is_sweep_override():
            key = ov.get_key_element()
            outer.append([f"{key}={text}" for text in ov.sweep_string_iterator()])
        else:
            fixed.append(ov.input_line)
    plan = Plan()
    for choice in dict.fromkeys(itertools.product(*outer)):  # equal combinations are one
        composed = compose(loader, [*fixed, *choice])
        plan.composed.append(composed)
        _add_jobs(plan, composed, [*fixed, *choice], given)
    return plan


def points(cfg: dict[str, Any], given: dict[str, list[Any]] | None = None) -> list[dict[str, Any]]:
    """H of one composed config, in a fixed order, without duplicates.

    Args:
        cfg: composed config (plain).
        given: values from the command line per hp name; each replaces that dimension.
    """
    given = given or {}
    reads = list(cfg["method"]["reads"])
    own = (cfg["search"].get("methods") or {}).get(cfg["method"]["name"]) or {}
    space = {**(cfg["search"].get("space") or {}), **own}
    for name in space:
        if name not in HP_NAMES:
            canonical_hp({name: space[name]})
    dims: list[list[Any]] = []
    for name in reads:
        if name in given:
            values = given[name]
        elif name == "pattern":
            values = _patterns(cfg)
        elif name in space:
            values = space[name] if isinstance(space[name], list) else [space[name]]
        else:
            values = [cfg["hp"][name]]
        dims.append(list(values))
    out = []
    for point in itertools.product(*dims):
        h = resolve_hp(cfg, dict(zip(reads, point, strict=True)))
        if h not in out:
            out.append(h)
    return out


def resolve_hp(cfg: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Canonical h of a config: checked values of the keys that the method reads; the pattern is made explicit.

    Raises:
        ConfigError: a pattern that the task lacks or that the model cannot read.
    """
    from fewnlu.tasks.task import task_from_config

    h = canonical_hp(values)
    if "lr_emb" in h and h["lr_emb"] is None:
        h["lr_emb"] = 1e-5 if h["lr"] <= 5e-6 else 1e-4  # spec 3.4
    if "pattern" in h:
        task = task_from_config(cfg["task"])
        patterns = patterns_of(cfg, task)
        usable = usable_patterns(cfg)
        if h["pattern"] is None:
            h["pattern"] = usable[0]
        elif h["pattern"] not in patterns:
            raise ConfigError(
                f"hp.pattern={h['pattern']}: task {task.name} has the patterns {', '.join(map(str, patterns))}"
                + (" for P-tuning (the number of slots)" if templates_of(cfg) == "ptuning" else "")
            )
        elif not _readable(patterns[h["pattern"]], kind_of(cfg), f"task.{templates_of(cfg)}.{h['pattern']}.template"):
            raise ConfigError(
                f"hp.pattern={h['pattern']}: in task {task.name} this pattern has a field after its mask, which a "
                f"causal model cannot read; choose one of {', '.join(map(str, usable))}, or a masked model"
            )
    return h


def templates_of(cfg: dict[str, Any]) -> str:
    """Which of the task's templates the method reads: `patterns` or `ptuning`."""
    return str(cfg["method"].get("templates") or "patterns")


def patterns_of(cfg: dict[str, Any], task: Any) -> Mapping[int, Any]:
    """The task's patterns by id, as this method reads them.

    Raises:
        ConfigError: P-tuning on a task without templates for it.
    """
    if templates_of(cfg) != "ptuning":
        return task.patterns
    if not task.ptuning:
        raise ConfigError(
            f"method={cfg['method']['name']}: task {task.name} has no templates with trainable slots; add some as "
            "task.ptuning (see conf/task/rte.yaml), or choose another method"
        )
    return task.ptuning


def usable_patterns(cfg: dict[str, Any]) -> list[int]:
    """Ids of the task's grid that the model can read (spec 4.5: a causal model reads only what precedes the mask).

    P-tuning's grid is the template with the fewest slots (the paper tries n = 1 only); others are chosen by hp.pattern.
    """
    from fewnlu.tasks.task import task_from_config

    task = task_from_config(cfg["task"])
    kind, patterns = kind_of(cfg), patterns_of(cfg, task)
    grid = task.grid if templates_of(cfg) == "patterns" else sorted(patterns)
    usable = [i for i in grid if _readable(patterns[i], kind, f"task.{templates_of(cfg)}.{i}.template")]
    usable = usable if templates_of(cfg) == "patterns" else usable[:1]
    if not usable:
        raise ConfigError(
            f"task={task.name}: no pattern of its grid ({', '.join(map(str, grid))}) ends with its mask, "
            "as a causal model needs; choose a masked model"
        )
    return usable


def _readable(pattern: Any, kind: str, where: str) -> bool:
    from fewnlu.prompts.template import parse as parse_template
    from fewnlu.prompts.template import usable_by_causal

    if kind not in pattern.kinds:
        return False
    return kind != "causal" or bool(usable_by_causal(parse_template(pattern.template, where)))


def _patterns(cfg: dict[str, Any]) -> list[Any]:
    wanted = cfg["search"].get("patterns")
    if wanted == 0 or cfg["hp"]["pattern"] is not None:
        return [cfg["hp"]["pattern"]]
    usable = usable_patterns(cfg)
    return usable if wanted is None else usable[:wanted]


def unread(cfg: dict[str, Any], given: Iterable[str]) -> list[str]:
    """A note on hp names of the command line that the method does not read, where there are some."""
    names = sorted(set(given) - set(cfg["method"]["reads"]))
    return [f"method={cfg['method']['name']} does not read {', '.join('hp.' + n for n in names)}: ignored"] * bool(
        names
    )


def paradigm_of(cfg: dict[str, Any]) -> Any:
    """The paradigm of a config; one run where nothing is drawn, for every one would be the same."""
    options = dict(cfg["paradigm"])
    asked = cfg["method"]["input"] == "question" and (cfg.get("decode") or {}).get("name") == "likelihood"
    if asked and "reps" in options:
        options["reps"] = 1
    return find("paradigm", options["name"])(options)


def _add_jobs(plan: Plan, composed: Composed, overrides: list[str], given: dict[str, list[Any]]) -> None:
    cfg = composed.cfg
    plan.notes += unread(cfg, given)
    shares = bool(cfg["paradigm"].get("shares_looks", True))
    together: dict[str, list[dict[str, Any]]] = {}
    plan.hs.append(points(cfg, given))
    for h in plan.hs[-1]:
        rest = {k: v for k, v in h.items() if not (shares and k in LOOK_KEYS)}
        together.setdefault(json.dumps(rest), []).append(h)
    times = int(paradigm_of(cfg).reps) * len(runs_of(cfg["split"], build_strategy(cfg["split"]).k))
    for hs in together.values():
        job = [*overrides, *(f"hp.{name}={_text(value)}" for name, value in hs[0].items())]
        if len(hs) > 1:
            share = ",".join("{" + ",".join(f"{n}:{_text(h[n])}" for n in LOOK_KEYS if n in h) + "}" for h in hs)
            job.append(f"runtime.share=[{share}]")
        plan.jobs.append(Job(job, hs, times))


def _text(value: Any) -> str:
    return "null" if value is None else repr(value)


__all__ = ["Job", "Plan", "expand", "kind_of", "options", "points", "resolve_hp", "usable_patterns"]
