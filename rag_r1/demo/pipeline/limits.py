"""The episode limits of a pipeline, shared by its commands and trainings."""

from __future__ import annotations

from dataclasses import replace

from rag_r1.agent import Budget
from rag_r1.demo.pipeline.arguments import PipelineArguments

#: The limits of an episode, in every step: a tag is three tokens here, so turns may be longer than in the
#: demo's recipes.
BUDGET = Budget(
    max_turns=3,
    max_turn_tokens=64,
    max_query_observation_tokens=96,
    max_prompt_tokens=96,
    max_response_tokens=448,
)
#: Those of a real teacher, which writes more than the policy can hold; its longer turns are left out of the
#: SFT data.
TEACHER_BUDGET = replace(BUDGET, max_turn_tokens=512, max_prompt_tokens=1024, max_response_tokens=4096)
TOPK = 2
#: Two queries in one turn instead of two turns, where the protocol has both.
PARALLEL = {"rag_r1_sq": 0.0, "rag_r1_mq": 0.7}
#: Between checkpoints and validations of a reinforcement learning.
EVERY = 6
#: Episodes at a time in vLLM. A batch has room for all of their prompts: vLLM on a CPU crashes if it splits
#: the prefill of a seeded request.
AT_A_TIME = 32
CONTEXT = BUDGET.max_prompt_tokens + BUDGET.max_response_tokens
VLLM = (
    *("--max-model-len", str(CONTEXT)),
    *("--max-num-seqs", str(AT_A_TIME)),
    *("--max-num-batched-tokens", str(CONTEXT * AT_A_TIME)),
)


def agent_keys(budget: Budget) -> list[str]:
    """The limits of an episode as keys of the block rag_r1."""
    names = ("max_turns", "max_turn_tokens", "max_query_observation_tokens")
    limits = [f"rag_r1.agent.{name}={getattr(budget, name)}" for name in names]
    return [*limits, f"rag_r1.retriever.topk={TOPK}"]


def grpo_overrides(args: PipelineArguments) -> list[str]:
    """What both trainings change in the recipe demo/grpo, the user's own overrides last."""
    reward = [] if args.protocol == "rag_r1_mq" else ["rag_r1.reward=[{term: em, weight: 1.0}]"]
    return [
        f"rag_r1.protocol={args.protocol}",
        *agent_keys(BUDGET),
        *reward,
        f"data.seed={args.seed}",
        f"data.val_batch_size={args.held_out}",
        f"data.max_prompt_length={BUDGET.max_prompt_tokens}",
        f"data.max_response_length={BUDGET.max_response_tokens}",
        f"actor_rollout_ref.rollout.max_model_len={CONTEXT}",
        "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]",
        "trainer.resume_mode=auto",
        "trainer.max_actor_ckpt_to_keep=2",
        f"trainer.save_freq={EVERY}",
        f"trainer.test_freq={EVERY}",
        f"trainer.total_training_steps={args.grpo_steps}",
        # As many as it takes: the steps end the training.
        f"trainer.total_epochs={args.grpo_steps}",
        *args.grpo_set,
    ]
