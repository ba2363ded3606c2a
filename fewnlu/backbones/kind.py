"""Whether a model fills masks or continues text, read off its config.json without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from fewnlu.errors import ConfigError, choices

Kind = Literal["masked", "causal"]
# In the config.json of a causal model that was taught to fill masks, see fewnlu.backbones.masked_next.
READING, MASKED_NEXT = "fewnlu_reading", "masked_next"
SOURCES = ("smollm2", "smollm2_mlm", "hub", "local")

# Asked only where `architectures` does not tell (DeBERTa's hub configs have none; a headless BertModel has
# the wrong one).
_MASKED = """
    albert bert big_bird camembert data2vec-text deberta deberta-v2 distilbert electra ernie esm
    eurobert flaubert ibert layoutlm longformer luke megatron-bert mobilebert modernbert mpnet mra nezha
    nystromformer rembert roberta roberta-prelayernorm roc_bert roformer squeezebert xlm-roberta
    xlm-roberta-xl xmod
"""
_CAUSAL = """
    bloom cohere cohere2 falcon gemma gemma2 gemma3_text gpt2 gpt_bigcode gpt_neo gpt_neox
    gpt_neox_japanese gptj granite helium llama mistral modernbert-decoder mpt olmo olmo2 olmo3 opt
    persimmon phi phi3 qwen2 qwen3 smollm3 stablelm starcoder2 xglm
"""
_SMOLLM2_CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 30}


def model_kind(config: dict[str, Any]) -> Kind:
    """Tell from a parsed config.json whether the model is a masked or a causal language model.

    Raises:
        ConfigError: neither `architectures` nor `model_type` tells; names `model_args.kind`.
    """
    if config.get(READING) == MASKED_NEXT:
        return "masked"
    for architecture in config.get("architectures") or ():
        if str(architecture).endswith("ForMaskedLM"):
            return "masked"
        if str(architecture).endswith(("ForCausalLM", "LMHeadModel")):
            return "causal"
    model_type = str(config.get("model_type"))
    if model_type in _MASKED.split():
        return "causal" if config.get("is_decoder") else "masked"
    if model_type in _CAUSAL.split():
        return "causal"
    raise ConfigError(
        f"the model's config.json has model_type={model_type!r} and "
        f"architectures={config.get('architectures')!r}, "
        "which does not tell whether it fills masks or continues text.\n"
        "Set model_args.kind=masked or model_args.kind=causal."
    )


def check_source(source: str, name: str | None, path: str | Path | None) -> None:
    """Check that `source` is known and comes with what it needs.

    Raises:
        ConfigError: unknown source, hub without a name, local without a path.
    """
    if source not in SOURCES:
        raise ConfigError(f"unknown model source {source!r}; {choices(source, SOURCES)}")
    if source == "hub" and not name:
        raise ConfigError("model=hub needs model_args.name=OWNER/MODEL, for example model_args.name=roberta-base")
    if source == "local" and not path:
        raise ConfigError("model=local needs model_args.path=FOLDER (config.json, tokenizer and *.safetensors)")


def hub_error(name: str, revision: str | None, what: str, error: Exception) -> ConfigError:
    """The message for anything that could not be had from the Hugging Face hub."""
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    at = f" (revision {revision})" if revision else ""
    return ConfigError(
        f"could not read {what} of model_args.name={name!r}{at} from the Hugging Face hub or its "
        f"cache: {reason}\n"
        "Check the name; offline (or with HF_HUB_OFFLINE=1) only what is in the cache under HF_HOME can be "
        "read.\n"
        "Or copy the model here and use model=local model_args.path=FOLDER."
    )


def read_config(
    source: str, name: str | None = None, path: str | Path | None = None, revision: str | None = None
) -> dict[str, Any]:
    """Read a model's config.json without torch and without its weights.

    Args:
        source: 'smollm2' or 'smollm2_mlm' (the embedded models), 'hub' or 'local'.
        name: the hub's OWNER/MODEL, for 'hub'.
        path: the model's folder, for 'local'.
        revision: branch, tag or commit on the hub.

    Raises:
        ConfigError: the file is missing, is no JSON, can't be had offline, or asks for code that comes with the model.
    """
    check_source(source, name, path)
    if source == "smollm2":
        return dict(_SMOLLM2_CONFIG)
    if source == "smollm2_mlm":
        return {**_SMOLLM2_CONFIG, READING: MASKED_NEXT}
    if source == "local":
        file = Path(str(path)).expanduser() / "config.json"
        if not file.is_file():
            raise ConfigError(
                f"model_args.path={str(path)!r}: no config.json in that folder.\n"
                "Expected a folder as save_pretrained writes it: config.json, tokenizer and *.safetensors."
            )
    else:
        from huggingface_hub import hf_hub_download

        try:
            file = Path(hf_hub_download(str(name), "config.json", revision=revision))
        except Exception as error:  # the hub raises HTTP, OS, validation and cache errors alike
            raise hub_error(str(name), revision, "config.json", error) from error
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read as JSON ({error})") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{file}: expected a JSON object, found {type(config).__name__}")
    _refuse_code(file, config)
    return config


def _refuse_code(file: Path, config: dict[str, Any]) -> None:
    """A model whose classes come with its weights is none that can be read: nothing that is fetched is ever run."""
    if not config.get("auto_map"):
        return
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    if config.get("model_type") not in CONFIG_MAPPING_NAMES:
        raise ConfigError(
            f"{file}: model_type={config.get('model_type')!r} is code that comes with the weights (auto_map), and "
            "fewnlu never runs such code.\nUse a model whose type transformers has itself."
        )
