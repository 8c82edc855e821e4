"""Estimates the memory of a GPU in each phase of a training, from the composed recipe and the model's shape.

The formulas, their sources and their accuracy are in formulas.py. Here the recipe is converted to the roles
that compute (actor, critic), and for each phase to the components that are on the GPU meanwhile: those that
are always there, those of idle roles that are not offloaded, and those of the role that computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from omegaconf import DictConfig, OmegaConf

from rag_r1.training.config_facts import adapter_rank, gpu_count, is_nf4, needs_critic, needs_reference
from rag_r1.training.preflight.memory import formulas
from rag_r1.training.preflight.memory.formulas import RoleMemory
from rag_r1.training.preflight.memory.shape import ModelShape

#: The assumed memory of a GPU in bytes, if it is not known.
H100_BYTES = 80e9


@dataclass(frozen=True)
class Phase:
    """The memory of a GPU at the peak of a phase."""

    name: str
    #: Component (`formulas.COMPONENTS`) -> bytes.
    parts: dict[str, float]

    @property
    def total_bytes(self) -> float:
        """The sum of all components."""
        return sum(self.parts.values(), 0.0)


@dataclass(frozen=True)
class MemoryEstimate:
    """The estimated memory of a training."""

    #: The phases on a GPU; none on a CPU.
    phases: tuple[Phase, ...]
    #: The number of contexts of `context_tokens` for which vLLM's cache has room.
    cached_contexts: float
    #: The longest context, in tokens.
    context_tokens: int
    #: Host memory of a node for the weights and moments of all roles, as if all were offloaded, and for the
    #: weights with which vLLM sleeps; on a CPU for everything.
    host_bytes: float
    #: The memory of a GPU.
    gpu_bytes: float = H100_BYTES

    def phase_bytes(self, name: str, part: str | None = None) -> float:
        """Return the bytes of a phase or of one of its components; 0 if there is none of that name."""
        phase = next((phase for phase in self.phases if phase.name == name), Phase(name, {}))
        return phase.total_bytes if part is None else phase.parts.get(part, 0.0)


def memory_of(
    config: DictConfig,
    shape: ModelShape,
    gpu_bytes: float = H100_BYTES,
    critic_shape: ModelShape | None = None,
) -> MemoryEstimate:
    """Estimate the memory of a composed recipe of `rag-r1 train` with a model of this shape, on GPUs of
    `gpu_bytes`. `critic_shape` is the critic's shape, if it differs from the policy's."""
    row_tokens = _row_tokens(config)
    actor = _actor_memory(config, shape)
    critic = _critic_memory(config, critic_shape or shape)
    host_bytes = _host_bytes(config, shape, actor, critic)
    if config.trainer.device == "cpu":
        host_bytes += _cpu_bytes(config, actor, critic)
        return MemoryEstimate((), 0, row_tokens, host_bytes, gpu_bytes)
    rollout = config.actor_rollout_ref.rollout
    context_tokens = int(rollout.max_model_len or row_tokens)
    generation, *other_phases = _phases(config, shape, actor, critic, gpu_bytes)
    cache_bytes = generation.parts["cache"]
    contexts = formulas.cached_contexts(shape, _tensor_parallel(rollout), cache_bytes, context_tokens)
    return MemoryEstimate((generation, *other_phases), contexts, context_tokens, host_bytes, gpu_bytes)


def sft_memory_of(config: DictConfig, shape: ModelShape, gpu_bytes: float = H100_BYTES) -> MemoryEstimate:
    """Estimate the memory of a composed recipe of `rag-r1 sft`, which offloads nothing and has no vLLM."""
    tokens = int(config.data.max_token_len_per_gpu)
    if not config.data.use_dynamic_bsz:
        tokens = int(config.data.micro_batch_size_per_gpu) * int(config.data.max_length)
    role = _role_memory(config, shape, config.model, config.engine.model_dtype)
    parts = {
        **role.parameter_parts,
        "optimizer": role.optimizer_bytes,
        **role.computing_parts(tokens, backward=True),
    }
    if config.trainer.device == "cpu":
        return MemoryEstimate((), 0, tokens, sum(parts.values()), gpu_bytes)
    update = Phase("update", {"contexts": formulas.CONTEXT, **parts})
    return MemoryEstimate((update,), 0, tokens, 0, gpu_bytes)


def _actor_memory(config: DictConfig, shape: ModelShape) -> RoleMemory:
    """Return the memory of the policy, and of its adapters if only these are trained."""
    model, rank = config.actor_rollout_ref.model, adapter_rank(config)
    adapters = shape.adapter_parameters(rank, model.target_modules) if rank else 0
    dtype = _model_dtype(config.actor_rollout_ref.actor)
    return _role_memory(config, shape, model, dtype, adapters=adapters, nf4=is_nf4(config))


def _critic_memory(config: DictConfig, shape: ModelShape) -> RoleMemory | None:
    """Return the memory of the critic; None if none is trained."""
    if not needs_critic(config):
        return None
    return _role_memory(config, shape, config.critic.model, _model_dtype(config.critic), is_critic=True)


def _role_memory(
    config: DictConfig,
    shape: ModelShape,
    model: DictConfig,
    dtype: object,
    *,
    adapters: int = 0,
    nf4: bool = False,
    is_critic: bool = False,
) -> RoleMemory:
    """Return the memory of a role, from its block `model` and its `model_dtype`."""
    return RoleMemory(
        shape,
        value_bytes=formulas.dtype_bytes(dtype),
        gpus=gpu_count(config),
        adapters=adapters,
        nf4=nf4,
        fused=bool(model.get("use_fused_kernels")),
        sdpa=_is_sdpa(model),
        is_critic=is_critic,
        checkpointed=bool(model.enable_gradient_checkpointing),
    )


def _row_tokens(config: DictConfig) -> int:
    """Return the number of tokens in the longest row of a training."""
    return int(config.data.max_prompt_length + config.data.max_response_length)


def _phases(
    config: DictConfig, shape: ModelShape, actor: RoleMemory, critic: RoleMemory | None, gpu_bytes: float
) -> Iterator[Phase]:
    """Yield the phases of a step in their order, beginning with generation."""
    policy = config.actor_rollout_ref
    idle_actor_bytes = _idle_bytes(policy.actor, actor)
    idle_critic_bytes = _idle_bytes(config.critic, critic) if critic else 0.0
    idle_parts = _held_parts(idle_actor_bytes + idle_critic_bytes)
    actor_parts = _held_parts(idle_critic_bytes, actor)
    rollout = policy.rollout
    vllm = _engine_parts(rollout, shape)
    cache_bytes = max(0.0, float(rollout.gpu_memory_utilization) * gpu_bytes - sum(vllm.values()))
    yield Phase("generation", {**idle_parts, **vllm, "cache": cache_bytes})
    bucket_bytes = 1e6 * float(rollout.checkpoint_engine.update_weights_bucket_megabytes)
    # Weights in nf4 stay where they are, and are dequantised one at a time.
    sender_parts = idle_parts if actor.nf4 else actor_parts
    transfer_parts = {"vLLM's weights": vllm["vLLM's weights"], "bucket": bucket_bytes}
    yield Phase("weights to vLLM", {**sender_parts, **transfer_parts})
    if not config.trainer.get("val_only"):
        yield from _training_phases(config, actor, critic, idle_parts, actor_parts)


def _held_parts(others_bytes: float, role: RoleMemory | None = None) -> dict[str, float]:
    """Return the components that are on a GPU before anything is computed, with `others_bytes` of idle roles
    and the weights of `role`."""
    weights = role.parameter_parts if role is not None else {}
    return {"contexts": formulas.HELD, "kept by other roles": others_bytes, **weights}


def _training_phases(
    config: DictConfig,
    actor: RoleMemory,
    critic: RoleMemory | None,
    idle_parts: dict[str, float],
    actor_parts: dict[str, float],
) -> Iterator[Phase]:
    """Yield the phases of a step after generation and the transfer of weights. `idle_parts` are on the GPU
    while no role computes, and `actor_parts` while the actor does."""
    policy, row_tokens = config.actor_rollout_ref, _row_tokens(config)
    moments_bytes = 0.0 if _offloads(policy.actor, "optimizer") else actor.optimizer_bytes
    tokens = _micro_batch_tokens(policy.rollout, row_tokens, "log_prob_")
    log_probs = actor.computing_parts(tokens, backward=False)
    yield Phase("log-probs", {**actor_parts, "optimizer": moments_bytes, **log_probs})
    if _has_reference_model(config, actor):
        tokens = _micro_batch_tokens(policy.ref, row_tokens, "log_prob_")
        yield Phase("reference", {**idle_parts, **actor.computing_parts(tokens, backward=False)})
    if critic:
        critic_parts = _held_parts(_idle_bytes(policy.actor, actor), critic)
        yield _update_phase("critic", critic_parts, critic, config.critic, row_tokens)
    yield _update_phase("update", actor_parts, actor, policy.actor, row_tokens)


def _update_phase(
    name: str, held_parts: dict[str, float], role: RoleMemory, role_config: DictConfig, row_tokens: int
) -> Phase:
    """Return the phase in which a role is updated. `held_parts` are on the GPU meanwhile."""
    computing = role.computing_parts(_micro_batch_tokens(role_config, row_tokens), backward=True)
    return Phase(name, {**held_parts, "optimizer": role.optimizer_bytes, **computing})


def _engine_parts(rollout: DictConfig, shape: ModelShape) -> dict[str, float]:
    """Return the components of vLLM on a GPU without its cache, with vLLM's defaults for unset keys."""
    step_tokens = int(rollout.max_num_batched_tokens or 8192)
    sequences = int(rollout.max_num_seqs or 256)
    return formulas.vllm_parts(shape, _tensor_parallel(rollout), step_tokens=step_tokens, sequences=sequences)


