"""The steps of `rag-r1 own` that evaluate models, all on the same held-out questions with the same index.

    evaluation/untrained    the untrained model as an agent
    evaluation/one_shot     the untrained model with plain RAG: one search, whose passages are in the prompt
    evaluation/fine_tuned   the model after SFT, if reinforcement learning follows
    evaluation/trained      the model that results from the run

The result of the run also gets a search card (`rag-r1 eval --card`), which tells whether the model searches
for its answers or knows them already. If nothing is trained, the untrained model gets it.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rag_r1.evaluation.eval_arguments import EvalArguments
from rag_r1.evaluation.evaluation_run import evaluate
from rag_r1.io.bounded_json import read_json_object
from rag_r1.options.settings_file import recorded_settings
from rag_r1.own.artifacts import OwnArtifacts, own_step
from rag_r1.own.episodes import Episodes, without_prompt
from rag_r1.runs.errors import RunError
from rag_r1.runs.steps import Step

#: The folder of the run of `rag-r1 eval` in the folder of a step. If the run makes a search card, it contains
#: a folder for each condition; REAL is that of the real search.
RUN, REAL = "run", "real"


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of a model."""

    name: str
    #: Name of the model in the report.
    label: str
    #: Returns the folder of the model. It may be called only when the steps in `needs` are finished.
    model: Callable[[], Path]
    #: The steps that make the model.
    needs: tuple[str, ...] = ()
    #: Whether a search card is made.
    has_card: bool = False
    #: Whether the model answers after a single search (plain RAG) instead of acting as an agent.
    is_one_shot: bool = False

    @property
    def step(self) -> str:
        """The name of the evaluation's step."""
        return step_name(self.name)

    def folder(self, out: Path) -> Path:
        """Return the folder with the records and the report of the evaluation."""
        return out / self.step / self.run_folder

    @property
    def run_folder(self) -> str:
        """The folder with the records and the report, relative to that of the step."""
        return f"{RUN}/{REAL}" if self.has_card else RUN

    def arguments(self, episodes: Episodes) -> dict[str, Any]:
        """Return the arguments of `rag-r1 eval` about the agent and the limits of its episodes."""
        return dict(episodes.one_shot_arguments if self.is_one_shot else episodes.policy_arguments)


def step_name(evaluation: str) -> str:
    """Return the name of the step that runs the evaluation of this name."""
    return f"evaluation/{evaluation}"


def evaluations(artifacts: OwnArtifacts) -> list[Evaluation]:
    """Return the evaluations of the plan, in order."""
    plan = artifacts.plan
    if plan.evaluation.skip:
        return []
    has_card = plan.evaluation.card

    def untrained() -> Path:
        return artifacts.untrained_model

    label = "untrained" if plan.trains else "the model"
    result = [Evaluation("untrained", label, untrained, has_card=has_card and not plan.trains)]
    if plan.evaluation.one_shot:
        result.append(Evaluation("one_shot", f"{label}, one search (RAG)", untrained, is_one_shot=True))
    if not plan.sft.skip and not plan.grpo.skip:
        result.append(Evaluation("fine_tuned", "after SFT", lambda: artifacts.grpo_start_model, ("sft",)))
    if plan.trains:
        needs = ("sft",) if plan.grpo.skip else ("grpo",)
        result.append(Evaluation("trained", "trained", lambda: artifacts.final_model, needs, has_card))
    return result


def evaluation_steps(artifacts: OwnArtifacts) -> list[Step]:
    """Return a step for each evaluation of the plan. Raises OSError or UnicodeDecodeError if the file of a
    prompt cannot be read."""
    return [_step(artifacts, evaluation) for evaluation in evaluations(artifacts)]


def _step(artifacts: OwnArtifacts, evaluation: Evaluation) -> Step:
    """Make the step of an evaluation."""
    plan = artifacts.plan
    arguments = evaluation.arguments(artifacts.episodes)
    prompt = arguments.get("prompt")
    settings = {
        "playing": without_prompt(arguments),
        "prompt": Path(prompt).read_text(encoding="utf-8") if prompt else None,
        "questions": plan.evaluation.questions,
        "card": evaluation.has_card,
        "seed": plan.run.seed,
        **({} if evaluation.needs else {"model": artifacts.model_hash}),
    }
    result = f"{evaluation.run_folder}/report.json"

    def work(folder: Path) -> dict[str, Any]:
        with artifacts.retriever(folder) as url:
            args = eval_arguments(artifacts, evaluation, url)
            with recorded_settings("rag-r1 eval", args):
                if asyncio.run(evaluate(args)):
                    raise RunError(f"{evaluation.step} is not complete (see above): the same command goes on")
        return {"em": read_json_object(folder / result)["figures"]["em"]["all"]}

    return own_step(evaluation.step, settings, work, (result,), ("index", "questions", *evaluation.needs))


def eval_arguments(artifacts: OwnArtifacts, evaluation: Evaluation, url: str) -> EvalArguments:
    """Return the arguments of `rag-r1 eval` for an evaluation, with the retrieval server at `url`."""
    plan, episodes = artifacts.plan, artifacts.episodes
    arguments = evaluation.arguments(episodes)
    if plan.policy.url is None:
        arguments["model"] = str(evaluation.model())
        arguments["vllm_options"] = shlex.join(episodes.vllm_options)
    else:
        arguments |= {"model": plan.policy.model, "base_url": plan.policy.url}
    return EvalArguments(
        questions=[artifacts.questions("test")],
        out=artifacts.out / evaluation.step / RUN,
        retriever_url=url,
        index=artifacts.index,
        limit=plan.evaluation.questions,
        baseline="one_shot" if evaluation.is_one_shot else None,
        card=evaluation.has_card,
        corpus=artifacts.corpus if evaluation.has_card else [],
        seed=plan.run.seed,
        **episodes.concurrency_arguments,
        **arguments,
    )
