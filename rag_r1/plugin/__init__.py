"""The veRL plugin: registers RAG-R1's parts in every process of a run.

veRL loads this module through the entry point group ``verl.plugins`` at the end of ``import verl``, in every
process of a run (driver, trainer, agent-loop and reward workers, training workers, vLLM's engine). Nothing
else is needed for the integration, neither a recipe key nor an environment variable. The imports below
register:

- the platform "cpu" and, if it is the platform in use, the FSDP engines for it;
- on NVIDIA GPUs without flash-attn, a critic that can do without (value_model.py);
- the agent loop "search_agent" (``rollout.agent.default_agent_loop``, or ``agent_name`` of a row);
- the reward manager "search" (``reward.reward_manager.name``);
- the policy loss "llds" (``actor_rollout_ref.actor.policy_loss.loss_mode``);
- the advantage estimator "turn_loo" (``algorithm.adv_estimator``).

The trainers "search_..." and "sessions_..." (recording_trainer.py, session_trainer.py) are not among them:
they import veRL's trainer, which not every program that imports veRL needs. The recipes have them loaded
(rag_r1/session_trainers.py).

They import parts of veRL during ``import verl``. That is safe, because veRL has defined all its names by
then, and costs little: trainer, agent-loop and training workers import the same parts anyway, the other
processes start one to two seconds later.

veRL skips a plugin that fails, with a message at debug level only; the run would then end later with "agent
loop search_agent not registered". So every part is loaded separately, its failure is kept in `FAILURES` and
logged as a warning, and `rag-r1 doctor` shows the whole traceback.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
import traceback
import warnings

logger = logging.getLogger(__name__)

FAILURES: dict[str, str] = {}
"""Part -> traceback of the exception that its registration raised in this process; empty if none did."""


def _load(part: str, module: str) -> None:
    """Imports a module that registers a part; if it fails, `FAILURES` gets the traceback."""
    try:
        with warnings.catch_warnings():
            # In every process veRL warns about each engine family that is not installed.
            warnings.filterwarnings("ignore", message=".*engine is not available", category=UserWarning)
            importlib.import_module(module)
    except Exception as error:  # a plugin must never stop `import verl`
        FAILURES[part] = traceback.format_exc()
        logger.warning("RAG-R1 could not register its %s: %r (see `rag-r1 doctor`)", part, error)


def _register() -> None:
    """Registers all parts that this process can use; the platform first, on which the others depend."""
    from rag_r1.plugin.cpu import distribution

    distribution.install()
    _load("platform cpu", "rag_r1.plugin.cpu.platform")

    from verl.plugin.platform import get_platform

    platform = get_platform()
    if platform.device_name == "cpu":
        _load("CPU engines", "rag_r1.plugin.cpu.engines")
    elif platform.vendor_name == "nvidia" and importlib.util.find_spec("flash_attn") is None:
        _load("critic without flash-attn", "rag_r1.plugin.value_model")
    _load("agent loop", "rag_r1.plugin.agent_loop")
    _load("reward manager", "rag_r1.plugin.reward_manager")
    _load("policy loss", "rag_r1.plugin.algorithms.llds")
    _load("advantage estimator", "rag_r1.plugin.algorithms.turn_loo")
    if "rag_r1.session_trainers" in sys.modules:
        _load("trainers", "rag_r1.plugin.session_trainer")


_register()