def _idle_bytes(role_config: DictConfig, role: RoleMemory) -> float:
    """Return the bytes that an idle role keeps on a GPU while others compute."""
    weight_bytes = 0.0 if _offloads(role_config, "param") else sum(role.parameter_parts.values())
    return weight_bytes + (0.0 if _offloads(role_config, "optimizer") else role.optimizer_bytes)


def _offloads(role_config: DictConfig, kind: str) -> bool:
    """Return whether a role moves its parameters (`param`) or its moments (`optimizer`) to the host."""
    engines = (role_config.get(engine) or {} for engine in ("fsdp_config", "fsdp", "megatron"))
    return any(engine.get(f"{kind}_offload") for engine in engines)


def _has_reference_model(config: DictConfig, actor: RoleMemory) -> bool:
    """Return whether a reference policy has separate weights. With adapters it is the policy without
    them."""
    return needs_reference(config) and not actor.adapters


def _host_bytes(config: DictConfig, shape: ModelShape, actor: RoleMemory, critic: RoleMemory | None) -> float:
    """Return the bytes of a node's host memory for the weights and moments of the roles and, with adapters,
    for the weights with which vLLM sleeps. On a CPU they are those of the reference and of vLLM."""
    policy, parameters, gpus = config.actor_rollout_ref, shape.parameters, gpu_count(config)
    trains = not config.trainer.get("val_only")
    host_bytes = 0.0
    if trains and _has_reference_model(config, actor):
        host_bytes = float(parameters * formulas.dtype_bytes(_model_dtype(policy.ref)))
    if config.trainer.device == "cpu":
        return host_bytes + 4 * parameters  # vLLM's weights, in fp32 there (recipes/platform/cpu.yaml)
    for role in [actor, critic] if trains else [actor]:
        if role is not None:
            # Without the gradients, a third of the optimizer's bytes, which are not kept.
            moments_bytes = role.optimizer_bytes * 2 / 3 if trains else 0.0
            host_bytes += (sum(role.parameter_parts.values()) + moments_bytes) * gpus
    if actor.adapters and not (policy.model.get("lora") or {}).get("merge"):
        host_bytes += 2 * parameters / _tensor_parallel(policy.rollout) * gpus
    return host_bytes / int(config.trainer.nnodes)


