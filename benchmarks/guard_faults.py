"""Faults for benchmarks/guard.py, which are planted through veRL's extension points.

They are an engine in veRL's registry, an agent loop that the configuration names, and a reward term. The
faults of the engine act while the file `$GUARD_FAULT` exists, which the benchmark writes and removes. The
file has the name of the fault: `learning_rate` (the optimizer's rate is 30 times the scheduled and logged
one) or `engine` (the rollout engine keeps its old weights).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from verl.workers.engine import EngineRegistry

from rag_r1.plugin.agent_loop import SearchAgentLoop
from rag_r1.plugin.cpu.engines import CPUEngineWithLMHead

#: Factor of the learning rate while that fault is active.
RATE_FACTOR = 30.0


def active_fault() -> str:
    """Return the name of the active fault, or an empty text."""
    path = Path(os.environ.get("GUARD_FAULT", ""))
    return path.read_text().strip() if path.is_file() else ""


@EngineRegistry.register(
    model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu", vendor="faulty"
)
class FaultyLMHead(CPUEngineWithLMHead):
    """The engine for the CPU, with a fault while one is active."""

    #: The names and weights that were sent to the rollout engine last.
    _sent: list[tuple[str, Any]] | None = None

    def optimizer_step(self) -> Any:
        """Make a step, with a learning rate that is RATE_FACTOR times as large while that fault is active."""
        factor = RATE_FACTOR if active_fault() == "learning_rate" else 1.0
        rates = [group["lr"] for group in self.optimizer.param_groups]
        for group in self.optimizer.param_groups:
            group["lr"] *= factor
        try:
            return super().optimizer_step()
        finally:
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate

    def get_per_tensor_param(self, *args: Any, **kwargs: Any) -> Any:
        """Return the weights for the rollout engine; while the fault `engine` is active, the old ones."""
        weights, metadata = super().get_per_tensor_param(*args, **kwargs)
        if active_fault() != "engine" or self._sent is None:
            self._sent = [(name, weight.detach().clone()) for name, weight in weights]
        return iter(self._sent), metadata


class UnmaskedAgentLoop(SearchAgentLoop):
    """An agent loop whose response mask includes the observations, so that they are trained on."""

    def _outputs(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super()._outputs(*args, **kwargs)
        for output in outputs:
            output.response_mask = [1] * len(output.response_mask)
        return outputs


def searches(trajectory: Any, golds: list[str]) -> float:
    """Return the number of queries of a trajectory, whatever its answer is; this is a reward term."""
    return float(trajectory.n_searches)
