"""Estimates what a GPU holds in each phase of a training, from the composed recipe and its model's shape.

The formulas, their sources and how well they fit are in formulas.py. Here a recipe is read into the roles
that compute (actor, critic), and each phase into the components that are on the GPU during it: what is always
held, what idle roles keep there because they are not offloaded, and what the role that computes needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from omegaconf import DictConfig, OmegaConf

from rag_r1.training.preflight.adapters import adapter_rank, is_nf4
from rag_r1.training.preflight.cluster import gpu_count, needs_reference
from rag_r1.training.preflight.memory.formulas import (
    CONTEXT,
    HELD,
    Trained,
    bytes_of,
    cached_rows,
    vllm_parts,
)
from rag_r1.training.preflight.memory.shape import ModelShape
from rag_r1.training.preflight.sessions import needs_critic


@dataclass(frozen=True)
class Phase:
    """What a GPU holds at the peak of a phase, in bytes by component."""

    name: str
    parts: dict[str, float]

    @property
    def bytes(self) -> float:
        """All of it."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class MemoryEstimate:
    """The phases of a training on a GPU of `gpu` bytes; none on a CPU. `rows` of `row` tokens, the longest
    context, fit into vLLM's cache. `host`: bytes of a node's memory for what its trainers offload and for
    vLLM's sleeping weights; on a CPU for everything."""

    phases: tuple[Phase, ...]
    rows: float
    row: int
    host: float
    gpu: float = 80e9

    def bytes_of(self, phase: str, part: str | None = None) -> float:
        """Bytes of a phase, or of a part of it; 0 if there is none."""
        parts = next((entry.parts for entry in self.phases if entry.name == phase), {})
        return sum(parts.values(), 0.0) if part is None else parts.get(part, 0.0)


def memory_of(
    config: DictConfig, shape: ModelShape, gpu: float = 80e9, critic_shape: ModelShape | None = None
) -> MemoryEstimate:
    """Memory of a composed recipe of `rag-r1 train`, with a model of this shape, on GPUs of `gpu` bytes.
    `critic_shape`: the critic's shape, if it is another."""
    row = int(config.data.max_prompt_length + config.data.max_response_length)
    actor, critic = _policy(config, shape), _critic(config, critic_shape or shape)
    host = _host(config, shape, actor, critic)
    if config.trainer.device == "cpu":
        return MemoryEstimate((), 0, row, host + _on_cpu(config, actor, critic, row), gpu)
    rollout = config.actor_rollout_ref.rollout
    longest = int(rollout.max_model_len or row)
    generation, *other_phases = _phases(config, shape, actor, critic, row, gpu)
    rows = cached_rows(shape, _tensor_parallel(rollout), generation.parts["cache"], longest)
    return MemoryEstimate((generation, *other_phases), rows, longest, host, gpu)


def sft_memory_of(config: DictConfig, shape: ModelShape, gpu: float = 80e9) -> MemoryEstimate:
    """The same for a composed recipe of `rag-r1 sft`; nothing is offloaded, and there is no vLLM."""
    model, tokens = config.model, int(config.data.max_token_len_per_gpu)
    role = Trained(
        shape,
        bytes_of(config.engine.model_dtype),
        gpu_count(config),
        fused=bool(model.get("use_fused_kernels")),
        sdpa=_is_sdpa(model),
        checkpointed=bool(model.enable_gradient_checkpointing),
    )
    parts = {**role.frozen, "optimizer": role.optimizer, **role.passing(tokens, backward=True)}
    if config.trainer.device == "cpu":
        return MemoryEstimate((), 0, tokens, sum(parts.values()), gpu)
    return MemoryEstimate((Phase("update", {"contexts": CONTEXT, **parts}),), 0, tokens, 0, gpu)


def _policy(config: DictConfig, shape: ModelShape) -> Trained:
    model, rank = config.actor_rollout_ref.model, adapter_rank(config)
    return Trained(
        shape,
        bytes_of(_dtype(config.actor_rollout_ref.actor)),
        gpu_count(config),
        shape.adapters(rank, model.target_modules) if rank else 0,
        is_nf4(config),
        bool(model.get("use_fused_kernels")),
        _is_sdpa(model),
        checkpointed=bool(model.enable_gradient_checkpointing),
    )


def _critic(config: DictConfig, shape: ModelShape) -> Trained | None:
    if not needs_critic(config):
        return None
    model = config.critic.model
    return Trained(
        shape,
        bytes_of(_dtype(config.critic)),
        gpu_count(config),
        sdpa=_is_sdpa(model),
        values=True,
        checkpointed=bool(model.enable_gradient_checkpointing),
    )


