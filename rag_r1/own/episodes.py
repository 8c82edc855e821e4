"""The episodes of a plan, in all steps: with the limits and the search of its recipe of GRPO.

The recipe is composed with the plan's protocol, prompt and keys, as its training will be. Evaluation, filter
and chat have the limits of its validation; the teacher has the same search and number of turns, and longer
turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rag_r1.config.recipes import Recipe
from rag_r1.evaluation.run_defaults import validation_arguments
from rag_r1.options.command_line import hydra_quoted
from rag_r1.own.plan import OwnPlan
from rag_r1.protocols import load_protocol
from rag_r1.training.composition import check_composition

#: Makes every checkpoint a model that the next step can use, and a training go on after a kill.
_RESUMABLE = (
    "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]",
    "trainer.resume_mode=auto",
    "trainer.max_actor_ckpt_to_keep=2",
)
#: Stands for the address of the retrieval server before it is known.
ANY_URL = "http://127.0.0.1:8000"
#: Number of checkpoints of a training whose recipe saves none.
_CHECKPOINTS = 3
#: Episodes at a time in vLLM on a CPU. A batch has room for all of their prompts: vLLM on a CPU crashes if it
#: splits the prefill of a seeded request.
_CPU_EPISODES = 32
#: Words of English in a token, with room for the tags.
_WORDS_PER_TOKEN = 0.5
_TURN_TOKENS = "rag_r1.agent.max_turn_tokens="


@dataclass(frozen=True)
class Episodes:
    """The arguments and limits of episodes for a plan with all recipes."""

    plan: OwnPlan

    @property
    def recipe_overrides(self) -> list[str]:
        """The overrides that decide the episodes and the steps of a training, besides its files, model and
        server; the plan's own ones come last."""
        policy, grpo = self.plan.policy, self.plan.grpo
        prompt = [] if policy.prompt is None else [f"++rag_r1.prompt={hydra_quoted(policy.prompt)}"]
        steps = []
        if grpo.steps is not None:  # as many epochs, so that the number of steps ends the training
            steps = [f"trainer.total_training_steps={grpo.steps}", f"trainer.total_epochs={grpo.steps}"]
        return [f"rag_r1.protocol={policy.protocol}", *prompt, *policy.keys, *steps, *grpo.overrides]

    @property
    def overrides(self) -> list[str]:
        """`recipe_overrides`, with ANY_URL as the address of the retrieval server."""
        return [f"rag_r1.retriever.url={ANY_URL}", *self.recipe_overrides]

    @cached_property
    def config(self) -> Any:
        """The composed recipe. Raises StartError with all wrong overrides, or RunError."""
        assert self.plan.grpo.recipe is not None  # sizes.py has chosen one
        return check_composition(Recipe.find(self.plan.grpo.recipe), self.overrides)

    @property
    def training_overrides(self) -> list[str]:
        """`recipe_overrides`, with those of a training that can be resumed and leaves a model."""
        trainer = self.config.trainer
        save_freq = trainer.save_freq
        if save_freq <= 0:
            save_freq = max(1, (trainer.total_training_steps or 1) // _CHECKPOINTS)
        changes = [f"trainer.save_freq={save_freq}", f"data.seed={self.plan.run.seed}"]
        return [*_RESUMABLE, *changes, *self.recipe_overrides]

    @cached_property
    def playing(self) -> dict[str, Any]:
        """The arguments of a command that plays the policy: protocol, prompt, limits and search."""
        arguments = validation_arguments(self.config)
        return {key: value for key, value in arguments.items() if key not in ("questions", "retriever_url")}

    @property
    def teaching(self) -> dict[str, Any]:
        """The arguments `protocol` and `overrides` of a command that plays the teacher, which writes longer
        turns."""
        overrides = [word for word in self.playing["overrides"] if not word.startswith(_TURN_TOKENS)]
        return {
            "protocol": self.plan.policy.protocol,
            "overrides": [*overrides, f"{_TURN_TOKENS}{self.plan.traces.max_turn_tokens}"],
        }

    @property
    def teacher_prompt(self) -> str:
        """The protocol's whole prompt, also if the policy has a shorter one, after the greatest length of a
        turn: what is longer than a turn of the policy cannot be a sample for SFT."""
        words = int(self.turn_tokens * _WORDS_PER_TOKEN)
        instruction = f"Be brief: write at most {words} words in a turn, its search or its answer included."
        return f"{instruction}\n\n{load_protocol(self.plan.policy.protocol).user_prompt}"

    @property
    def turn_tokens(self) -> int:
        """Most tokens of a turn of the policy in training."""
        return int(self.config.rag_r1.agent.max_turn_tokens)

    @property
    def max_turns(self) -> int:
        """Most turns with a search."""
        return int(self.config.rag_r1.agent.max_turns)

    @property
    def context_tokens(self) -> int:
        """Most tokens of a prompt and all that follows."""
        return int(self.config.data.max_prompt_length) + int(self.config.data.max_response_length)

    @property
    def one_shot(self) -> dict[str, Any]:
        """`playing` for one search whose passages stand in the prompt, which has the room of an episode."""
        prompt = self.plan.evaluation.one_shot_prompt
        values = {name: value for name, value in self.playing.items() if name != "prompt"}
        room = {
            "max_prompt_tokens": self.context_tokens - self.turn_tokens,
            "max_response_tokens": self.turn_tokens,
        }
        return {**values, **room, **({} if prompt is None else {"prompt": prompt})}

    @property
    def vllm_options(self) -> tuple[str, ...]:
        """Flags of vLLM's server on this platform."""
        if self.config.trainer.device != "cpu":
            return ()
        tokens = str(self.context_tokens * _CPU_EPISODES)
        return ("--max-num-seqs", str(_CPU_EPISODES), "--max-num-batched-tokens", tokens)

    @property
    def in_flight(self) -> dict[str, int]:
        """The argument `in_flight`, episodes at a time, if the platform limits it."""
        return {"in_flight": _CPU_EPISODES} if self.config.trainer.device == "cpu" else {}
