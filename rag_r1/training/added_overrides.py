"""The overrides that `rag-r1 train` adds to those of the user.

They name the module with our trainers and the folder of the composed configuration, and on a CPU the threads
of vLLM. Ray gives each of its workers one (its function `set_omp_num_threads_if_unset`), which what a worker
starts inherits. For the demo's policy one is best; a model of 135 million parameters would be computed on one
core of all. The trainer sets its own number (rag_r1/plugin/cpu/engines.py).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rag_r1.options.command_line import hydra_quoted
from rag_r1.system.cores import cpu_threads
from rag_r1.training.metrics_files import RAY_VARIABLES

#: veRL's key for modules that its processes import at start, and ours.
SESSION_TRAINERS = f"{RAY_VARIABLES}.VERL_USE_EXTERNAL_MODULES=rag_r1.session_trainers"
_THREADS = "OMP_NUM_THREADS"


def added_overrides(config: Any, overrides: Sequence[str]) -> list[str]:
    """All of them, for a composed configuration and the user's own overrides."""
    return [*trainer_overrides(config), *_thread_overrides(config), *config_overrides(config, overrides)]


def trainer_overrides(config: Any) -> list[str]:
    """Overrides that make veRL's processes load our trainers; none for veRL's own. The shipped recipes have
    these keys, a recipe that builds on veRL's alone may not."""
    if not str(config.trainer.v1.trainer_mode).startswith(("search_", "sessions_")):
        return []
    return [f"++{SESSION_TRAINERS}"]


def vllm_threads(config: Any) -> int:
    """Threads of vLLM on a CPU: as many as the user has set, or as are best for the model."""
    from omegaconf import OmegaConf

    chosen = (OmegaConf.select(config, RAY_VARIABLES) or {}).get(_THREADS) or os.environ.get(_THREADS)
    if chosen and str(chosen).isdigit():
        return int(chosen)
    return cpu_threads(Path(str(config.actor_rollout_ref.model.path)).expanduser())


def _thread_overrides(config: Any) -> list[str]:
    if config.trainer.get("device") != "cpu":
        return []
    return [f"++{RAY_VARIABLES}.{_THREADS}='{vllm_threads(config)}'"]


def config_overrides(config: Any, overrides: Sequence[str]) -> list[str]:
    """Overrides that make Hydra write the composed configuration into the run's folder, where `rag-r1 eval`
    reads it, unless the user names another place."""
    if any(override.lstrip("+").startswith("hydra.run.dir=") for override in overrides):
        return []
    folder = Path(config.trainer.default_local_dir).expanduser().absolute()
    return [f"hydra.run.dir={hydra_quoted(folder / 'hydra')}"]
