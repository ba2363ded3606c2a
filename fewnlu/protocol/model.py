"""What the config says about the pretrained model: where it is, its name, kind and hash. No torch here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fewnlu.errors import ConfigError


def where(cfg: dict[str, Any]) -> tuple[str, str | None, str | None, str | None]:
    """(source, hub id, path, revision), as the backbones room takes them.

    Raises:
        ConfigError: the key that this source needs is missing, or one is given that it does not read.
    """
    args, model = cfg["model_args"], cfg["model"]
    source = model["source"]
    name = args["name"] or model.get("id")
    for needs, key, value in (("hub", "name", name), ("local", "path", args["path"])):
        if source == needs and not value:
            raise ConfigError(f"model={model['name']} needs model_args.{key}=…")
        if source != needs and args[key]:
            raise ConfigError(
                f"model_args.{key}={args[key]!r} is read by model={needs} only; this is model={model['name']}"
            )
    return source, name if source == "hub" else None, args["path"], args["revision"] or model.get("revision")


def model_name(cfg: dict[str, Any]) -> str:
    """The name a model goes by in folders and tables."""
    source, name, path, _ = where(cfg)
    if source == "hub":
        return str(name).rsplit("/", 1)[-1]
    return Path(str(path)).name if source == "local" else str(cfg["model"]["name"])


def kind_of(cfg: dict[str, Any]) -> str:
    """``masked`` or ``causal``: as configured, else read from the model's config.json."""
    kind = cfg["model_args"].get("kind") or cfg["model"].get("kind")
    if kind:
        return str(kind)
    from fewnlu.backbones.kind import model_kind, read_config

    return model_kind(read_config(*where(cfg)))


def frozen_layers(cfg: dict[str, Any]) -> int:
    """Bottom layers that are frozen: `model_args.freeze_layers`, else the model's own default."""
    own = cfg["model_args"]["freeze_layers"]
    return int(cfg["model"].get("freeze_layers") or 0) if own is None else int(own)


def adapter_rank(cfg: dict[str, Any]) -> int:
    """Rank of the LoRA adapters; 0 where there are none."""
    args = cfg["model_args"]
    return int(args["adapter_rank"]) if args.get("adapter", "none") == "lora" else 0


def weights_sha(cfg: dict[str, Any]) -> str:
    """Hash of the model's weights, part of the study key."""
    from fewnlu.backbones.weights import fingerprint

    return fingerprint(*where(cfg))
