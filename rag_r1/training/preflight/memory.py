"""Estimates the memory of a training from its configuration and the shape of its model.

Everything is an estimate. GB are 10^9 bytes, P the number of parameters, b the bytes of `model_dtype` (4 for
veRL's default fp32, 2 for bf16), g the GPUs that share a model. A GPU alternates between training and
generation. Of a process that trains:

    weights      P b / g
    state        all weights trained: 3 P b / g, gradients and Adam's two moments in the dtype of the weights;
                 adapters of p values: 4 p b / g, with themselves
    gathered     bf16 copies for computing: the embeddings, and two layers at a time; twice as much again for
                 their gradients, in fp32, if all weights are trained
    activations  with gradient checkpointing the inputs of all layers, 2 T L h, and one layer's own values,
                 twice (forward again, and backward)
    logits       10 T V: bf16, fp32 and the gradient; with fused kernels of a piece of 512 tokens only
    contexts     3 GB: CUDA contexts of trainer and vLLM, and what a sleeping vLLM keeps

T are the tokens of a micro batch, L layers of width h, V the vocabulary. vLLM takes `gpu_memory_utilization`
of a GPU: 2 P / TP for its weights, and what is left for its cache.

**Known error.** One point is measured, on an H100: `rag_r1/grpo` with `platform=gpu_sdpa` and 1.5 billion
parameters had 45.4 GB in use at the highest seen in its update, which did not finish; up to 4 GB of that were
other jobs'. Calculated: 35.1, which is 15 to 23 % less. The mask of PyTorch's attention, what the allocator
holds without using it, and gradients that are not reduced yet are not in the formula.
"""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import DictConfig, OmegaConf

from rag_r1.training.preflight.adapters import adapter_rank
from rag_r1.training.preflight.cluster import gpu_count, needs_reference
from rag_r1.training.preflight.sessions import needs_critic

#: Bytes of a CUDA context of the trainer, one of vLLM, and of what it keeps asleep.
CONTEXTS = 3e9
#: Bytes of a logit: bf16, fp32, and its gradient.
LOGIT_BYTES = 10
#: Tokens whose logits veRL's fused layer has at a time (utils/experimental/torch_functional.py,
#: `FusedLinearForPPO`).
FUSED_TOKENS = 512


@dataclass(frozen=True)
class ModelShape:
    """A decoder of the Qwen2 or Llama family, by the names of its config.json."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocabulary: int
    tied: bool
    head: int = 128
    biases: bool = True

    @property
    def attention(self) -> tuple[int, int]:
        """Widths of the queries, and of keys and of values."""
        return self.heads * self.head, self.kv_heads * self.head

    @property
    def layer(self) -> int:
        """Parameters of a layer."""
        q, kv = self.attention
        biases = q + 2 * kv if self.biases else 0
        return self.hidden * (2 * q + 2 * kv) + biases + 3 * self.hidden * self.intermediate + 2 * self.hidden

    @property
    def embeddings(self) -> int:
        """Parameters of the embeddings, at both ends."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.embeddings + self.layers * self.layer + self.hidden

    @property
    def cached_bytes(self) -> int:
        """Bytes of a token in vLLM's cache, in 16 bits."""
        return 2 * self.layers * self.attention[1] * 2

    def adapters(self, rank: int, targets: object) -> int:
        """Parameters of LoRA adapters of this rank."""
        q, kv = self.attention
        h, inner = self.hidden, self.intermediate
        sizes = {
            "q_proj": h + q, "k_proj": h + kv, "v_proj": h + kv, "o_proj": q + h,
            "gate_proj": h + inner, "up_proj": h + inner, "down_proj": inner + h,
        }  # fmt: skip
        chosen = sizes if isinstance(targets, str) else {name: sizes[name] for name in targets}
        return self.layers * rank * sum(chosen.values())


#: The public configurations.
SHAPES = {
    shape.name: shape
    for shape in (
        ModelShape("1.5B", 28, 1536, 8960, 12, 2, 151_936, tied=True),
        ModelShape("3B", 36, 2048, 11_008, 16, 2, 151_936, tied=True),
        ModelShape("7B", 28, 3584, 18_944, 28, 4, 152_064, tied=False),
        ModelShape("14B", 48, 5120, 13_824, 40, 8, 152_064, tied=False),
        ModelShape("32B", 64, 5120, 27_648, 40, 8, 152_064, tied=False),
        ModelShape("Llama 8B", 32, 4096, 14_336, 32, 8, 128_256, tied=False, biases=False),
        ModelShape("135M", 30, 576, 1536, 9, 3, 49_152, tied=True, head=64, biases=False),
        ModelShape("demo", 4, 128, 384, 4, 4, 1017, tied=True, head=32),
    )
}


@dataclass(frozen=True)
class MemoryEstimate:
    """In bytes. `update`: a GPU at the peak of the policy's update; `critic`: of the critic's, 0 without one;
    `weights`: vLLM's on a GPU; `cache`: left for its cache on a GPU; `rows`: rows of the longest context in
    the cache; `host`: host memory of a node's trainers, offloaded and vLLM's sleeping weights included. On a
    CPU everything is in `host`, and `cache` is not counted."""

    update: float
    critic: float
    weights: float
    cache: float
    rows: float
    host: float


