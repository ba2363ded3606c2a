"""From a model's name to a `Backbone`: one copy a process, no random head, no pickles, no remote code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from fewnlu.backbones.adapter import add_lora
from fewnlu.backbones.backbone import Backbone
from fewnlu.backbones.enhanced_decoder import attach_positions
from fewnlu.backbones.kind import Kind, model_kind, read_config
from fewnlu.backbones.masked_next import reads_masks
from fewnlu.backbones.weights import fingerprint, model_folder, weight_files
from fewnlu.errors import ConfigError, choices

_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# At most one backbone: a second model's weights beside the first would double the memory of a sweep over
# models.
_LOADED: dict[tuple[str, str, str, str, int], Backbone] = {}


def load_backbone(
    source: str = "smollm2",
    name: str | None = None,
    path: str | Path | None = None,
    revision: str | None = None,
    freeze_layers: int = 0,
    dtype: str = "float32",
    kind: Kind | None = None,
    adapter_rank: int = 0,
) -> Backbone:
    """The model with its initial weights, `freeze_layers` bottom layers frozen, in eval mode.

    A second call for the same weights returns the same object with its weights restored; what an earlier
    caller trained is gone then. A call for other weights drops the copy that is kept.

    Args:
        source: 'smollm2', 'smollm2_mlm' (embedded, made on first use), 'hub' (`name`, `revision`), 'local' (`path`).
        dtype: 'float32', 'bfloat16' or 'float16'.
        kind: 'masked' or 'causal' where config.json does not tell.
        adapter_rank: of LoRA adapters, which alone are trained; 0: none.

    Raises:
        ConfigError: the files are missing, pickled or lack an LM head; names the key and the remedy.
    """
    if dtype not in _DTYPES:
        raise ConfigError(f"model_args.dtype={dtype!r}: {choices(dtype, _DTYPES)}")
    if kind not in (None, "masked", "causal"):
        raise ConfigError(f"model_args.kind={kind!r}: {choices(kind, ('masked', 'causal'))}")
    config = read_config(source, name, path, revision)
    found: Kind = kind or model_kind(config)
    folder = model_folder(source, name, path, revision)
    sha = fingerprint(source, name, path, revision)
    key = (sha, str(folder), found, dtype, adapter_rank)
    if key not in _LOADED:
        _LOADED.clear()
        _LOADED[key] = _load(folder, found, _DTYPES[dtype], sha, adapter_rank)
    backbone = _LOADED[key]
    if backbone.frozen != freeze_layers:
        backbone.freeze(freeze_layers)
    elif backbone.has_trained:
        backbone.restore()
    backbone.eval()
    return backbone


def forget() -> None:
    """Drop the copy that is kept (tests, and a process that goes on without a model)."""
    _LOADED.clear()


def load_tokenizer(folder: Path, kind: Kind) -> Any:
    """The tokenizer of a model folder, padding on the right, with a pad token.

    A causal tokenizer without one borrows its end-of-text token: attention masks are explicit, so pads are
    never read, and the vocabulary stays as it is.
    """
    from transformers import AutoTokenizer

    # transformers answers a folder without these with an empty tokenizer, and every text becomes nothing.
    if not any(file for pattern in _TOKENIZER_FILES for file in folder.glob(pattern)):
        raise ConfigError(
            f"{folder}: no tokenizer, found none of {', '.join(_TOKENIZER_FILES)}.\n"
            "Save it beside the weights: tokenizer.save_pretrained(FOLDER)."
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder}: no tokenizer could be read ({_first_line(error)})") from error
    lacks = [name for name in ("pad_token", "mask_token") if getattr(tokenizer, name) is None]
    if kind == "masked" and lacks:
        raise ConfigError(
            f"{folder}: the tokenizer of this masked model has no {' and no '.join(lacks)}; name it in "
            "tokenizer_config.json"
        )
    if "pad_token" in lacks:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token or tokenizer.convert_ids_to_tokens(0)
    tokenizer.padding_side = "right"
    return tokenizer


def _load(folder: Path, kind: Kind, dtype: torch.dtype, sha: str, rank: int) -> Backbone:
    from safetensors import SafetensorError
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

    files = weight_files(folder)
    tokenizer = load_tokenizer(folder, kind)
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        if config.model_type in ("deberta", "deberta-v2"):
            # transformers' default drops the head of Microsoft's files and makes a random one (fault I092).
            config.legacy = not any(name.startswith("lm_predictions.") for name in _names(files))
        auto = AutoModelForMaskedLM if kind == "masked" and not reads_masks(config) else AutoModelForCausalLM
        with quiet():
            loaded: Any = auto.from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
            model, info = loaded
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ConfigError(f"{folder}: cannot be read as a {kind} language model: {_first_line(error)}") from error
    _refuse_random(folder, model, sorted(info["missing_keys"]))
    attach_positions(model, files)
    rows, highest = model.get_input_embeddings().weight.shape[0], max(tokenizer.all_special_ids)
    if highest >= rows:
        raise ConfigError(
            f"{folder}: the tokenizer's special token {tokenizer.convert_ids_to_tokens(highest)!r} has id "
            f"{highest}, but the model has {rows} words; the tokenizer is of another model."
        )
    if rank:
        add_lora(model, rank)
    return Backbone(model, tokenizer, kind, sha)


def _refuse_random(folder: Path, model: Any, missing: list[str]) -> None:
    """Weights that are not in the file would be random: never train or score with them (fault I092)."""
    if not missing:
        return
    head = [key for key in missing if not key.startswith(f"{model.base_model_prefix}.")]
    listed = ", ".join((head or missing)[:8]) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
    what = "its LM head would be random" if head else "parts of it would be random"
    raise ConfigError(
        f"{folder}: the checkpoint does not have all weights of {type(model).__name__}, so {what}.\n"
        f"Missing: {listed}\n"
        "Prompting with it would be at chance. Use a checkpoint with its language-model head, not one "
        "fine-tuned for classification\nor sentence vectors, no ELECTRA discriminator, no DeBERTa-v3 as "
        "on the hub."
    )


def _names(files: list[Path]) -> list[str]:
    from safetensors import safe_open

    names: list[str] = []
    for file in files:
        with safe_open(str(file), framework="pt") as tensors:
            names.extend(tensors.keys())
    return names


class quiet:
    """No progress bars and load reports of transformers meanwhile: what matters is checked and said by us."""

    def __enter__(self) -> None:
        from transformers.utils import logging

        self.bars, self.level = logging.is_progress_bar_enabled(), logging.get_verbosity()
        logging.disable_progress_bar()
        logging.set_verbosity_error()

    def __exit__(self, *exc: object) -> None:
        from transformers.utils import logging

        logging.set_verbosity(self.level)
        if self.bars:
            logging.enable_progress_bar()


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
