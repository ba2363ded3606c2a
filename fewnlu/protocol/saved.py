"""A trained classifier as a folder: weights, tokenizer, what the method added, a config and a card; nothing pickled.

``config.json``, ``model.safetensors`` and the tokenizer are a model of transformers by themselves;
``method.safetensors`` holds a classifier's head or a prompt encoder; ``fewnlu.json`` says how rows are put and answers
read; ``README.md`` what the model was trained on and how well it did.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fewnlu.backbones.adapter import merged_state
from fewnlu.backbones.loading import quiet
from fewnlu.errors import ConfigError, DataError
from fewnlu.protocol.atomic import write_atomic
from fewnlu.tasks.task import Row, Task, task_from_config

SCHEMA = 1
CONFIG, EXTRA = "fewnlu.json", "method.safetensors"


def save_model(folder: Path, method: Any, setup: Any, h: dict[str, Any], facts: dict[str, Any]) -> None:
    """Write a trained method.

    Args:
        folder: created; files in it are replaced.
        method: with the weights to save.
        setup: its trial.
        facts: what the card and the config say beside (study, steps, scores, versions).
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    backbone, cfg = method.backbone, setup.cfg
    state = merged_state(backbone.model) if backbone.adapter else None
    with quiet():
        backbone.model.save_pretrained(folder, state_dict=state, safe_serialization=True)
    backbone.tokenizer.save_pretrained(folder)
    own = {n: p.detach().cpu().contiguous() for n, p in method.named_parameters() if not n.startswith("backbone.")}
    save_file(own, folder / EXTRA)
    config = {
        "schema": SCHEMA,
        "task": cfg["task"],
        "method": cfg["method"],
        "h": h,
        "reading": cfg.get("reading") or {},
        "wsc": cfg.get("wsc") or {},
        "labels": list(setup.task.labels),
        "kind": backbone.kind,
        "precision": method.precision,
        "span_masks": getattr(method.reader, "longest", None),
        **facts,
    }
    write_atomic(folder / CONFIG, (json.dumps(config, indent=1, ensure_ascii=False) + "\n").encode())
    write_atomic(folder / "README.md", _card(config).encode())


def _card(config: dict[str, Any]) -> str:
    task, h = config["task"], ", ".join(f"{k} = {v}" for k, v in config["h"].items())
    lines = [
        f"# {task['name']}: {config['method']['name']} on {config['base']['name']}",
        "",
        f"A few-shot classifier with the labels {', '.join(config['labels']) or '(each row brings its own)'}.",
        "",
        f"- trained on {config['trained_on']['n']} labelled rows ({config['trained_on']['origin']}), "
        f"{config['steps']} of {config['h']['max_steps']} updates",
        f"- hyper-parameters, chosen on dev scores alone: {h}",
        f"- base model: {config['base']['name']}, weights {config['base']['sha256'][:16]}, whose licence goes on",
        f"- study: {config['study_name']}",
    ]
    if task.get("licence"):
        lines.append(f"- terms of the rows: {task['licence']}")
    if config.get("test"):
        for name, one in config["test"]["metrics"].items():
            spread = "" if one["std"] is None else f" ± {one['std']:.4f} (standard deviation)"
            lines.append(
                f"- test {name}: {one['mean']:.4f}{spread} over {len(one['values'])} seeds; this is the model of the "
                f"first, {one['values'][0]:.4f} (it was not picked by its score)"
            )
    lines += ["", "    python -m fewnlu.predict FOLDER rows.csv", ""]
    lines += [f"Rows need the columns {', '.join(sorted(set(task['fields'].values())))}.", ""]
    return "\n".join(lines)


def read_saved(folder: Path) -> dict[str, Any]:
    """The config of a saved model; no torch needed.

    Raises:
        ConfigError: no such folder, or one of another version.
    """
    try:
        config: dict[str, Any] = json.loads((folder / CONFIG).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"{folder}: no {CONFIG}; expected a folder that python -m fewnlu.final wrote") from None
    except ValueError:
        raise ConfigError(f"{folder / CONFIG}: no JSON") from None
    if not isinstance(config, dict) or config.get("schema") != SCHEMA:
        found = config.get("schema") if isinstance(config, dict) else None
        raise ConfigError(f"{folder / CONFIG}: schema {found!r}, this version reads {SCHEMA}")
    return config


@dataclass
class Labelled:
    """A row's answer: `scores` are probabilities by label (or candidate)."""

    row: Row
    label: str
    scores: dict[str, float]


class Predictor:
    """A saved model, ready to label rows.

    Raises:
        ConfigError: no such folder, or one of another version.
    """

    def __init__(self, folder: Path) -> None:
        from safetensors.torch import load_file

        from fewnlu.backbones.loading import load_backbone
        from fewnlu.methods.method import Context, method_class
        from fewnlu.prompts.readers import Reading, reader_for

        config = read_saved(folder)
        self.task: Task = task_from_config(config["task"])
        h, method = config["h"], config["method"]
        backbone = load_backbone("local", path=folder, kind=config["kind"])
        reading = Reading(**config["reading"], **config["wsc"])
        if method["input"] == "cls":
            pattern = self.task.cls
        else:
            pattern = (self.task.ptuning if method.get("templates") == "ptuning" else self.task.patterns)[h["pattern"]]
        assert pattern is not None
        if config["span_masks"]:
            # The number of masks comes from the labelled rows, which are not part of a model.
            reader: Any = reader_for(
                backbone.tokenizer, backbone.kind, pattern, self.task, Reading(**config["reading"], masks="paper")
            )
            reader.reading, reader.longest = reading, config["span_masks"]
        else:
            reader = reader_for(backbone.tokenizer, backbone.kind, pattern, self.task, reading)
        options = {n: v for n, v in method.items() if n not in {"name", "reads"}}
        self.method = method_class(method["name"])(Context(backbone, self.task, h, options, reader))
        self.method.precision = config.get("precision")
        own = dict(self.method.named_parameters())
        with torch.no_grad():
            for name, value in load_file(folder / EXTRA).items():
                own[name].copy_(value)
        self.method.eval()
        self.reader, self.pad = reader, backbone.tokenizer.pad_token_id

    def label(self, rows: Iterable[Row], batch: int = 32, at_once: int = 256) -> Iterator[Labelled]:
        """Labels for a stream of rows, in its order; holds `at_once` of them in memory.

        Where the stream breaks off with an error, the rows before it are labelled first.
        """
        chunk: list[Row] = []
        try:
            for row in rows:
                chunk.append(row)
                if len(chunk) == at_once:
                    yield from self._chunk(chunk, batch)
                    chunk = []
        except DataError:
            yield from self._chunk(chunk, batch)
            raise
        yield from self._chunk(chunk, batch)

    def _chunk(self, rows: Sequence[Row], batch: int) -> Iterator[Labelled]:
        if not rows:
            return
        from fewnlu.methods.fit import score_rows
        from fewnlu.prompts.encoding import forget
        from fewnlu.splits.datamodule import Table

        table = Table(self.reader.encode(rows), [-1] * len(rows), self.pad, reader=self.reader, trains=False)
        forget()
        for row, scores in zip(rows, score_rows(self.method, table, range(len(rows)), batch), strict=True):
            names = self.task.column_names(row)
            values = np.exp(scores[: len(names)] - scores[: len(names)].max())
            shares = values / values.sum()
            yield Labelled(row, names[int(scores.argmax())], dict(zip(names, shares.tolist(), strict=True)))
