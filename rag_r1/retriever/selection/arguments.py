"""The arguments of `rag-r1 retriever select`.

The options of the selection rule are a class of their own, because `rag-r1 retriever data` has them as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from rag_r1.options.command_line import Arguments, Positive, argument
from rag_r1.options.out_folder import refuse_replaced
from rag_r1.options.types import Constraint
from rag_r1.retriever.selection.rules import USEFUL, RuleMode, SelectionRule, Utility
from rag_r1.runs.start_checks import CHECK_ONLY

Points = Annotated[int, Field(ge=0, le=100), Constraint("a whole number from 0 to 100")]


class SelectionArguments(Arguments):
    """The options of the rule that selects the rows (rules.py)."""

    utility: Utility = argument(
        "score by which a passage is a positive: correctness of the final answer (GAC) and relevance to the "
        "query (LR), or one of them alone",
        default="both",
    )
    selection: RuleMode = argument(
        "safe: no passage that is itself useful becomes a negative; faithful: the published rule",
        default="safe",
    )
    least_relevance: Points = argument("least LR of a positive", "N", default=USEFUL)
    tolerance: Points = argument("points of LR below the best at which safe sees a tie", "N", default=5)
    negatives: Positive = argument("negatives of a row", "N", default=15)

    def rule(self, seed: int) -> SelectionRule:
        """Return the rule that these options describe. `seed` is the seed of its random draws."""
        return SelectionRule(
            mode=self.selection,
            use=self.utility,
            seed=seed,
            least_relevance=self.least_relevance,
            tolerance=self.tolerance,
            negatives=self.negatives,
        )


class SelectArguments(SelectionArguments):
    """The options that name the files with the scores and the file for the rows."""

    candidates: Path | None = argument("candidates.jsonl; needed without --correctness", "FILE", default=None)
    relevance: Path | None = argument("relevance.jsonl", "FILE", default=None)
    correctness: Path | None = argument("correctness.jsonl", "FILE", default=None)
    out: Path = argument("file for the rows, FILE.jsonl", "FILE")
    dataset: str | None = argument("data set of records that name none", "NAME", default=None)
    seed: int = argument("seed of the draw of negatives", default=0)
    check_only: bool = argument(CHECK_ONLY, default=False)

    @model_validator(mode="after")
    def _files_fit(self) -> SelectArguments:
        """Raise ValueError if a file that the rule needs is missing."""
        faults = [  # the values of --utility other than `both` are also the names of the flags
            f"--utility {self.utility} needs --{name}: give it, or choose another --utility"
            for name, path in (("relevance", self.relevance), ("correctness", self.correctness))
            if self.utility in ("both", name) and path is None
        ]
        if self.candidates is None and self.correctness is None:
            faults.append("--candidates is needed: relevance alone does not name the queries")
        if faults:
            raise ValueError("; ".join(faults))
        return self

    @model_validator(mode="after")
    def _inputs_stay(self) -> SelectArguments:
        inputs = (self.candidates, self.relevance, self.correctness)
        refuse_replaced(inputs, self.out.parent, [self.out.name])
        return self
