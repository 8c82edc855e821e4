"""Derives the arguments and limits of all episodes from the plan's GRPO recipe.

The recipe is composed with the plan's protocol, prompt and keys, just as for the training. Evaluation, filter
and chat use the limits of the recipe's validation, so that the agent plays under the same conditions in all
steps. The teacher has the same search and number of turns, but may write longer turns. Only the samples of
SFT have the limits of the recipe's training, for which they prepare the policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rag_r1.config.recipes import Recipe
from rag_r1.evaluation.run_defaults import validation_arguments
from rag_r1.options.arguments.overrides import hydra_quoted
from rag_r1.own.plan import OwnPlan
from rag_r1.protocols import load_protocol
from rag_r1.training.composition import check_composition

#: Overrides with which every checkpoint contains a model for the next step, and the training can be resumed.
_RESUMABLE = (
    "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]",
    "trainer.resume_mode=auto",
    "trainer.max_actor_ckpt_to_keep=2",
)
#: Placeholder for the address of the retrieval server where it is not known yet.
ANY_URL = "http://127.0.0.1:8000"
#: Number of checkpoints of a training whose recipe saves none, but says how many steps there are. Without
#: that number there is one after each step.
_CHECKPOINTS = 3
#: Number of concurrent episodes in vLLM on a CPU. A batch must have room for all of their prompts, because
#: vLLM crashes on a CPU if it splits the prefill of a seeded request.
_CPU_EPISODES = 32
#: English words per token, which leaves room for the tags of a turn.
_WORDS_PER_TOKEN = 0.5
_TURN_TOKENS = "rag_r1.agent.max_turn_tokens="


@dataclass(frozen=True)
class Episodes:
    """The arguments and limits of episodes for a plan, whose recipes must have been chosen (sizes.py)."""

    plan: OwnPlan

    @property
    def recipe_overrides(self) -> list[str]:
        """The overrides of the GRPO recipe that the plan determines: protocol, prompt, keys and steps.

        The user's own overrides come last, and therefore take precedence. Files, model and server are not
        among them.
        """
        policy, grpo = self.plan.policy, self.plan.grpo
        prompt = [] if policy.prompt is None else [f"++rag_r1.prompt={hydra_quoted(policy.prompt)}"]
        steps = []
        if grpo.steps is not None:  # with as many epochs as steps, the training does not end earlier
            steps = [f"trainer.total_training_steps={grpo.steps}", f"trainer.total_epochs={grpo.steps}"]
        return [f"rag_r1.protocol={policy.protocol}", *prompt, *policy.keys, *steps, *grpo.overrides]

    @property
    def composed_overrides(self) -> list[str]:
        """The overrides of `config`: `recipe_overrides`, with ANY_URL as the retrieval server's address."""
        return [f"rag_r1.retriever.url={ANY_URL}", *self.recipe_overrides]

    @cached_property
    def config(self) -> Any:
        """The composed GRPO recipe. Raises StartError with all wrong overrides, or RunError."""
        assert self.plan.grpo.recipe is not None  # sizes.py has chosen one
        return check_composition(Recipe.find(self.plan.grpo.recipe), self.composed_overrides)

    @property
    def training_overrides(self) -> list[str]:
        """`recipe_overrides`, with those that make the training resumable and leave a model.

        The interval of the checkpoints comes last, so that a model is also left if the user's own override
        says that none is saved. An interval of the user's is kept.
        """
        trainer = self.config.trainer
        save_freq = trainer.save_freq
        if save_freq <= 0:
            save_freq = max(1, (trainer.total_training_steps or 1) // _CHECKPOINTS)
        seed = f"data.seed={self.plan.run.seed}"
        return [*_RESUMABLE, seed, *self.recipe_overrides, f"trainer.save_freq={save_freq}"]

    @cached_property
    def policy_arguments(self) -> dict[str, Any]:
        """The arguments of commands that play the policy: protocol, prompt, limits and search."""
        arguments = validation_arguments(self.config)
        return {key: value for key, value in arguments.items() if key not in ("questions", "retriever_url")}

    @property
    def teacher_arguments(self) -> dict[str, Any]:
        """The arguments `protocol` and `overrides` of the command that plays the teacher.

        They differ from those of the policy in the limit of a turn only. The other arguments of the policy
        are about its prompt and the limits of its context.
        """
        overrides = self.policy_arguments["overrides"]
        kept_overrides = [override for override in overrides if not override.startswith(_TURN_TOKENS)]
        return {
            "protocol": self.plan.policy.protocol,
            "overrides": [*kept_overrides, f"{_TURN_TOKENS}{self.plan.traces.max_turn_tokens}"],
        }

    @property
    def teacher_prompt(self) -> str:
        """The prompt of the teacher.

        It consists of the protocol's full prompt, even if the policy has a shorter one, and of a limit for
        the length of turns, because turns that exceed the policy's limit cannot become SFT samples.
        """
        words = int(self.turn_tokens * _WORDS_PER_TOKEN)
        instruction = f"Be brief: write at most {words} words in a turn, its search or its answer included."
        return f"{instruction}\n\n{load_protocol(self.plan.policy.protocol).user_prompt}"

    @property
    def turn_tokens(self) -> int:
        """The maximum length of the policy's turns in training, in tokens."""
        return int(self.config.rag_r1.agent.max_turn_tokens)

    @property
    def max_turns(self) -> int:
        """The maximum number of turns with a search, of the policy in evaluation and of the teacher."""
        return int(self._validation_limits["max_turns"])

    @property
    def _validation_limits(self) -> dict[str, Any]:
        """The limits of an episode in the recipe's validation, by their keys."""
        block = self.config.rag_r1
        return {**block.agent, **(block.get("validation_agent") or {})}

    @property
    def context_tokens(self) -> int:
        """The maximum length of an episode with its prompt, in tokens."""
        return int(self.config.data.max_prompt_length) + int(self.config.data.max_response_length)

    @property
    def one_shot_arguments(self) -> dict[str, Any]:
        """The arguments of the policy for plain RAG, whose prompt contains the passages of one search.

        The answer may be as long as a turn. The rest of an episode's length is available for the prompt.
        """
        prompt = self.plan.evaluation.one_shot_prompt
        arguments = without_prompt(self.policy_arguments)
        answer = int(self._validation_limits["max_turn_tokens"])
        limits = {"max_prompt_tokens": self.context_tokens - answer, "max_response_tokens": answer}
        return {**arguments, **limits, **({} if prompt is None else {"prompt": prompt})}

    @property
    def vllm_options(self) -> tuple[str, ...]:
        """The flags of vLLM's server on the platform of the plan."""
        if self.config.trainer.device != "cpu":
            return ()
        tokens = str(self.context_tokens * _CPU_EPISODES)
        return ("--max-num-seqs", str(_CPU_EPISODES), "--max-num-batched-tokens", tokens)

    @property
    def concurrency_arguments(self) -> dict[str, int]:
        """The argument `in_flight` (concurrent episodes) if the platform limits it, else no argument."""
        return {"in_flight": _CPU_EPISODES} if self.config.trainer.device == "cpu" else {}


def without_prompt(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of episodes without the path of the prompt.

    The settings of a step do not contain the path, since it may change. A step whose questions do not contain
    the prompt records its text instead.
    """
    return {name: value for name, value in arguments.items() if name != "prompt"}
