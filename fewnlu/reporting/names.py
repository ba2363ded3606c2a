"""What studies are called in tables: the task's columns, and a label that tells a study from its neighbours."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from fewnlu.config import conf_dir
from fewnlu.reporting.layout import METHOD_NAMES, METRIC_NAMES, MISSING, PAPER_NAMES, PARADIGM_NAMES, SPLIT_NAMES
from fewnlu.reporting.studies import Study


def task_name(study: Study) -> str:
    """The task's name as the paper spells it."""
    if not study.config:
        return MISSING  # nothing but damaged records are left
    name = str(study.config["task"]["name"])
    return PAPER_NAMES.get(name, name)


def tasks_of(studies: Sequence[Study]) -> list[str]:
    """Task names, the paper's first and in its order."""
    order = list(PAPER_NAMES.values())
    return sorted({task_name(s) for s in studies}, key=lambda t: (order.index(t) if t in order else len(order), t))


def model_name(study: Study) -> str:
    """The model's name in folders and tables."""
    return str(study.config["model"]["name"]) if study.config else MISSING


def method_name(study: Study) -> str:
    """Method with its options and paradigm, as rows of the paper's Table 5: ``PET+MLM``, ``PET + iPET (cross)``."""
    config = study.config
    if not config:
        return study.name
    method, paradigm = config["method"], config.get("paradigm") or {"name": "single"}
    name = METHOD_NAMES.get(method["name"], str(method["name"]))
    extra = _options("method", method)
    if (config.get("aux") or {}).get("mlm_weight"):
        name += "+MLM"
    if known := PARADIGM_NAMES.get(paradigm["name"]):
        name += f" + {known}"
        extra = [str(paradigm.get("labeling")), *(o for o in _of_paradigm(study) if "labeling=" not in o), *extra]
        extra += [f"K={k}"] if (k := _other_k(study)) else []
    elif paradigm["name"] != "single":
        extra = [str(paradigm["name"]), *_of_paradigm(study), *extra]
    return f"{name} ({', '.join(extra)})" if extra else name


def published_name(study: Study) -> str:
    """The row of the published tables that a study belongs to: ``iPET(single)`` for ``PET + iPET (single)``."""
    match = re.fullmatch(r"PET \+ (iPET|Noisy)(?: Student)? \((\w+)\)", name := method_name(study))
    return f"{match[1]}({match[2]})" if match else name


def method_choice(study: Study) -> str:
    """The method as it is typed, with all that makes it another one: ``pet aux.mlm_weight=1.0 paradigm=ipet``."""
    config = study.config
    method, paradigm = config["method"], config.get("paradigm") or {"name": "single"}
    parts = [str(method["name"]), *(f"method.{option}" for option in _options("method", method))]
    if weight := (config.get("aux") or {}).get("mlm_weight"):
        parts.append(f"aux.mlm_weight={weight}")
    if paradigm["name"] != "single":
        parts += [f"paradigm={paradigm['name']}", *(f"paradigm.{o}" for o in _of_paradigm(study))]
        parts += [f"split.k={k}"] if (k := _other_k(study)) else []
    return " ".join(parts)


def split_name(study: Study, *, options: bool = True) -> str:
    """Strategy with what differs from its usual options; K where it is part of the splits."""
    if not study.config:
        return MISSING
    split = study.config["split"]
    name = SPLIT_NAMES.get(split["name"], str(split["name"]))
    extra = [f"K={study.k_total}"] if study.k_total and study.k_total > 1 else []
    usual = _shipped("split", str(split["name"]))
    if options:
        extra += [f"r={split['ratio']}"] if "ratio" in split else []
        extra += [f"{k}={v}" for k, v in split.items() if k not in ("name", "ratio") and usual.get(k) != v]
    return f"{name} ({', '.join(extra)})" if extra else name


def score_name(config: dict[str, Any]) -> str:
    """What a study's score is: ``accuracy``, ``mean of accuracy and macro-F1``."""
    task = config.get("task") or {}
    names = [METRIC_NAMES.get(m, str(m)) for m in task.get("select") or task.get("metrics") or ["score"]]
    return f"mean of {' and '.join(names)}" if len(names) > 1 else names[0]


def seeds_text(study: Study, sign: str = "=") -> str:
    """``data=42 split=42 train=42``; ``seeds 42`` does not do, as they need not be alike."""
    return " ".join(f"{k}{sign}{v}" for k, v in study.seeds.items())


def seeds_differ(studies: Sequence[Study]) -> bool:
    """Whether studies of one table differ in their seeds, so that it must show them."""
    return len({seeds_text(s) for s in studies if s.seeds}) > 1


def study_file(study: Study) -> str:
    """A file name of its own for each study of a folder: K and seeds are named where they are not the usual ones."""
    k = f"-K{study.k_total}" if study.k_total else ""
    usual = all(v == 42 for v in study.seeds.values())
    return study.name + k + ("" if usual else "-" + "-".join(f"{n}{v}" for n, v in study.seeds.items()))


def _of_paradigm(study: Study) -> list[str]:
    """Options of the paradigm, as they are typed behind ``paradigm.``."""
    return [o for o in _options("paradigm", study.config["paradigm"]) if not o.startswith("k=")]


def _other_k(study: Study) -> int | None:
    """K where it is part of a study (with cross labelling the other splits teach) and not the usual one."""
    k = (study.config.get("paradigm") or {}).get("k")
    return None if k == _shipped("split", str(study.config["split"]["name"])).get("k") else k


def _options(group: str, section: dict[str, Any]) -> list[str]:
    usual = _shipped(group, str(section["name"]))
    return [f"{k}={v}" for k, v in section.items() if k != "name" and v not in (None, False) and usual.get(k) != v]


@functools.cache
def _shipped(group: str, name: str) -> dict[str, Any]:
    """The file of that name in conf/: options that are as shipped go without saying."""
    import yaml

    try:
        found = yaml.safe_load((conf_dir() / group / f"{name}.yaml").read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        return {}
    return found if isinstance(found, dict) else {}


def labels(studies: Sequence[Study]) -> list[str]:
    """One label per study: only the parts in which they differ; the study's key where nothing else does."""
    kinds = sorted({k for s in studies for k in s.seeds if len({o.seeds.get(k) for o in studies if o.seeds}) > 1})
    parts = [
        {
            "task": task_name(s),
            "method": method_name(s),
            "model": model_name(s),
            "split": split_name(s),
            "seeds": ", ".join(f"{k} seed {s.seeds[k]}" for k in kinds if k in s.seeds),
        }
        for s in studies
    ]
    names = list(parts[0]) if parts else []
    differ = [n for n in names if len({p[n] for p in parts}) > 1]
    out = [" · ".join(p[n] for n in (differ or ["method"])) for p in parts]
    count = Counter(out)
    return [f"{text} #{s.key[:8]}" if count[text] > 1 else text for text, s in zip(out, studies, strict=True)]
