"""python -m fewnlu.final STUDY: retrain with h* on all labelled rows, with several seeds, and save a model.

Step 6 of Algorithm 1 (spec 1.1). h* is chosen on dev scores alone. There is no dev set left, so the number of updates
is that of the study: the median chosen step over its K runs, on the schedule that these had; or all of them.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fewnlu import plugins
from fewnlu.config import check_trust
from fewnlu.determinism import before_torch
from fewnlu.errors import ConfigError, FewnluError, choices
from fewnlu.protocol.chosen import choose

KEYS = {"final.steps": "median", "final.seeds": "3", "final.out": "", "final.overwrite": "false", "final.threads": ""}
SEEDS = ("seed.data", "seed.split", "seed.train")
K, TRUST = "split.k", "trust"


def main(argv: list[str] | None = None) -> None:
    """Entry point; exit status 0, or 2 where the study cannot be retrained."""
    parser = argparse.ArgumentParser(
        prog="python -m fewnlu.final",
        description="Retrain with h* on all labelled rows and save the model.",
        epilog="keys: final.steps=median|max  final.seeds=3  final.out=FOLDER (default: models/STUDY)  "
        "final.overwrite=true  final.threads=N; where the folder holds runs under several seeds, or of several K, the "
        "ones to take: seed.data=N  seed.split=N  seed.train=N  split.k=N; where the method is one of your own: "
        "'trust=[mymodule]', as with fewnlu.train",
    )
    parser.add_argument("study", type=Path, help="a study's folder, such as multirun/main/reviews-pet-…")
    parser.add_argument("keys", nargs="*", metavar="KEY=VALUE")
    args = parser.parse_args(argv)
    before_torch()
    try:
        values = dict(KEYS)
        seeds: dict[str, int] = {}
        k: int | None = None
        for text in args.keys:
            name, _, value = text.partition("=")
            if name in (*SEEDS, K):
                if not value.isdigit() or (name == K and int(value) < 1):
                    raise ConfigError(f"{text}: expected a whole number{', 1 or more' * (name == K)}")
                k = int(value) if name == K else k
                seeds |= {} if name == K else {name.removeprefix("seed."): int(value)}
            elif name == TRUST:  # the command line alone names modules: what a study's records say of them is not read
                modules = value.removeprefix("[").removesuffix("]").split(",")
                check_trust(own := [module.strip() for module in modules if module.strip()])
                plugins.trust(own)
            elif name not in KEYS:
                raise ConfigError(f"unknown key '{name}': {choices(name, (*KEYS, *SEEDS, K, TRUST))}")
            else:
                values[name] = value
        if values["final.steps"] not in ("median", "max"):
            raise ConfigError(
                f"final.steps={values['final.steps']}: {choices(values['final.steps'], ('median', 'max'))}"
            )
        if values["final.overwrite"] not in ("true", "false"):
            raise ConfigError(f"final.overwrite={values['final.overwrite']}: expected true or false")
        for name in ("final.seeds", "final.threads"):
            if values[name] and (not values[name].isdigit() or int(values[name]) < 1):
                raise ConfigError(f"{name}={values[name]}: expected a whole number, 1 or more")
        out = Path(values["final.out"] or Path("models") / args.study.resolve().name)
        threads = int(values["final.threads"]) if values["final.threads"] else None
        _check_out(out, overwrite=values["final.overwrite"] == "true")
        print(retrain(args.study, values["final.steps"], int(values["final.seeds"]), out, threads, seeds, k))
    except FewnluError as err:
        print(f"error: {err}", file=sys.stderr)
        sys.exit(2)


def _check_out(out: Path, *, overwrite: bool) -> None:
    there = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        what = "is no folder" if not there.is_dir() else "can't be written"
        raise ConfigError(f"final.out={out}: {there} {what}")
    if out.is_dir() and any(out.iterdir()) and not overwrite:
        raise ConfigError(f"final.out={out}: the folder is not empty; name another, or set final.overwrite=true")


def retrain(
    study: Path,
    steps: str,
    seeds: int,
    out: Path,
    threads: int | None = None,
    own: Mapping[str, int] | None = None,
    k: int | None = None,
) -> str:
    """Retrain, save, and return a report.

    Args:
        steps: `median` of the chosen steps, or `max`.
        seeds: trainings to make; the first one's model is saved.
        own, k: as `seeds` and `k` of `choose`.

    Raises:
        ConfigError: the rows, the model's weights or the code of a part of the user's own are not those of the study
            any more, or a training's loss was no longer a number.
    """
    chosen = choose(study, own, k)
    cfg = copy.deepcopy(chosen.cfg)
    cfg["hp"] |= chosen.h
    cfg["split"], cfg["logger"] = {"name": "fixed", "run": None}, {"name": "none"}
    cfg["runtime"] |= {"share": []}
    if cfg["method"]["input"] == "question":
        raise ConfigError(f"{study}: method={cfg['method']['name']} trains nothing, so there is nothing to retrain")
    if cfg["paradigm"]["name"] in ("ipet", "noisy_student"):
        # One split is left, so the models of the other seeds label.
        cfg["paradigm"] |= {"labeling": "single", "reps": max(2, seeds), "share": None}
    from fewnlu.protocol.model import weights_sha
    from fewnlu.protocol.setup import read_setup

    setup = read_setup(cfg)
    was, weights = chosen.runs[0], weights_sha(cfg)
    code = [one.get("plugins") or {} for one in (was["config"], setup.study_config())]
    for what, then, now in (
        ("labelled rows", was["rows"]["labeled"]["sha256"], setup.data.labeled.sha256),
        ("test rows", (was["rows"]["test"] or {}).get("sha256"), setup.data.test.sha256 if setup.data.test else None),
        ("weights of the base model", was["weights"], weights),
        *((f"lines of {kind}={cfg[kind]['name']}", *(c.get(kind) for c in code)) for kind in ("method", "paradigm")),
    ):
        if then != now:
            shown = [str(one or "none")[:12] for one in (now, then)]
            raise ConfigError(f"{study}: the {what} are not those of the study any more ({shown[0]}, then {shown[1]})")
    total = int(chosen.h["max_steps"])
    n = total if steps == "max" else int(statistics.median_low([r["chosen_step"] for r in chosen.runs]))
    import torch

    from fewnlu.protocol.lab import Lab
    from fewnlu.protocol.machine import cores

    torch.set_num_threads(threads or cores())

    identity = setup.study(weights)
    lab = Lab(setup, identity, lambda h, k, rep: setup.folder(out / "runs", identity, h, k, rep))
    lab.steps = n
    values: dict[str, list[float]] = defaultdict(list)
    for rep in reversed(range(seeds)):  # the first seed's comes last, and is saved
        lab.keep = rep == 0
        try:
            (fitted,) = setup.paradigm.run(lab, 0, rep, [chosen.h])
        except FloatingPointError as err:
            done = "; ".join(f"{name} {', '.join(f'{100 * v:.2f}' for v in got)}" for name, got in values.items())
            raise ConfigError(
                f"{study}: the training of seed {rep + 1} of {seeds} failed, so nothing is saved: {err}\n"
                f"Test scores of the seeds after it: {done or 'none'}. Try "
                + (f"final.seeds={rep}, which leaves it out, " if rep else "")
                + "or a study whose H has smaller values of lr".removeprefix("" if rep else "or ")
            ) from err
        if fitted.test_scores is not None and setup.data.test is not None:
            for name, value in lab.metrics(fitted.test_scores, setup.data.test.rows).items():
                values[name].insert(0, value)
    from fewnlu.protocol.machine import facts as machine_facts
    from fewnlu.protocol.saved import save_model

    test = {name: _spread(scores) for name, scores in values.items()}
    facts = {
        "study": was["study"],
        "study_name": was["study_name"],
        "base": {"name": setup.study_config()["model"]["name"], "sha256": weights},
        "steps": n,
        "seeds": {**setup.seeds, "runs": [setup.run_seed(0, rep) for rep in range(seeds)]},
        "trained_on": {
            "n": len(setup.rows),
            "origin": setup.data.labeled.origin,
            "sha256": setup.data.labeled.sha256,
        },
        "test": {"n": len(setup.data.test.rows), "metrics": test} if setup.data.test else None,
        "versions": machine_facts().get("versions"),
    }
    save_model(out, lab.kept, setup, chosen.h, facts)
    return _report(was["study_name"], facts, total, seeds, out)


def _spread(values: Sequence[float]) -> dict[str, Any]:
    from fewnlu.protocol.selection import mean, std

    return {"mean": mean(values), "std": std(values) if len(values) > 1 else None, "values": list(values)}


def _report(name: str, facts: dict[str, Any], total: int, seeds: int, out: Path) -> str:
    lines = [f"{name}: h* on all {facts['trained_on']['n']} labelled rows, {facts['steps']} of {total} updates"]
    over = "one seed" if seeds == 1 else f"mean ± std over {seeds} seeds"
    over += f" on {facts['test']['n']} rows" if facts["test"] else ""
    for metric, one in (facts["test"] or {}).get("metrics", {}).items():
        spread = "" if one["std"] is None else f" ± {100 * one['std']:.2f}"
        lines.append(f"  test {metric}: {100 * one['mean']:.2f}{spread} ({over})")
    if not facts["test"]:
        lines.append("  no test set")
    return "\n".join([*lines, f"  model of the first seed: {out}", f"  python -m fewnlu.predict {out} rows.csv"])


__all__ = ["choose", "main", "retrain"]

if __name__ == "__main__":
    main()
