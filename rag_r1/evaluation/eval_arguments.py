"""The arguments of `rag-r1 eval`, and of other commands that evaluate a policy.

`PolicyArguments` names a policy and its questions; `EvalArguments` adds the conditions under which `rag-r1
eval` can ask them.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal, get_args

from pydantic import model_validator

from rag_r1.evaluation.judge_arguments import JudgeArguments
from rag_r1.options.arguments.fields import flag_of
from rag_r1.options.command_line import Filled, From0, Positive, argument
from rag_r1.rollouts.agent_arguments import SAMPLING, SCORING, ServedModel
from rag_r1.rollouts.arguments import RolloutArguments

#: The names of the baselines (baselines.py).
BaselineName = Literal["direct", "cot", "one_shot", "no_search"]
BASELINES: tuple[BaselineName, ...] = get_args(BaselineName)


class PolicyArguments(JudgeArguments, ServedModel, RolloutArguments):
    """A policy, its server, its questions, and the files that describe these."""

    finds_tokenizer: ClassVar[bool] = True
    #: Whether --samples above 1 needs --temperature. A command that samples at other temperatures has False.
    samples_at_temperature: ClassVar[bool] = True

    questions: list[Path] = argument(
        "questions: veRL parquet as `rag-r1 data` writes it, or question and answers as JSON, JSON lines, "
        "CSV, TSV or parquet; may be repeated",
        "FILE",
        old="data",
    )
    model: Filled = argument(
        "a folder: Hugging Face's, or a checkpoint of veRL; with --base-url, the model's name there", "MODEL"
    )
    temperature: From0 = argument("sampling temperature; 0 is greedy", "T", default=0.0, rare=SAMPLING)
    samples: Positive = argument("episodes for each question", "N", default=1)
    in_flight: Positive = argument("episodes at a time", "N", default=256)
    answerable: Path | None = argument(
        "ids of the answerable questions, from `rag-r1 corpus check`", "FILE", default=None, rare=SCORING
    )
    supporting: Path | None = argument(
        "passages that each question needs, for their recall and for a search card",
        "FILE",
        default=None,
        rare=SCORING,
    )
    index: Path | None = argument(
        "folder of the retrieval server's index, which a search card describes",
        "DIR",
        default=None,
        rare=SCORING,
    )

    @model_validator(mode="after")
    def _samples_differ(self) -> PolicyArguments:
        if self.samples_at_temperature and self.samples > 1 and self.temperature == 0:
            raise ValueError("--samples above 1 needs a --temperature above 0: greedy samples are equal")
        return self


class EvalArguments(PolicyArguments):
    """The arguments of `rag-r1 eval`: a policy, and the condition under which it is asked."""

    baseline: BaselineName | None = argument(
        "another way to ask than the agent: at once, with a chain of thought, with one search for the "
        "question itself, or as the agent without search",
        f"{{{','.join(BASELINES)}}}",
        default=None,
    )
    card: bool = argument(
        "a search card: also play the questions with a closed book, with other results of the search, and "
        "without the gold passages, to see whether the policy searches or knows",
        default=False,
    )
    corpus: list[Path] = argument("the corpus, for --card; may be repeated", "FILE", default=[])
    serve_index: Path | None = argument(
        "index for which a retrieval server is started here, instead of --retriever-url", "DIR", default=None
    )

    @model_validator(mode="after")
    def _flags_fit_card(self) -> EvalArguments:
        if self.card and self.baseline is not None:
            raise ValueError("--card is about the agent: leave out --baseline")
        if self.corpus and not self.card:
            raise ValueError("--corpus is for --card: add --card, or leave out --corpus")
        return self

    def refuse_other_conditions(self) -> None:
        """Raise ValueError if a flag is given that EvalArguments adds to PolicyArguments. Commands that use
        the class, but choose their conditions themselves, call this."""
        own_names = [name for name in EvalArguments.model_fields if name not in PolicyArguments.model_fields]
        if names := [flag_of(name) for name in own_names if getattr(self, name)]:
            raise ValueError(f"{', '.join(names)}: for `rag-r1 eval` alone: leave out")
