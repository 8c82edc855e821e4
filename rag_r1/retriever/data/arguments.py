"""The arguments of `rag-r1 retriever data`."""

from __future__ import annotations

from pathlib import Path

from pydantic import model_validator

from rag_r1.evaluation.eval_arguments import PolicyArguments
from rag_r1.options.command_line import From0, From0Count, Positive, argument
from rag_r1.retriever.selection.arguments import SelectionArguments
from rag_r1.rollouts.agent_arguments import SAMPLING, SCORING


class DataArguments(SelectionArguments, PolicyArguments):
    """The arguments of `rag-r1 retriever data`: the agent, how the candidates of its searches are scored, and
    the rule that selects rows."""

    candidates: Positive = argument("most passages of each search that are scored", "N", default=20)
    samples: Positive = argument("continuations for each candidate", "N", default=1, rare=SCORING)
    temperature: From0 = argument(
        "temperature of the continuations; 0: greedy, as the trajectories", "T", default=0.0, rare=SAMPLING
    )
    beside: From0Count = argument(
        "unrelated passages shown behind each candidate, for an agent that cannot read a single one",
        "N",
        default=0,
        rare=SCORING,
    )
    trajectories: Path | None = argument(
        "a finished run of `rag-r1 eval` with this agent, whose searches are scored (default: it is played "
        "here)",
        "DIR",
        default=None,
    )
    estimate: bool = argument("print what the scores will cost, and end", default=False)

    @model_validator(mode="after")
    def _negatives_fit(self) -> DataArguments:
        """Raise ValueError if a search has too few candidates for a row of a positive and its negatives."""
        if self.negatives >= self.candidates:
            raise ValueError(
                f"--negatives {self.negatives} needs at least --candidates {self.negatives + 1}, not "
                f"{self.candidates}: give more candidates, or fewer negatives"
            )
        return self
