"""Check a whole command before anything is written: each choice composed, each task's rows read, each split drawn."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fewnlu.config import conf_dir
from fewnlu.errors import ConfigError
from fewnlu.protocol import devices
from fewnlu.protocol.compose import CONFIG_NAME, Composed, compose, parse
from fewnlu.protocol.expected import Expected
from fewnlu.protocol.grid import expand, unread
from fewnlu.protocol.model import weights_sha
from fewnlu.protocol.readiness import check_ready
from fewnlu.protocol.setup import Setup, check_batch, read_setup
from fewnlu.tasks.audit import spoilers

OURS = "hydra_plugins.fewnlu_sweeper.FewnluSweeper"


def config_loader(config_dir: str | None = None) -> Any:
    """Hydra's config loader over conf/ and, before it, a user's own folder.

    Raises:
        ConfigError: `--config-dir` is no folder.
    """
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.utils import create_config_search_path
    from hydra.core.config_search_path import SearchPathQuery
    from hydra.core.utils import setup_globals

    setup_globals()
    path = create_config_search_path(str(conf_dir()))
    if config_dir is not None:
        folder = os.path.abspath(config_dir)
        if not os.path.isdir(folder):
            raise ConfigError(f"--config-dir {config_dir}: no such folder")
        path.prepend(provider="command-line", path=f"file://{folder}", anchor=SearchPathQuery(provider="schema"))
    return ConfigLoaderImpl(config_search_path=path)


def check_command(overrides: list[str], *, multirun: bool, config_dir: str | None = None) -> Expected:
    """Raise unless the command can be run.

    Args:
        overrides: of the command line.
        multirun: whether `-m` was given.

    Returns:
        what the command is to leave behind: studies and runs (no runs where another sweeper decides as it goes).

    Raises:
        ConfigError, DataError: the first thing found that cannot be run.
    """
    loader = config_loader(config_dir)
    expected = Expected(list(overrides))
    setups: list[Setup] = []
    if not multirun:
        for ov in parse(loader, overrides):
            if ov.is_sweep_override():
                raise ConfigError(f"{ov.input_line}: several values need a sweep; add -m")
        composed = compose(loader, overrides)
        setups.append(_add(expected, composed))
        _ready(expected, setups, composed)
        _say([*ignored(composed, multirun=False), *remarks(setups)])
        return expected
    for ov in parse(loader, overrides):
        if ov.is_sweep_override() and ov.key_or_group in ONE_A_COMMAND:
            raise ConfigError(f"{ov.input_line}: {ONE_A_COMMAND[ov.key_or_group]}")
    master, params = sweep_params(loader, overrides)
    first = first_choice(loader, overrides, params)
    composed = compose(loader, first)
    check_launcher(composed)
    sweeper = composed.hydra.sweeper
    if sweeper.get("_target_") != OURS:
        choices = _check_foreign_sweeper(loader, overrides, first, composed, expected)
        check_folder(master, choices)
        setups = [_add(expected, one) for one in choices]
        expected.runs.clear()
        _ready(expected, setups, composed)
        _say(ignored(composed, multirun=True))
        return expected
    plan = expand(loader, overrides, params)
    check_folder(master, plan.composed)
    launcher = _launcher_of(master.hydra)
    for one, hs in zip(plan.composed, plan.hs, strict=True):
        if _launcher_of(one.hydra) != launcher:
            raise ConfigError(
                f"a launcher that only some of the swept choices set would be ignored ({_named(one.hydra)} in "
                f"'{' '.join(one.hydra.overrides.task)}'); choose it once, as in launcher=NAME"
            )
        setups.append(_add(expected, one, hs))
    _ready(expected, setups, composed)
    _say([*(note for one in plan.composed for note in ignored(one, multirun=True)), *remarks(setups)])
    return expected


def ignored(composed: Composed, *, multirun: bool) -> list[str]:
    """Choices on the command line that nothing reads, or that this machine does badly, one line each."""
    notes, given = [], [str(text).lstrip("+").split("=")[0] for text in composed.hydra.overrides.task]
    method = composed.cfg["method"]
    notes += unread(composed.cfg, [key.removeprefix("hp.") for key in given if key.startswith("hp.")])
    if method["input"] != "question" and any(key.split(".")[0] == "decode" for key in given):
        notes.append(f"method={method['name']} does not read decode: ignored")
    launcher = str(composed.hydra.launcher.get("_target_", ""))
    if not multirun and not launcher.endswith("BasicLauncher"):
        notes.append(f"launcher={_named(composed.hydra)} launches the jobs of a sweep (-m); this is one run: ignored")
    flags = composed.cfg["trainer"]
    if not launcher.endswith("SlurmLauncher") and devices.emulates_bfloat16(flags):
        notes.append(
            f"trainer.precision={flags['precision']}: this processor has no bfloat16 arithmetic, so torch emulates it, "
            "mostly several times slower than 32 bits; leave it out here"
        )
    return notes


def remarks(setups: Sequence[Setup]) -> list[str]:
    """What is odd about a command but can be run."""
    notes = []
    seen: set[tuple[str, str, str | None]] = set()
    for setup in setups:
        data = setup.data
        rows = (setup.task.name, data.labeled.sha256, data.test.sha256 if data.test else None)
        if setup.cfg["method"]["input"] != "question" and rows not in seen:
            seen.add(rows)  # the studies of a sweep mostly share their rows
            odd = [*data.labeled.notes, *spoilers(setup.task, data)]
            notes += [f"task={setup.task.name}: {text}" for text in odd]
        n = min(len(setup.splits[k].train) for k in setup.ks)
        size = max((h.get("batch_size") or 0) for h in setup.hs)
        if size > n > 0:
            notes.append(
                f"hp.batch_size={size} is more than the {n} train rows of split={setup.cfg['split']['name']}: "
                "rows repeat within an update"
            )
    return notes


def _say(notes: Sequence[str]) -> None:
    for note in dict.fromkeys(notes):
        print(note, file=sys.stderr)


def _ready(expected: Expected, setups: Sequence[Setup], composed: Composed) -> None:
    """Ask the model's files, where a model will be read at all."""
    if expected.runs and not expected.missing():
        return
    launcher = str(composed.hydra.launcher.get("_target_"))
    check_ready(
        setups,
        here=not launcher.endswith("SlurmLauncher"),
        one_gpu=launcher.endswith(("JoblibLauncher", "LocalLauncher")),
    )