def _phases(
    config: DictConfig, shape: ModelShape, actor: Trained, critic: Trained | None, row: int, gpu: float
) -> Iterator[Phase]:
    """Generation first, then the phases of a step in their order."""
    policy, rollout = config.actor_rollout_ref, config.actor_rollout_ref.rollout
    contexts = {"contexts": HELD}
    actor_idle_bytes = _idle_bytes(policy.actor, actor)
    critic_idle_bytes = _idle_bytes(config.critic, critic) if critic else 0.0
    idle = {**contexts, "kept by other roles": actor_idle_bytes + critic_idle_bytes}
    vllm = vllm_parts(
        shape,
        _tensor_parallel(rollout),
        int(rollout.max_num_batched_tokens or 8192),
        int(rollout.max_num_seqs or 256),
    )
    cache = max(0.0, float(rollout.gpu_memory_utilization) * gpu - sum(vllm.values()))
    yield Phase("generation", {**idle, **vllm, "cache": cache})
    acting = {**contexts, "kept by other roles": critic_idle_bytes, **actor.frozen}
    bucket = 1e6 * float(rollout.checkpoint_engine.update_weights_bucket_megabytes)
    transfer = {"vLLM's weights": vllm["vLLM's weights"], "bucket": bucket}
    # nf4 weights are dequantised where they are, one at a time.
    yield Phase("weights to vLLM", (idle if actor.nf4 else acting) | transfer)
    if config.trainer.get("val_only"):
        return
    tokens = _tokens(rollout, row, "log_prob_")
    moments = 0.0 if _offloads(policy.actor, "optimizer") else actor.optimizer
    yield Phase("log-probs", acting | {"optimizer": moments} | actor.passing(tokens, backward=False))
    if needs_reference(config) and not actor.adapters:
        tokens = _tokens(policy.ref, row, "log_prob_")
        yield Phase("reference", idle | actor.passing(tokens, backward=False))
    if critic:
        training = {**contexts, **critic.frozen, "optimizer": critic.optimizer}
        training["kept by other roles"] = actor_idle_bytes
        yield Phase("critic", training | critic.passing(_tokens(config.critic, row), backward=True))
    training = acting | {"optimizer": actor.optimizer}
    yield Phase("update", training | actor.passing(_tokens(policy.actor, row), backward=True))


def _idle_bytes(role: DictConfig, trained: Trained) -> float:
    """Bytes that an idle role leaves on a GPU while others compute."""
    weights = 0.0 if _offloads(role, "param") else sum(trained.frozen.values())
    return weights + (0.0 if _offloads(role, "optimizer") else trained.optimizer)


def _offloads(role: DictConfig, kind: str) -> bool:
    """Whether a role moves its parameters (`param`) or its moments (`optimizer`) to the host."""
    return any(
        (role.get(engine) or {}).get(f"{kind}_offload") for engine in ("fsdp_config", "fsdp", "megatron")
    )


def _host(config: DictConfig, shape: ModelShape, actor: Trained, critic: Trained | None) -> float:
    """Bytes of a node's host memory for weights and moments: of the roles, and of a vLLM that sleeps with
    its weights, as it does beside adapters."""
    policy, parameters, gpus = config.actor_rollout_ref, shape.parameters, gpu_count(config)
    trains = not config.trainer.get("val_only")
    # With adapters the reference is the policy without them.
    has_reference = trains and needs_reference(config) and not actor.adapters
    size = float(parameters * bytes_of(_dtype(policy.ref))) if has_reference else 0.0
    if config.trainer.device == "cpu":
        return size + 4 * parameters
    for role in [actor, critic] if trains else [actor]:
        if role is not None:
            moments = role.optimizer * 2 / 3 if trains else 0.0  # without the gradients, which are not kept
            size += (sum(role.frozen.values()) + moments) * gpus
    if actor.adapters and not (policy.model.get("lora") or {}).get("merge"):
        size += 2 * parameters / _tensor_parallel(policy.rollout) * gpus
    return size / int(config.trainer.nnodes)


def _on_cpu(config: DictConfig, actor: Trained, critic: Trained | None, row: int) -> float:
    """Bytes of policy and critic on a CPU, at the peaks of their updates."""
    roles = [(actor, config.actor_rollout_ref.actor), *([(critic, config.critic)] if critic else [])]
    return sum(
        sum(role.frozen.values())
        + role.optimizer
        + sum(role.passing(_tokens(keys, row), backward=True).values())
        for role, keys in roles
    )


def _tensor_parallel(rollout: DictConfig) -> int:
    """GPUs that share a replica of vLLM."""
    return int(rollout.tensor_model_parallel_size or 1)


def _dtype(role: DictConfig) -> object:
    """`model_dtype` of the actor, the reference or the critic."""
    return OmegaConf.select(role, "fsdp_config.model_dtype") or OmegaConf.select(role, "fsdp.model_dtype")


def _is_sdpa(model: DictConfig) -> bool:
    """Whether packed rows go through PyTorch's attention, which needs a mask of all pairs of tokens."""
    return (
        bool(model.use_remove_padding)
        and OmegaConf.select(model, "override_config.attn_implementation") == "sdpa"
    )


def _tokens(role: DictConfig, row: int, prefix: str = "ppo_") -> int:
    """Tokens of a micro batch: the limit, or rows of the longest length. `prefix`: of the role's keys for
    updates (`ppo_`) or for log-probabilities (`log_prob_`)."""
    if role.get("log_prob_use_dynamic_bsz" if prefix == "log_prob_" else "use_dynamic_bsz"):
        return int(role.get(f"{prefix}max_token_len_per_gpu") or row)
    return int(role.get(f"{prefix}micro_batch_size_per_gpu") or 1) * row
