"""Defines the conditions of an evaluation: the agent as it was trained, and the baselines.

    agent       the agent as it was trained, which may search
    direct      the model answers at once, without search or reasoning
    cot         the model reasons step by step and then answers, without search (chain of thought)
    one_shot    one search for the question itself, whose passages are put into the prompt (RAG)
    no_search   the agent with its own prompt, but without a turn in which it may search

A condition maps each question to an agent's setup (rag_r1/config/agent_setup.py). So all conditions are
played by the same runner and scored by the same code. A baseline has the agent's limits, but a single turn,
the final one. The prompts of `direct`, `cot` and `one_shot` were written for this project and use the tags of
the run's protocol. `--prompt` replaces them; a prompt for `one_shot` must have `{documents}` where the
passages go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rag_r1.config.agent_setup import AgentSetup
from rag_r1.data.rows import QuestionRow
from rag_r1.evaluation.eval_arguments import BaselineName
from rag_r1.rollouts.one_shot import PASSAGES_FIELD
from rag_r1.runs.errors import RunError

#: The name of the condition with the agent as it was trained.
AGENT = "agent"

#: The end of each instruction.
_ANSWER = (
    "give the answer between {answer} and {/answer}, short and without explanation, for example "
    "{answer} Beijing {/answer}."
)
#: The prompts by baseline. `{answer}` and `{/answer}` are replaced by the tags of the protocol, and so are
#: those of `think`.
PROMPTS: dict[BaselineName, str] = {
    "direct": f"Answer the question below from what you know. At once {_ANSWER} Question: {{question}}",
    "cot": "Answer the question below from what you know. First reason step by step between {think} and "
    f"{{/think}}. Then {_ANSWER} Question: {{question}}",
    "one_shot": "Answer the question below. Passages that a search engine has found for it come first; not "
    "all of them need be of use. First reason between {think} and {/think}. Then "
    f"{_ANSWER}\n\n{PASSAGES_FIELD}\n\nQuestion: {{question}}",
}


@dataclass(frozen=True)
class Condition:
    """How the questions of a run are asked."""

    name: str
    #: Makes the agent for a question. Raises ValueError with the reason if the question cannot be asked.
    setup: Callable[[QuestionRow], AgentSetup]
    #: Whether a question is asked under this condition.
    applies: Callable[[QuestionRow], bool] = lambda row: True
    #: Whether the condition needs the retrieval server.
    searches: bool = True
    #: Whether to search before the episode begins (rag_r1/rollouts/one_shot.py).
    search_first: bool = False
    #: Further JSON values on which the answers depend. A run is resumed only with equal options.
    options: Mapping[str, Any] = field(default_factory=dict)


def agent_condition(setup: AgentSetup) -> Condition:
    """Return the condition with the agent as it was trained."""
    return Condition(AGENT, lambda row: setup)


def baseline(name: BaselineName, setup: AgentSetup) -> Condition:
    """Return a baseline for the agent `setup`, with its limits but a single turn, in which the model may only
    answer. Raises RunError for a `--prompt` of `one_shot` without the placeholder of the passages."""
    budget = replace(setup.budget, max_turns=0, final_turn=True)
    if name == "no_search":
        searchless = replace(setup, budget=budget)
        return Condition(name, lambda row: searchless, searches=False)
    prompt = setup.protocol.user_prompt if setup.own_prompt else _with_protocol_tags(PROMPTS[name], setup)
    if name == "one_shot" and PASSAGES_FIELD not in prompt:
        raise RunError(f"--prompt has no {PASSAGES_FIELD}: write it where one_shot puts the passages")
    protocol = replace(setup.protocol, user_prompt=prompt, system_prompt=None)
    if name == "direct":  # an opening such as <think> would invite reasoning
        protocol = replace(protocol, opening="")
    turn_setup = replace(setup, protocol=protocol, budget=budget, own_prompt=True, schemas=())
    with_search = name == "one_shot"
    return Condition(name, lambda row: turn_setup, searches=with_search, search_first=with_search)


def _with_protocol_tags(prompt: str, setup: AgentSetup) -> str:
    """Return the prompt with the tags of the protocol. A plain-text prompt also gets a final newline, after
    which the policy writes."""
    for role in ("think", "answer"):
        tag = getattr(setup.protocol.tags, role)
        prompt = prompt.replace(f"{{{role}}}", tag.open).replace(f"{{/{role}}}", tag.close)
    return prompt + ("\n" if setup.protocol.prompt_form == "text" else "")
