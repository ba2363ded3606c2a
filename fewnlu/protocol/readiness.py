"""What only a model's own files tell, asked before anything is written: layers, the words of verbalizers, the cache.

A word that the tokenizer splits, or more frozen layers than there are, would otherwise cost every run of a sweep its
result. Runs that are recorded already need no model, so a command with nothing left to do asks nothing here. The
config.json comes first; transformers (and with it torch) is imported only where tokenizer files are at hand.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fewnlu.backbones import smollm2, smollm2_mlm
from fewnlu.backbones.kind import read_config
from fewnlu.errors import ConfigError
from fewnlu.protocol import devices
from fewnlu.protocol.model import adapter_rank, frozen_layers, kind_of, where
from fewnlu.protocol.setup import Setup

_MADE = {"smollm2": smollm2.is_made, "smollm2_mlm": smollm2_mlm.is_made}
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
# Models with a learned embedding per position: how many tokens they read, in terms of their config.
_POSITIONS = {
    **dict.fromkeys(("bert", "albert", "electra", "distilbert", "opt"), ("max_position_embeddings", 0)),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), ("max_position_embeddings", 2)),  # two of no token
    "gpt2": ("n_positions", 0),
}
_DEVICE_FILES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")  # NVIDIA, its driver under WSL, AMD


def check_ready(setups: Iterable[Setup], *, here: bool = True, one_gpu: bool = False) -> None:
    """Refuse what the model's files show to be impossible.

    Args:
        setups: all trials of a command, each with its `hs`.
        here: whether the trials run on this machine (not on a cluster's nodes).
        one_gpu: whether a job sees only one of the machine's GPUs, as where jobs run beside one another here.

    Raises:
        ConfigError: frozen layers that the model lacks, words that its tokenizer cannot read, a cache that cannot be
            written, a device that is not there.
    """
    tokenizers: dict[tuple[Any, ...], Any] = {}
    seen: set[tuple[Any, ...]] = set()
    setups = list(setups)
    for setup in setups:
        if here:
            _check_device(setup.cfg["trainer"], one_gpu)
        _check_layers(setup.cfg)
        asked = setup.cfg["method"]["input"] == "question"
        if not asked:  # prompts have a check of their own
            _check_length(setup.cfg, setup.task.max_length)
        if adapter_rank(setup.cfg) and find_spec("peft") is None:
            raise ConfigError("model_args.adapter=lora needs the package peft: pip install 'fewnlu[lora]'")
        if asked and setup.cfg["decode"]["name"] == "outlines" and find_spec("outlines") is None:
            raise ConfigError(
                "decode=outlines needs the package outlines: pip install 'fewnlu[dutch]', or take decode=tree"
            )
        if where(setup.cfg)[0] in _MADE:
            smollm2.check_available()
    for setup in setups:
        if setup.cfg["method"]["input"] == "question":
            continue
        place = where(setup.cfg)
        if place not in tokenizers:
            tokenizers[place] = _tokenizer(place, kind_of(setup.cfg))
        if tokenizers[place] is None:
            continue
        for h in setup.hs:
            pattern = setup.pattern(h)
            key = (place, repr(pattern), repr(setup.reading), setup.data.labeled.sha256)
            if key not in seen:
                seen.add(key)
                _check_words(tokenizers[place], setup, pattern)


def _check_words(tokenizer: Any, setup: Setup, pattern: Any) -> None:
    from fewnlu.prompts.readers import reader_for

    reader_for(tokenizer, kind_of(setup.cfg), pattern, setup.task, setup.reading, setup.rows)


def _tokenizer(place: tuple[str, str | None, str | None, str | None], kind: str) -> Any:
    """The model's tokenizer; None where an embedded model is still to be fetched, which the first run does."""
    from fewnlu.backbones.weights import model_folder

    if place[0] in _MADE and not _MADE[place[0]]():
        return None
    folder: Path = model_folder(*place)
    from fewnlu.backbones.loading import load_tokenizer

    return load_tokenizer(folder, "masked" if kind == "masked" else "causal")


def _check_layers(cfg: dict[str, Any]) -> None:
    n, config = frozen_layers(cfg), read_config(*where(cfg))
    layers = next((config[name] for name in _LAYERS if isinstance(config.get(name), int)), None)
    if layers is not None and n > layers:
        raise ConfigError(f"model_args.freeze_layers={n}: this model has {layers} layers; choose 0 to {layers}.")


def _check_length(cfg: dict[str, Any], max_length: int) -> None:
    config = read_config(*where(cfg))
    name, unused = _POSITIONS.get(str(config.get("model_type")), ("", 0))
    most = config.get(name)
    if isinstance(most, int) and max_length > most - unused:
        raise ConfigError(
            f"task.max_length={max_length}: this model reads at most {most - unused} tokens; set "
            f"task.max_length={most - unused}"
        )


def _check_device(flags: dict[str, Any], one_gpu: bool) -> None:
    wanted = flags.get("accelerator", "auto")
    gpus, n = devices.visible(), devices.count(flags)
    if gpus and wanted != "cpu" and n > (1 if one_gpu else len(gpus)):
        what = "this launcher gives each job one GPU" if one_gpu else f"this machine has {len(gpus)} for this command"
        instead = "leave the launcher out, so that jobs take turns" if one_gpu else f"use at most {len(gpus)}"
        raise ConfigError(f"trainer.devices={flags['devices']}: {what}; {instead}, or trainer.accelerator=cpu")
    there = bool(gpus) or any(Path(name).exists() for name in _DEVICE_FILES)
    if (wanted in ("gpu", "cuda") and not there) or (wanted == "mps" and sys.platform != "darwin"):
        raise ConfigError(f"trainer.accelerator={wanted}: this machine has none; use cpu, or auto for what there is")
    if wanted == "tpu" and find_spec("torch_xla") is None:
        raise ConfigError("trainer.accelerator=tpu needs the package torch_xla, which is not installed; use cpu or gpu")