# Keys that hold for a whole command, and why they can't be swept.
ONE_A_COMMAND = {
    "sweep": "a sweep has one folder; start one command per name",
    "launcher": "a command has one launcher",
    "hydra/launcher": "a command has one launcher",
    "hydra/sweeper": "a command has one sweeper",
    "trust": "trusted modules are the same for all jobs; write 'trust=[a,b]'",
}


def check_folder(master: Any, choices: Sequence[Composed]) -> None:
    """Refuse choices that put their records into other folders than the sweep's own, which the summary reads.

    Raises:
        ConfigError: names two of the folders.
    """
    own = _folder_of(master.hydra, master.get("sweep"))
    for one in choices:
        if (other := _folder_of(one.hydra, one.cfg["sweep"])) != own:
            raise ConfigError(
                f"'{' '.join(one.hydra.overrides.task)}' keeps its records in {other}, this sweep in {own}: a sweep "
                "has one folder; name it on the command line, as in sweep=NAME"
            )


def _folder_of(node: Any, sweep: Any) -> str:
    raw = str(OmegaConf.to_container(node.sweep, resolve=False)["dir"])  # type: ignore[index,call-overload]
    # The time differs from one composing to the next; the jobs get the sweep's.
    return raw.replace("${sweep}", str(sweep)) if "${now" in raw else str(node.sweep.dir)


def check_launcher(composed: Composed) -> None:
    """Refuse settings of a launcher that would be ignored, and a launcher whose package is not there."""
    target = str(composed.hydra.launcher.get("_target_"))
    own = composed.cfg.get("launcher") or {}
    if own and not own.get("wait", True) and not target.endswith("SlurmLauncher"):
        raise ConfigError("launcher.wait=false: only SLURM jobs go on by themselves; use launcher=slurm")
    gpus, flags = own.get("gpus"), composed.cfg["trainer"]
    if gpus and flags.get("accelerator") != "cpu" and (n := devices.count(flags)) > int(gpus):
        raise ConfigError(
            f"trainer.devices={flags['devices']}: a job gets launcher.gpus={gpus}; ask for launcher.gpus={n}"
        )
    if "submitit" in target:
        from importlib.util import find_spec

        if find_spec("submitit") is None:
            raise ConfigError("this launcher needs the package submitit: pip install 'fewnlu[slurm]'")
        if target.endswith("SlurmLauncher") and shutil.which("sbatch") is None:
            raise ConfigError("launcher=slurm: there is no sbatch on this machine; start the command on a login node")


