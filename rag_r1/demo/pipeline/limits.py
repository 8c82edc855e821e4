"""Defines what the steps of a pipeline share: the limits of episodes, vLLM's options, GRPO's overrides."""

from __future__ import annotations

from dataclasses import replace

from rag_r1.agent import Budget
from rag_r1.demo.pipeline.arguments import PipelineArguments

#: The limits of an episode in every step. Turns may be longer than in the demo's recipes, because a tag
#: consists of three tokens here.
BUDGET = Budget(
    max_turns=3,
    max_turn_tokens=64,
    max_query_observation_tokens=96,
    max_prompt_tokens=96,
    max_response_tokens=448,
)
#: The limits of a real teacher, which writes longer turns than the policy. Turns that are too long for the
#: policy are left out of the SFT data.
TEACHER_BUDGET = replace(BUDGET, max_turn_tokens=512, max_prompt_tokens=1024, max_response_tokens=4096)
#: Number of passages that a search returns.
TOPK = 2
#: For each protocol, the share of questions about two independent facts for which the teacher searches in one
#: turn.
PARALLEL = {"rag_r1_sq": 0.0, "rag_r1_mq": 0.7}
#: Number of steps between checkpoints, and between validations, in a reinforcement learning.
SAVE_INTERVAL = 6
#: Number of concurrent episodes in vLLM. A batch must have room for all of their prompts, because vLLM
#: crashes on a CPU if it splits the prefill of a seeded request.
CONCURRENCY = 32
#: Maximum length of an episode with its prompt.
CONTEXT_TOKENS = BUDGET.max_prompt_tokens + BUDGET.max_response_tokens
#: The options with which vLLM serves the fine-tuned model.
VLLM_OPTIONS = (
    *("--max-model-len", str(CONTEXT_TOKENS)),
    *("--max-num-seqs", str(CONCURRENCY)),
    *("--max-num-batched-tokens", str(CONTEXT_TOKENS * CONCURRENCY)),
)


def agent_keys(budget: Budget) -> list[str]:
    """Convert the limits of an episode to overrides of the block `rag_r1`, `key=value`."""
    names = ("max_turns", "max_turn_tokens", "max_query_observation_tokens")
    limits = [f"rag_r1.agent.{name}={getattr(budget, name)}" for name in names]
    return [*limits, f"rag_r1.retriever.topk={TOPK}"]


def grpo_overrides(args: PipelineArguments) -> list[str]:
    """Return the overrides of the recipe demo/grpo for both trainings.

    The user's own overrides come last, and therefore take precedence.
    """
    reward = [] if args.protocol == "rag_r1_mq" else ["rag_r1.reward=[{term: em, weight: 1.0}]"]
    return [
        f"rag_r1.protocol={args.protocol}",
        *agent_keys(BUDGET),
        *reward,
        f"data.seed={args.seed}",
        f"data.val_batch_size={args.held_out}",
        f"data.max_prompt_length={BUDGET.max_prompt_tokens}",
        f"data.max_response_length={BUDGET.max_response_tokens}",
        f"actor_rollout_ref.rollout.max_model_len={CONTEXT_TOKENS}",
        "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]",
        "trainer.resume_mode=auto",
        "trainer.max_actor_ckpt_to_keep=2",
        f"trainer.save_freq={SAVE_INTERVAL}",
        f"trainer.test_freq={SAVE_INTERVAL}",
        f"trainer.total_training_steps={args.grpo_steps}",
        # With as many epochs as steps, the training does not end before.
        f"trainer.total_epochs={args.grpo_steps}",
        *args.grpo_set,
    ]
