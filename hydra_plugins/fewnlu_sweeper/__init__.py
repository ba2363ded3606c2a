"""Hydra finds sweepers in this namespace package; the work is done in fewnlu.protocol."""

from dataclasses import dataclass
from typing import Any, Dict, Optional  # noqa: UP035  Hydra runs this file outside sys.modules: no deferred annotations

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore


@dataclass
class FewnluSweeperConf:
    """What `hydra.sweeper` may hold."""

    _target_: str = "hydra_plugins.fewnlu_sweeper.FewnluSweeper"
    max_batch_size: Optional[int] = None  # noqa: UP045
    params: Optional[Dict[str, str]] = None  # noqa: UP006, UP045


ConfigStore.instance().store(group="hydra/sweeper", name="fewnlu", node=FewnluSweeperConf, provider="fewnlu")


class FewnluSweeper(BasicSweeper):
    """Expands choices first, takes each choice's own grid H, and puts what shares a training in one job."""

    def sweep(self, arguments: list[str]) -> Any:
        from fewnlu.protocol.grid import expand
        from fewnlu.protocol.sweep import launch

        assert self.config is not None and self.launcher is not None and self.hydra_context is not None
        plan = expand(self.hydra_context.config_loader, arguments, dict(self.params or {}))
        return launch(plan, self.launcher, self.config, self.max_batch_size)
