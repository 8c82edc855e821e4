"""The veRL plugin: registers RAG-R1's parts in every process of a run.

veRL loads this module through the entry point group ``verl.plugins`` at the end of ``import verl``, in every
process of a run (driver, trainer, agent-loop and reward workers, training workers, vLLM's engine). So no
recipe key and no environment variable is needed for these parts, which the imports below register:

- vLLM's CPU build under the name that veRL looks for (cpu/distribution.py);
- the platform "cpu" and, if it is in use, the FSDP engines for it and the attention "packed_sdpa";
- on NVIDIA GPUs without flash-attn, a critic that does not need it (value_model.py);
- the agent loop "search_agent" (``rollout.agent.default_agent_loop``, or ``agent_name`` of a row);
- the reward manager "search" (``reward.reward_manager.name``);
- the policy loss "llds" (``actor_rollout_ref.actor.policy_loss.loss_mode``);
- the advantage estimator "turn_loo" (``algorithm.adv_estimator``).

The trainers "search_..." and "sessions_..." (recording_trainer.py, session_trainer.py) are registered only if
veRL has been told to load rag_r1/session_trainers.py, as the recipes do, because they import veRL's trainer,
which not every program that imports veRL needs.

The imported modules import parts of veRL during ``import verl``. That is safe, because veRL has defined all
its names by then. It also costs little: the trainer, the agent-loop workers and the training workers import
the same parts anyway, and the other processes start one or two seconds later.

veRL skips a plugin that fails and only logs a message at debug level. The run would fail later with "agent
loop search_agent not registered". So every part is loaded separately: its failure is kept in `FAILURES` and
logged as a warning, and `rag-r1 doctor` shows the traceback.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
import traceback
import warnings

logger = logging.getLogger(__name__)

#: Part -> traceback of the exception that its registration raised in this process.
FAILURES: dict[str, str] = {}


def _load(part: str, module: str) -> None:
    """Import a module that registers a part. If the import fails, the traceback is added to `FAILURES`."""
    try:
        with warnings.catch_warnings():
            # veRL warns in every process about each engine family that is not installed.
            warnings.filterwarnings("ignore", message=".*engine is not available", category=UserWarning)
            importlib.import_module(module)
    except Exception as error:  # a plugin must never stop `import verl`
        FAILURES[part] = traceback.format_exc()
        logger.warning("RAG-R1 could not register its %s: %r (see `rag-r1 doctor`)", part, error)


def _register() -> None:
    """Register all parts that this process can use, the platform first, because others depend on it."""
    from rag_r1.plugin.cpu import distribution

    distribution.install()
    _load("platform cpu", "rag_r1.plugin.cpu.platform")

    from verl.plugin.platform import get_platform

    platform = get_platform()
    if platform.device_name == "cpu":
        _load("CPU engines", "rag_r1.plugin.cpu.engines")
        _load("packed attention", "rag_r1.plugin.cpu.packed_attention")
    elif platform.vendor_name == "nvidia" and importlib.util.find_spec("flash_attn") is None:
        _load("critic without flash-attn", "rag_r1.plugin.value_model")
    _load("agent loop", "rag_r1.plugin.agent_loop")
    _load("reward manager", "rag_r1.plugin.reward_manager")
    _load("policy loss", "rag_r1.plugin.algorithms.llds")
    _load("advantage estimator", "rag_r1.plugin.algorithms.turn_loo")
    if "rag_r1.session_trainers" in sys.modules:
        _load("trainers", "rag_r1.plugin.session_trainer")


_register()