def bytes_of(dtype: object) -> int:
    """Bytes of a value of `model_dtype`."""
    return 4 if str(dtype) in ("fp32", "float32", "None") else 2


def memory_of(config: DictConfig, shape: ModelShape, gpu_bytes: float = 80e9) -> MemoryEstimate:
    """Memory of a composed recipe of `rag-r1 train`, with a model of this shape."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    model, gpus, p = config.actor_rollout_ref.model, gpu_count(config), shape.parameters
    lora, rank = model.get("lora") or {}, adapter_rank(config)
    adapters = shape.adapters(rank, model.target_modules) if rank else 0
    row = config.data.max_prompt_length + config.data.max_response_length
    on_cpu = config.trainer.device == "cpu"
    contexts = 0.0 if on_cpu else CONTEXTS
    each, of_critic = bytes_of(_dtype(actor)), bytes_of(_dtype(config.critic))
    update = contexts + training_bytes(
        shape,
        each,
        gpus,
        _tokens(actor, row),
        adapters=adapters,
        fused=bool(model.get("use_fused_kernels")),
        checkpointed=bool(model.enable_gradient_checkpointing),
    )
    critic = 0.0
    if needs_critic(config):
        checkpointed = bool(config.critic.model.enable_gradient_checkpointing)
        tokens = _tokens(config.critic, row)
        critic = contexts + training_bytes(
            shape, of_critic, gpus, tokens, values=True, checkpointed=checkpointed
        )
    # With adapters the reference is the policy without them.
    reference = needs_reference(config) and not rank
    kept = p * bytes_of(_dtype(config.actor_rollout_ref.ref)) if reference else 0
    if on_cpu:
        return MemoryEstimate(0, 0, 4 * p, 0, 0, kept + update + critic + 4 * p)
    if config.trainer.get("val_only"):
        update, critic, kept = 0.0, 0.0, 0  # weights are loaded, and nothing is trained
    kept += p * each + 2 * adapters * each if rank or not update else 3 * p * each
    kept += 3 * p * of_critic if critic else 0
    tp = int(rollout.tensor_model_parallel_size)
    if rank and not lora.get("merge"):
        kept += 2 * p / tp * gpus  # vLLM sleeps without giving its weights up
    cache = max(0.0, float(rollout.gpu_memory_utilization) * gpu_bytes - 2 * p / tp)
    longest = int(rollout.max_model_len or row)
    rows = cache / (longest * shape.cached_bytes / min(tp, shape.kv_heads))
    return MemoryEstimate(update, critic, 2 * p / tp, cache, rows, kept / int(config.trainer.nnodes))


def sft_memory_of(config: DictConfig, shape: ModelShape) -> MemoryEstimate:
    """The same for a composed recipe of `rag-r1 sft`; nothing is offloaded, and there is no engine."""
    gpus = gpu_count(config)
    tokens = int(config.data.max_token_len_per_gpu)
    fused = bool(config.model.get("use_fused_kernels"))
    checkpointed = bool(config.model.enable_gradient_checkpointing)
    each = bytes_of(config.engine.model_dtype)
    update = training_bytes(shape, each, gpus, tokens, fused=fused, checkpointed=checkpointed)
    if config.trainer.device == "cpu":
        return MemoryEstimate(0, 0, 0, 0, 0, update)
    return MemoryEstimate(update + CONTEXTS, 0, 0, 0, 0, 0)


def training_bytes(
    shape: ModelShape,
    each: int,
    gpus: int,
    tokens: int,
    *,
    adapters: int = 0,
    fused: bool = False,
    values: bool = False,
    checkpointed: bool = True,
) -> float:
    """Bytes on a GPU at the peak of an update, without contexts; see the top of the module. `values`: a
    critic, which has one value a token in place of logits; `checkpointed`: gradient checkpointing."""
    p, (q, kv) = shape.parameters, shape.attention
    state = 4 * adapters * each / gpus if adapters else 3 * p * each / gpus
    gathered = (shape.embeddings + 2 * shape.layer) * (2 if adapters else 2 + 4)
    layer = 2 * tokens * (4 * shape.hidden + q + 2 * kv + 3 * shape.intermediate)
    inputs = 2 * tokens * shape.layers * shape.hidden
    activations = inputs + 2 * layer if checkpointed else shape.layers * layer
    at_once = 0 if values else min(tokens, FUSED_TOKENS) if fused else tokens
    logits = LOGIT_BYTES * shape.vocabulary * at_once
    return p * each / gpus + state + gathered + activations + logits


def _dtype(role: DictConfig) -> object:
    """`model_dtype` of the actor, the reference or the critic."""
    return OmegaConf.select(role, "fsdp_config.model_dtype") or OmegaConf.select(role, "fsdp.model_dtype")


def _tokens(role: DictConfig, row: int) -> int:
    """Tokens of a micro batch: the limit, or rows of the longest length."""
    if role.get("use_dynamic_bsz"):
        return int(role.ppo_max_token_len_per_gpu)
    return int(role.get("ppo_micro_batch_size_per_gpu") or 1) * row
