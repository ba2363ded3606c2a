"""What a trial without training is made of: rows that are asked as questions, checked before any model is read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from fewnlu.decoding.build import check_decode
from fewnlu.errors import ConfigError, choices
from fewnlu.prompts.question import ANSWERS, FORMS, SPACES, Asker, ChoiceWording, PatternWording, chat_template
from fewnlu.protocol import devices
from fewnlu.protocol.grid import paradigm_of, usable_patterns
from fewnlu.protocol.model import kind_of, model_name, where
from fewnlu.protocol.setup import Setup
from fewnlu.splits.strategy import build_strategy, runs_of
from fewnlu.tasks import sources
from fewnlu.tasks.choice import ChoiceTask, choice_from_config, is_choice, load_choice_rows
from fewnlu.tasks.task import Task, task_from_config


@dataclass
class AnswerSetup(Setup):
    """A setup whose rows are asked, not trained on; `task` may be a `ChoiceTask`."""

    def study_config(self) -> dict[str, Any]:
        """As for all studies, and how answers are decoded."""
        return {**super().study_config(), "decode": self.cfg["decode"]}

    def study(self, weights_sha: str) -> tuple[str, str]:
        """As for all studies; the folder's name ends in the decoder's instead of the paradigm's."""
        key, _ = super().study(weights_sha)
        parts = [self.task.name, self.cfg["method"]["name"], model_name(self.cfg), self.cfg["decode"]["name"]]
        return key, re.sub(r"[^A-Za-z0-9._+-]+", "_", "-".join(map(str, parts))) + f"-{key[:8]}"

    def warnings(self, k: int) -> list[str]:
        """Rows rejected when they were read, or with fewer options."""
        data = self.data
        return [*data.labeled.notes, *(data.test.notes if data.test else ())]


def is_answering(cfg: dict[str, Any]) -> bool:
    """Whether a composed config asks its rows as questions."""
    return cfg["method"].get("input") == "question"


def read_answering(cfg: dict[str, Any]) -> AnswerSetup:
    """Read a composed config of a prompting method into its parts.

    Raises:
        ConfigError, DataError: whatever keeps it from being run; no model has been read by then.
    """
    method, decode = cfg["method"], cfg.get("decode")
    if not decode:
        raise ConfigError(f"method={method['name']} needs decode=tree, outlines or likelihood")
    check_decode(decode)
    _one_of("decode.choices", decode["choices"], ANSWERS)
    _one_of("decode.leading_space", decode["leading_space"], SPACES)
    _one_of("method.form", method["form"], FORMS)
    shots = method["shots"]
    if isinstance(shots, bool) or not isinstance(shots, int) or shots < 0:
        raise ConfigError(f"method.shots={shots!r}: expected a whole number, 0 or more")
    where(cfg)
    _check_trainer(method["name"], cfg["trainer"])
    if kind_of(cfg) != "causal":
        raise ConfigError(
            f"method={method['name']}: a masked model ({cfg['model']['name']}) can't be asked, only a causal one can; "
            "use model=smollm2, or another with model=hub"
        )
    task: Any
    if is_choice(cfg["task"]):
        task = choice_from_config(cfg["task"])
        data = _choice_data(task, cfg, shots)
    else:
        task = task_from_config(cfg["task"])
        data = sources.load(task, cfg["data"], cfg["seed"]["data"])
        if data.test is None:
            raise ConfigError(f"method={method['name']}: task '{task.name}' has no test rows to ask")
    strategy = build_strategy(cfg["split"])
    if strategy.has_dev or strategy.k != 1:
        raise ConfigError(f"split={cfg['split']['name']}: method={method['name']} selects nothing; use split=none")
    paradigm = paradigm_of(cfg)
    if paradigm.needs_pool:
        raise ConfigError(
            f"paradigm={cfg['paradigm']['name']}: method={method['name']} trains nothing, so there are no models that "
            "could label rows for others; use paradigm=draws"
        )
    rows = data.labeled.rows
    splits = strategy.splits([r.unit for r in rows], cfg["seed"]["split"], [str(r.label) for r in rows])
    setup = AnswerSetup(
        cfg=cfg,
        task=cast(Task, task),
        data=data,
        strategy=strategy,
        splits=splits,
        ks=runs_of(cfg["split"], strategy.k),
        hs=[{}],
        paradigm=paradigm,
    )
    make_asker(setup, None)  # what is wrong with patterns, shots or choices is said before anything is loaded
    return setup


def _check_trainer(method: str, flags: dict[str, Any]) -> None:
    """Refuse what only a training would heed: answers are computed on one device, in the precision of the weights."""
    precision = flags.get("precision")
    if str(precision) not in ("None", "32", "32-true"):
        dtype = next(
            (d for short, d in (("bf16", "bfloat16"), ("16", "float16")) if str(precision).startswith(short)), ""
        )
        raise ConfigError(
            f"trainer.precision={precision}: method={method} trains nothing and does not read it; leave it out, "
            f"and set the precision of the weights by model_args.dtype{dtype and f'={dtype}'}"
        )
    if devices.resolved(flags)["devices"] not in (1, [0]):
        raise ConfigError(
            f"trainer.devices={flags['devices']}: method={method} answers on one device; leave it out, choose a GPU by "
            "CUDA_VISIBLE_DEVICES, and spread the jobs of a sweep by launcher=joblib or slurm"
        )


def _choice_data(task: ChoiceTask, cfg: dict[str, Any], shots: int) -> sources.TaskData:
    data = cfg["data"]
    test = load_choice_rows(task, data, "test")
    if test is None:
        raise ConfigError(f"task '{task.name}' has no test rows: set task.source.files.test")
    labeled = load_choice_rows(task, data, "labeled") if shots else None
    n, per_class = data.get("n_labeled"), data.get("per_class")
    if shots and labeled is None and (n or per_class):
        raise ConfigError(
            f"data.{f'n_labeled={n}' if n else f'per_class={per_class}'}: task '{task.name}' has no labelled rows to "
            "draw from, so demonstrations are test rows; leave it out, or set task.source.files.labeled"
        )
    if labeled is not None:
        drawn = sources.draw_labeled(labeled.rows, n, cfg["seed"]["data"], labeled.origin, per_class)
        labeled = sources.RowSet.of(drawn, labeled.origin, labeled.notes)
    else:
        notes = ["demonstrations are test rows, never the row itself: there are no labelled rows"] if shots else []
        labeled = sources.RowSet.of((), "none", notes)
    return sources.TaskData(labeled, test, 0)


def _one_of(key: str, value: Any, known: Sequence[str]) -> None:
    if value not in known:
        raise ConfigError(f"{key}={value!r}: {choices(value, known)}")


def make_asker(setup: Setup, backbone: Any | None) -> Asker:
    """How the rows of a setup are put; without a backbone in the base form, unshortened (to check it)."""
    cfg, task = setup.cfg, cast(Any, setup.task)
    assert setup.data.test is not None
    if isinstance(task, ChoiceTask):
        wording: Any = ChoiceWording(task, cfg["decode"]["choices"])
    else:
        pattern = cfg["method"]["pattern"]
        wording = PatternWording(task, usable_patterns(cfg)[0] if pattern is None else pattern)
    asker = Asker(
        wording,
        template=None if backbone is None else chat_template(backbone.tokenizer, cfg["method"]["form"]),
        leading_space=cfg["decode"]["leading_space"],
        shots=cfg["method"]["shots"],
        pool=setup.data.labeled.rows or setup.data.test.rows,
        seed=cfg["seed"]["data"],
    )
    return asker
