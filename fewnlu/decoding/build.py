"""From a config's `decode` section to a decoder; a new decoder is one entry here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fewnlu.decoding.decoder import Decoder
from fewnlu.errors import ConfigError, choices

NAMES = ("tree", "outlines", "likelihood")


def check_decode(cfg: Mapping[str, Any]) -> None:
    """Raise a ConfigError for values that no decoder takes; nothing is loaded."""
    from fewnlu.decoding.likelihood import NORMALISATIONS

    if cfg.get("name") not in NAMES:
        raise ConfigError(f"decode.name={cfg.get('name')!r}: {choices(cfg.get('name'), NAMES)}")
    temperature = cfg.get("temperature", 1.0)
    if isinstance(temperature, bool) or not isinstance(temperature, (int, float)) or not 0 < temperature < 1e6:
        raise ConfigError(f"decode.temperature={temperature!r}: expected a number above 0")
    budget = cfg.get("node_budget", 0)
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 0:
        raise ConfigError(f"decode.node_budget={budget!r}: expected a whole number, 0 or more")
    if cfg.get("normalise", "sum") not in NORMALISATIONS:
        raise ConfigError(f"decode.normalise={cfg['normalise']!r}: {choices(cfg['normalise'], NORMALISATIONS)}")


def build_decoder(cfg: Mapping[str, Any], backbone: Any) -> Decoder:
    """The decoder for a backbone.

    Raises:
        ConfigError: unknown values, a masked model, or outlines not installed.
    """
    check_decode(cfg)
    if cfg["name"] == "outlines":
        from fewnlu.decoding.outlines import OutlinesDecoder

        return OutlinesDecoder(backbone, float(cfg["temperature"]))
    from fewnlu.decoding.likelihood import LikelihoodDecoder
    from fewnlu.decoding.transformers import TransformersBackend
    from fewnlu.decoding.tree import TreeDecoder

    backend = TransformersBackend(backbone)
    if cfg["name"] == "tree":
        return TreeDecoder(backend, float(cfg["temperature"]), cfg["node_budget"])
    return LikelihoodDecoder(backend, cfg["normalise"], cfg["node_budget"])