def _check_foreign_sweeper(
    loader: Any, overrides: list[str], first: list[str], composed: Composed, expected: Expected
) -> list[Composed]:
    """How another sweeper combines its values is its own affair; each value must be one that can be run.

    Returns:
        a config with each value.
    """
    sweeper = composed.hydra.sweeper
    if "direction" in sweeper and str(sweeper.direction).split(".")[-1] != "maximize":
        raise ConfigError(
            f"hydra.sweeper.direction={sweeper.direction}: a job returns its dev mean, and more is better; use maximize"
        )
    if "direction" in sweeper and not any(split.dev for split in read_setup(composed.cfg).splits):
        raise ConfigError(
            f"split={composed.cfg['split']['name']}: it has no dev rows, and a sampled h is chosen by them"
        )
    expected.sampled = str(composed.hydra.runtime.choices["hydra/sweeper"])
    found = [composed]
    for i, ov in enumerate(parse(loader, overrides)):
        if ov.is_sweep_override() and ov.is_discrete_sweep():
            for text in ov.sweep_string_iterator():
                value = f"{ov.get_key_element()}={text}"
                found.append(compose(loader, [*first[:i], value, *first[i + 1 :]]))
    return found


def _add(expected: Expected, composed: Composed, hs: list[dict[str, Any]] | None = None) -> Setup:
    cfg = composed.cfg if hs is None else {**composed.cfg, "hp": {**composed.cfg["hp"], **hs[0]}}
    setup = read_setup(cfg)
    if note := setup.paradigm.cost(setup):
        print(note, file=sys.stderr)
    setup.hs = hs or setup.hs
    for batch in dict.fromkeys(h["batch_size"] for h in setup.hs if "batch_size" in h):
        check_batch(cfg, setup.task, batch)  # the first point's has been
    expected.add(setup, weights_sha(cfg), Path(str(composed.hydra.sweep.dir)).absolute())
    return setup


def _launcher_of(node: Any) -> Any:
    return OmegaConf.to_container(node.launcher, resolve=False)


def _named(node: Any) -> str:
    return str(node.runtime.choices.get("hydra/launcher"))


def _first_of(ov: Any) -> str:
    if not ov.is_discrete_sweep():
        return f"{ov.get_key_element()}={ov.value().start}"
    return f"{ov.get_key_element()}={next(iter(ov.sweep_string_iterator()))}"


def sweep_params(loader: Any, overrides: Sequence[str]) -> tuple[Any, dict[str, str]]:
    """The sweep's own config, as Hydra composes it, and its ``hydra.sweeper.params`` where the sweeper is ours.

    Raises:
        ConfigError: it can't be composed.
    """
    try:
        master = loader.load_configuration(CONFIG_NAME, list(overrides), RunMode.MULTIRUN)
    except (HydraException, OmegaConfBaseException, TypeError, ValueError):
        compose(loader, first_choice(loader, overrides, {}))  # says what is wrong in our words
        raise
    sweeper = master.hydra.sweeper
    own = sweeper.get("params") if sweeper.get("_target_") == OURS else None
    return master, {str(k): str(v) for k, v in (own or {}).items()}


def first_choice(loader: Any, overrides: Sequence[str], params: Mapping[str, str]) -> list[str]:
    """Overrides of the first config of a sweep: of each list its first value; the command line wins over `params`."""
    merged = {}
    for ov in parse(loader, [*(f"{k}={v}" for k, v in params.items()), *overrides]):
        merged[ov.get_key_element().lstrip("+")] = ov
    return [_first_of(ov) if ov.is_sweep_override() else ov.input_line for ov in merged.values()]


__all__ = ["CONFIG_NAME", "check_command", "config_loader", "first_choice", "sweep_params"]
