"""Faults for benchmarks/guard.py, planted through veRL's own keys: an engine of the registry, an agent loop
by its configuration, terms of the reward.

Those of the engine act while the file `$GUARD_FAULT` exists, which the benchmark makes and removes. It holds
the fault's name: `learning_rate` (the optimizer's rate is 30 times what the schedule says, and what is
logged) or `engine` (the rollout engine gets the weights that it had).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from verl.workers.engine import EngineRegistry

from rag_r1.plugin.agent_loop import SearchAgentLoop
from rag_r1.plugin.cpu.engines import CPUEngineWithLMHead

TIMES = 30.0


def active_fault() -> str:
    """The name of the fault that acts now; empty for none."""
    path = Path(os.environ.get("GUARD_FAULT", ""))
    return path.read_text().strip() if path.is_file() else ""


@EngineRegistry.register(
    model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu", vendor="faulty"
)
class FaultyLMHead(CPUEngineWithLMHead):
    """The CPU's engine with a fault now and then."""

    _sent: list | None = None

    def optimizer_step(self) -> Any:
        """One step, with a learning rate many times as large while that fault is active."""
        factor = TIMES if active_fault() == "learning_rate" else 1.0
        rates = [group["lr"] for group in self.optimizer.param_groups]
        for group in self.optimizer.param_groups:
            group["lr"] *= factor
        try:
            return super().optimizer_step()
        finally:
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate

    def get_per_tensor_param(self, *args: Any, **kwargs: Any) -> Any:
        weights, about = super().get_per_tensor_param(*args, **kwargs)
        if active_fault() != "engine" or self._sent is None:
            self._sent = [(name, weight.detach().clone()) for name, weight in weights]
        return iter(self._sent), about


class UnmaskedAgentLoop(SearchAgentLoop):
    """An agent loop whose response mask lets the observations be trained on."""

    def _outputs(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super()._outputs(*args, **kwargs)
        for output in outputs:
            output.response_mask = [1] * len(output.response_mask)
        return outputs


def searches(trajectory: Any, golds: list[str]) -> float:
    """The number of queries of a trajectory, whatever it answers."""
    return float(trajectory.n_searches)
