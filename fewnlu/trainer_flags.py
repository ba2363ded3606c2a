"""The flags of Lightning's Trainer that `trainer.*` takes; no import of Lightning, which takes seconds."""

from __future__ import annotations

from typing import Any

from fewnlu.errors import ConfigError, choices

# Arguments of pytorch_lightning.Trainer (a test compares them with its signature; importing it takes seconds).
TRAINER_FLAGS = frozenset(
    [
        "accelerator",
        "strategy",
        "devices",
        "num_nodes",
        "precision",
        "logger",
        "callbacks",
        "fast_dev_run",
        "max_epochs",
        "min_epochs",
        "max_steps",
        "min_steps",
        "max_time",
        "limit_train_batches",
        "limit_val_batches",
        "limit_test_batches",
        "limit_predict_batches",
        "overfit_batches",
        "val_check_interval",
        "check_val_every_n_epoch",
        "num_sanity_val_steps",
        "log_every_n_steps",
        "enable_checkpointing",
        "enable_progress_bar",
        "enable_model_summary",
        "accumulate_grad_batches",
        "gradient_clip_val",
        "gradient_clip_algorithm",
        "deterministic",
        "benchmark",
        "inference_mode",
        "use_distributed_sampler",
        "profiler",
        "detect_anomaly",
        "barebones",
        "plugins",
        "sync_batchnorm",
        "reload_dataloaders_every_n_epochs",
        "default_root_dir",
        "enable_autolog_hparams",
        "model_registry",
    ]
)
ACCELERATORS = ("auto", "cpu", "gpu", "cuda", "mps", "tpu")
PRECISIONS: tuple[str, ...] = ("32-true", "32", "16-mixed", "bf16-mixed", "16", "bf16")
# One device needs none; several get DDP, which gives what one device gives. Strategies that cut a model up don't.
STRATEGIES = ("auto", "ddp", "ddp_spawn")
# Flags that the protocol itself sets; a user's value would silently break it.
RESERVED_FLAGS = {
    "max_steps": "hp.max_steps",
    "max_epochs": "hp.max_steps",
    "min_steps": "hp.max_steps",
    "min_epochs": "hp.max_steps",
    "accumulate_grad_batches": "runtime.micro_batch",
    "logger": "logger=csv|wandb|none",
    "callbacks": "a plugin",
    "val_check_interval": "hp.eval_ratio",
    "check_val_every_n_epoch": "hp.eval_ratio",
    "limit_val_batches": "hp.eval_ratio",
    "limit_train_batches": "hp.max_steps",
    "enable_checkpointing": "",
    "num_sanity_val_steps": "",
    "fast_dev_run": "hp.max_steps",
    "overfit_batches": "data.n_labeled",
    "limit_test_batches": "data.limit_test",
    "limit_predict_batches": "data.limit_test",
    "max_time": "hp.max_steps",
    "default_root_dir": "sweep",
}
# Flags that say where and how a training runs, not what it computes (beyond float noise): no part of a study's key.
HOW_FLAGS = frozenset(
    [
        "accelerator",
        "devices",
        "num_nodes",
        "strategy",
        "log_every_n_steps",
        "enable_progress_bar",
        "enable_model_summary",
        "profiler",
        "detect_anomaly",
        "barebones",
        "use_distributed_sampler",
    ]
)


def reserved(flag: str) -> str:
    """Why a flag of `RESERVED_FLAGS` is refused, and what to use."""
    instead = RESERVED_FLAGS[flag]
    return f"the protocol sets this flag itself; {f'use {instead}' if instead else 'leave it out'}"


def check_trainer(flags: dict[str, Any], shown: str = "") -> None:
    """Refuse flags that Lightning's Trainer lacks, that the protocol sets itself, or with a value that it would refuse.

    Raises:
        ConfigError: names the flag, its value and what to use.
    """
    for key in flags:
        if key not in TRAINER_FLAGS:
            raise ConfigError(
                f"unknown key 'trainer.{key}': {choices(key, sorted(TRAINER_FLAGS - set(RESERVED_FLAGS)))}"
                f" (flags of lightning's Trainer).{shown}"
            )
        if key in RESERVED_FLAGS:
            raise ConfigError(f"trainer.{key}={flags[key]!r}: {reserved(key)}.{shown}")
    precision = str(flags.get("precision"))
    if precision.endswith("-true") and precision not in PRECISIONS:  # Lightning would convert a model that is kept
        raise ConfigError(
            f"trainer.precision={precision}: the precision of the weights is model_args.dtype (float32, bfloat16, "
            f"float16); trainer.precision is one of {', '.join(PRECISIONS)}.{shown}"
        )
    for key, known in (("accelerator", ACCELERATORS), ("precision", PRECISIONS)):
        if flags.get(key) is not None and str(flags[key]) not in known:
            raise ConfigError(f"trainer.{key}={flags[key]}: {choices(str(flags[key]), known)}.{shown}")
    if flags.get("strategy") not in (None, *STRATEGIES):
        raise ConfigError(
            f"trainer.strategy={flags['strategy']}: a model is trained whole on each of trainer.devices (choices: "
            f"{', '.join(STRATEGIES)}); where it does not fit, use runtime.checkpointing=true, "
            f"model_args.freeze_layers or model_args.adapter=lora.{shown}"
        )