def _cpu_bytes(config: DictConfig, actor: RoleMemory, critic: RoleMemory | None) -> float:
    """Return the bytes of policy and critic on a CPU, at the peaks of their updates."""
    roles = [(actor, config.actor_rollout_ref.actor), *([(critic, config.critic)] if critic else [])]
    return sum(
        _update_phase("update", role.parameter_parts, role, role_config, _row_tokens(config)).total_bytes
        for role, role_config in roles
    )


def _tensor_parallel(rollout: DictConfig) -> int:
    """Return the number of GPUs that share a replica of vLLM."""
    return int(rollout.tensor_model_parallel_size or 1)


def _model_dtype(role_config: DictConfig) -> object:
    """Return `model_dtype` of the actor, the reference or the critic."""
    dtypes = (OmegaConf.select(role_config, f"{engine}.model_dtype") for engine in ("fsdp_config", "fsdp"))
    return next(filter(None, dtypes), None)


def _is_sdpa(model: DictConfig) -> bool:
    """Return whether packed rows go through PyTorch's attention, which needs a mask of all pairs of
    tokens."""
    attention = OmegaConf.select(model, "override_config.attn_implementation")
    return bool(model.use_remove_padding) and attention == "sdpa"


def _micro_batch_tokens(role_config: DictConfig, row_tokens: int, prefix: str = "ppo_") -> int:
    """Return the number of tokens in a micro-batch: the configured limit, or that of rows of the longest
    length. `prefix` is that of the role's keys for updates (`ppo_`) or for log-probabilities
    (`log_prob_`)."""
    if role_config.get("log_prob_use_dynamic_bsz" if prefix == "log_prob_" else "use_dynamic_bsz"):
        return int(role_config.get(f"{prefix}max_token_len_per_gpu") or row_tokens)
    return int(role_config.get(f"{prefix}micro_batch_size_per_gpu") or 1) * row_tokens
