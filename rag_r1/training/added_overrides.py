"""The overrides that `rag-r1 train` adds to those of the user.

They name the module with our trainers and the folder for the composed configuration, and on a CPU they set
the number of vLLM's threads. Ray gives each of its workers one OpenMP thread (`set_omp_num_threads_if_unset`
in Ray), and vLLM, which a worker starts, would inherit that. One thread is best for the demo's tiny policy,
but a model of 135 million parameters would leave all other cores unused. The trainer sets its own number of
threads (rag_r1/plugin/cpu/engines.py).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rag_r1.options.arguments.overrides import hydra_quoted
from rag_r1.system.cores import cpu_threads
from rag_r1.training.metrics_files import RAY_VARIABLES

#: veRL's key for the modules that its processes import, and our module with the trainers.
_MODULES, _TRAINERS = f"{RAY_VARIABLES}.VERL_USE_EXTERNAL_MODULES", "rag_r1.session_trainers"
#: Makes veRL's processes import the module with our trainers when they start.
SESSION_TRAINERS = f"{_MODULES}={_TRAINERS}"
_THREADS = "OMP_NUM_THREADS"


def added_overrides(config: Any, overrides: Sequence[str]) -> list[str]:
    """Return all overrides to add to the user's `overrides`, with which `config` was composed."""
    return [*trainer_overrides(config), *_thread_overrides(config), *config_overrides(config, overrides)]


def trainer_overrides(config: Any) -> list[str]:
    """Return the override that makes veRL's processes load our trainers, beside other modules under its key;
    none if they are there already, or if a trainer of veRL is used. The shipped recipes set this key, but a
    recipe that builds only on veRL's configuration may lack it."""
    from omegaconf import OmegaConf

    modules = str(OmegaConf.select(config, _MODULES) or "")
    is_ours = str(config.trainer.v1.trainer_mode).startswith(("search_", "sessions_"))
    if not is_ours or _TRAINERS in modules.split(","):
        return []
    return [f"++{_MODULES}={hydra_quoted(f'{modules},{_TRAINERS}'.lstrip(','))}"]


def vllm_threads(config: Any) -> int:
    """Return the number of vLLM's threads on a CPU: the whole number above 0 that the user has set, or else
    the best one for the model."""
    from omegaconf import OmegaConf

    configured = (OmegaConf.select(config, RAY_VARIABLES) or {}).get(_THREADS) or os.environ.get(_THREADS)
    if str(configured).isdecimal() and int(configured) > 0:
        return int(configured)
    return cpu_threads(Path(str(config.actor_rollout_ref.model.path)).expanduser())


def _thread_overrides(config: Any) -> list[str]:
    """Return the override with the number of vLLM's threads; none unless the training is on a CPU."""
    if config.trainer.get("device") != "cpu":
        return []
    return [f"++{RAY_VARIABLES}.{_THREADS}='{vllm_threads(config)}'"]


def config_overrides(config: Any, overrides: Sequence[str]) -> list[str]:
    """Return the override that makes Hydra write the composed configuration into the run's folder, where
    `rag-r1 eval` reads it. There is none if the user names another folder."""
    if any(override.lstrip("+").startswith("hydra.run.dir=") for override in overrides):
        return []
    folder = Path(config.trainer.default_local_dir).expanduser().absolute()
    return [f"hydra.run.dir={hydra_quoted(folder / 'hydra')}"]
