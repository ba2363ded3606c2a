"""iPET: generations of models that label unlabelled rows for the next one (Schick & Schütze 2021; spec 3.6).

Generation g of a run trains, from the pretrained weights, on the split's train rows and on rows that teachers of
generation g − 1 labelled; the last generation is the run's result. Teachers score with their best weights on dev. A
model is trained when somebody first asks for its scores and is then a record in its run's folder, so a killed job goes
on where it was, and what is computed depends neither on the order of runs nor on which of them are asked for.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from fewnlu.errors import ConfigError, choices
from fewnlu.paradigms.generations import read_scores, write_generation, write_pseudo
from fewnlu.paradigms.pseudo_labels import Pseudo, combine, draw, quotas
from fewnlu.paradigms.single import Paradigm as Single
from fewnlu.paradigms.single import Training
from fewnlu.splits.strategy import Split

LABELING = ("single", "cross", "cross_clean")


class Model(NamedTuple):
    """A training: of split k and repetition rep in a generation; `without`: the split whose dev rows it may not see."""

    k: int
    rep: int
    generation: int
    without: int = -1

    @property
    def name(self) -> str:
        """Folder below that of run (k, rep)."""
        return f"g{self.generation}" + (f"-without-k{self.without}" if self.without >= 0 else "")


class Paradigm(Single):
    """Self-training.

    `labeling`: who labels for a model.

    - ``single``: the other repetitions of its split (none of them trained on its dev rows);
    - ``cross``: all other models of all splits, as in the paper. They have trained on some of this split's dev rows, so
      its dev score is optimistic; the record counts the rows per teacher;
    - ``cross_clean``: models of the other splits trained, selected and themselves taught without this split's dev rows.

    Raises:
        ConfigError: an option out of range.
    """

    name = "ipet"
    needs_pool = True
    word_dropout = 0.0

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self.labeling = str(options["labeling"])
        if self.labeling not in LABELING:
            raise ConfigError(f"paradigm.labeling={self.labeling!r}: {choices(self.labeling, LABELING)}")
        self.generations = self._whole("generations", 2)
        self.pool = self._whole("pool", 1)
        self._reps = 3 if self.labeling == "single" else 1
        if options.get("reps") is not None:
            self._reps = self._whole("reps", 1)
        self.share = self._number("share", 1.0 if self.labeling == "single" else 0.5, 0, 1)
        self.scale = self._number("scale", 3.0, 1, 1000)

    def _whole(self, name: str, least: int) -> int:
        value = self.options[name]
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"paradigm.{name}={value!r}: expected a whole number, {least} or more")
        return value

    def _number(self, name: str, default: float, low: float, high: float) -> float:
        value = self.options.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low < value <= high:
            raise ConfigError(f"paradigm.{name}={value!r}: expected a number above {low} and at most {high}")
        return float(value)

    @property
    def reps(self) -> int:
        return self._reps

    def check(self, setup: Any) -> None:
        k = setup.strategy.k
        if not setup.task.labels:
            raise ConfigError(
                f"paradigm={self.name}: rows of task {setup.task.name} have candidates of their own, so there are no "
                "classes to balance pseudo-labels by; use paradigm=single"
            )
        if self.labeling == "single" and self.reps < 2:
            raise ConfigError(
                "paradigm.reps=1: with labeling=single the other repetitions are the teachers; use 2 or more"
            )
        if self.labeling != "single" and k * self.reps < 2:
            raise ConfigError(
                f"paradigm.labeling={self.labeling}: split={setup.cfg['split']['name']} has one split, so there is no "
                "other to label for it; use labeling=single, or more splits"
            )
        if self.labeling == "cross_clean" and k < 3 and self.generations > 2 and self.reps < 2:
            raise ConfigError(
                f"paradigm.labeling=cross_clean: with split.k={k} a teacher has no teacher that is free of the same "
                "dev rows; use split.k=3 or more, paradigm.reps=2, or paradigm.generations=2"
            )
        if any(not setup.splits[i].train for i in range(k)):
            raise ConfigError(
                f"paradigm={self.name}: split={setup.cfg['split']['name']} has no train rows to begin with"
            )
        self._check_rows(setup)

    def _check_rows(self, setup: Any) -> None:
        """Each teacher must have rows to train on."""
        for model in sorted(self._needed(setup)):
            if model.without >= 0 and not self._rows(setup, model).train:
                raise ConfigError(
                    f"paradigm.labeling=cross_clean: split={setup.cfg['split']['name']}: split {model.k} trains on dev "
                    f"rows of split {model.without} alone, so no row is left for a teacher of it; use "
                    "paradigm.labeling=cross or single, or more splits (split.k)"
                )

    def depends(self, setup: Any) -> dict[str, Any]:
        # Which splits there are decides who teaches: with cross labelling K is part of a result.
        return {} if self.labeling == "single" else {"k": setup.strategy.k}

    def cost(self, setup: Any) -> str:
        needed = self._needed(setup)
        n_runs = len(setup.ks) * self.reps
        extra = sum(m.without >= 0 for m in needed)
        clean = f", {extra} of them trained anew without the dev rows of the split that they label for" if extra else ""
        return (
            f"paradigm={self.name} labeling={self.labeling}: {len(needed)} trainings per point of H for {n_runs} "
            f"runs, {len(needed) - n_runs} of them teachers{clean}"
        )

    def _needed(self, setup: Any) -> set[Model]:
        """All trainings that the runs of a setup need, their own and their teachers'."""
        needed: set[Model] = set()
        todo = [Model(k, rep, self.generations - 1) for k in setup.ks for rep in range(self.reps)]
        while todo:
            model = todo.pop()
            if model not in needed:
                needed.add(model)
                todo += self.teachers(setup, model)
        return needed

    def teachers(self, setup: Any, model: Model) -> list[Model]:
        """Who labels for a model, drawn once; none for generation 0."""
        g = model.generation - 1
        if g < 0:
            return []
        if self.labeling == "single":
            found = [Model(model.k, r, g) for r in range(self.reps)]
        else:
            found = [Model(k, r, g) for k in range(setup.strategy.k) for r in range(self.reps)]
        found = [m for m in found if (m.k, m.rep) != (model.k, model.rep)]
        if self.labeling == "cross_clean":
            avoid = model.without if model.without >= 0 else model.k
            found = [m._replace(without=avoid) for m in found if m.k != avoid]
        rng = random.Random(setup.seed_of("teachers", *model))
        return sorted(rng.sample(found, max(1, round(len(found) * self.share))))

    def run(self, lab: Any, k: int, rep: int, hs: Sequence[dict[str, Any]]) -> list[Any]:
        out = []
        for h in hs:
            last = Model(k, rep, self.generations - 1)
            fitted = self._train(lab, h, last)
            fitted.record["self_training"] = history = self._history(lab, h, last)
            seen = max(t["dev_rows_trained_on"] for t in history["teachers"])
            if seen:
                n = len(lab.setup.splits[k].dev)
                fitted.warnings.append(
                    f"dev score is optimistic: a teacher had trained on {seen} of this split's {n} dev rows"
                )
            out.append(fitted)
        return out

    def _rows(self, setup: Any, model: Model) -> Split:
        split = setup.splits[model.k]
        if model.without < 0:
            return split
        barred = set(setup.splits[model.without].dev)
        return Split(*(tuple(r for r in part if r not in barred) for part in (split.train, split.dev)))

    def _pseudo(self, lab: Any, h: dict[str, Any], model: Model) -> list[Pseudo]:
        """The rows of the pool that a model trains on."""
        setup = lab.setup
        teachers = self.teachers(setup, model)
        if not teachers:
            return []
        probabilities = combine([self._scores(lab, h, teacher) for teacher in teachers])
        wanted = quotas(list(setup.counts(self._rows(setup, model).train).values()), self.scale, model.generation)
        return draw(probabilities, wanted, setup.seed_of("pseudo", *model))

    def _scores(self, lab: Any, h: dict[str, Any], model: Model) -> Any:
        """Scores [pool, labels] of a model, from its record or by training it now."""
        folder = lab.folder_of(h, model.k, model.rep) / model.name
        key = self._key(lab, h, model)
        if (found := read_scores(folder, key)) is not None:
            return found
        fitted = self._train(lab, h, model)
        write_generation(folder, key, fitted, self._teachers_named(lab, model), lab.setup.task.labels)
        return fitted.after

    def _key(self, lab: Any, h: dict[str, Any], model: Model) -> str:
        steps = "" if lab.steps is None else f"-s{lab.steps}"  # `final` trains for a number of updates of its own
        return f"{lab.setup.key(lab.study[0], h, model.k, model.rep)}-{model.name}{steps}"

    def _train(self, lab: Any, h: dict[str, Any], model: Model) -> Any:
        setup, last = lab.setup, model.generation == self.generations - 1
        pseudo = self._pseudo(lab, h, model)
        if model.generation:
            folder = lab.folder_of(h, model.k, model.rep) / model.name
            write_pseudo(folder, [setup.drawn_pool.rows[p.row].id for p in pseudo], pseudo, setup.task.labels)
        plain = model.generation == 0 and model.without < 0
        training = Training(
            split=self._rows(setup, model),
            pseudo=[(p.row, p.column) for p in pseudo],
            seed=None if plain else setup.seed_of("generation", *model),
            word_dropout=self.word_dropout if model.generation else 0.0,
            after=None if last else lambda method: lab.score_pool(method, h),
            logged=last,
        )
        return lab.train(model.k, model.rep, [h], training)[0]

    def _teachers_named(self, lab: Any, model: Model) -> list[dict[str, int]]:
        return [{"k": t.k, "rep": t.rep, "generation": t.generation} for t in self.teachers(lab.setup, model)]

    def _history(self, lab: Any, h: dict[str, Any], last: Model) -> dict[str, Any]:
        """What a record says of the teachers of a run: which dev rows of its split each of them has seen."""
        setup = lab.setup
        dev = set(setup.splits[last.k].dev)
        per_class = {label: 0 for label in setup.task.labels}
        for one in self._pseudo(lab, h, last):
            per_class[setup.task.labels[one.column]] += 1
        teachers = [
            {
                "k": t.k,
                "rep": t.rep,
                "generation": t.generation,
                "dev_rows_trained_on": len(dev & self._seen(setup, t)),
                "dev_rows_selected_on": len(dev & set(self._rows(setup, t).dev)),
            }
            for t in self.teachers(setup, last)
        ]
        pool = setup.drawn_pool
        return {
            "pool": {"n": len(pool.rows), "sha256": pool.sha256, "notes": list(pool.notes)},
            "pseudo_per_class": per_class,
            "teachers": teachers,
        }

    def _seen(self, setup: Any, model: Model) -> set[int]:
        """Labelled rows that a model or, through pseudo-labels, its teachers and theirs trained on."""
        seen = set(self._rows(setup, model).train)
        for teacher in self.teachers(setup, model):
            seen |= self._seen(setup, teacher)
        return seen
