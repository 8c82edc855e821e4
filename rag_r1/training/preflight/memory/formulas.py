"""The formulas: what a GPU holds in each phase of a training.

GB are 10^9 bytes. P parameters, b bytes of `model_dtype` (4 for veRL's default fp32), g GPUs that share a
model, T tokens of a micro-batch, L layers of width h, V the vocabulary. vLLM and the trainer alternate on a
GPU: a phase is the sum of its components (`COMPONENTS`; estimate.py), among them what other roles keep unless
`param_offload` and `optimizer_offload` move it to the host. Source of each:

    contexts      HELD: CUDA contexts of trainer and vLLM, what a sleeping vLLM keeps, what is not given back
    weights       P b / g; in nf4 .516 bytes for each weight of the linear layers, whole on each GPU
                  (bitsandbytes: 4 bits, an absmax of 8 bits for 64 weights, one of 32 for 256 of these)
    adapters      p values of b bytes, on g GPUs; over nf4 4 p bytes, whole on each
    optimizer     gradients and Adam's two moments: three times the weights that are trained
    copies        bf16 for computing: the embeddings and two layers (FSDP's units, `get_fsdp_wrap_policy` of
                  veRL), and their gradients in fp32 if all weights are trained; over nf4 two linear layers
    activations   the inputs of all layers, 2 T L h, and a layer's own values twice (computed again, and
                  backward); without gradients the values once, without checkpointing those of all layers
    mask          4 T^2 with PyTorch's attention over packed rows: a mask of bytes, its inverse, and bf16
                  (`sdpa_mask` of transformers; `convert_boolean_attn_mask` of PyTorch)
    logits        10 T V (bf16, fp32, the gradient), 6 T V without gradients; fused: 24 and 16 bytes for 512
                  tokens at a time (veRL's utils/experimental/torch_functional.py, `FusedLinearForPPO`)
    allocator     SLACK of the four above: what PyTorch's allocator reserves and does not use; not of
                  logits that are not fused, which are blocks of their own
    vLLM          2 P / TP, values of `max_num_batched_tokens`, logits of `max_num_seqs`; its cache has the
                  rest of `gpu_memory_utilization`
    bucket        what weights are sent in (`update_weights_bucket_megabytes`)

**Fitted on one run** (docs/results/gpu.md, 1.5 billion parameters on one H100): HELD to the phase in which
nothing but it is on the GPU, and SLACK to three phases at once. Everything else is counted. No run tells how
HELD changes with the model, the GPU or vLLM's settings; logits that are not fused, adapters, nf4 and several
GPUs were never measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from rag_r1.training.preflight.memory.shape import ModelShape

#: Bytes beside weights, training and vLLM's share; fitted.
HELD = 7.2e9
#: Bytes of a trainer without vLLM: one CUDA context; a usual value, not measured here.
CONTEXT = 0.6e9
#: Share of what computing a micro-batch takes that the allocator reserves beside them; fitted.
SLACK = 0.35
#: Bytes of a weight in nf4 with double quantisation.
NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
#: Bytes of a logit, with and without gradients.
LOGIT_BYTES = (10, 6)
#: The same in veRL's fused layer, and the tokens that it has at a time.
FUSED_BYTES, FUSED_TOKENS = (24, 16), 512
COMPONENTS = (
    *("contexts", "weights", "adapters", "optimizer", "kept by other roles"),
    *("copies", "activations", "mask", "logits", "allocator"),
    *("vLLM's weights", "vLLM's values", "bucket", "cache"),
)


def dtype_bytes(dtype: object) -> int:
    """Bytes of a value of this `model_dtype`: 4 for 32 bits and for none, veRL's default, else 2."""
    return 4 if str(dtype) in ("32", "fp32", "float32", "None") else 2


@dataclass(frozen=True)
class RoleMemory:
    """The memory of a role that trains or computes, in bytes on a GPU, and what it depends on: `value_bytes`
    of `model_dtype`; `gpus` that share the weights; `adapters`, the number of their parameters; `is_critic`,
    whose head has no logits."""

    shape: ModelShape
    value_bytes: int = 4
    gpus: int = 1
    adapters: int = 0
    nf4: bool = False
    fused: bool = False
    sdpa: bool = False
    is_critic: bool = False
    checkpointed: bool = True

    @property
    def parameter_parts(self) -> dict[str, float]:
        """Bytes of the weights and of the adapters."""
        p, linear = self.shape.parameters, self.shape.linear
        if self.nf4:
            return {"weights": linear * NF4_BYTES + (p - linear) * 2, "adapters": 4 * self.adapters}
        shared_bytes = self.value_bytes / self.gpus
        return {"weights": p * shared_bytes, "adapters": self.adapters * shared_bytes}

    @property
    def optimizer_bytes(self) -> float:
        """Bytes of gradients and moments."""
        trained_parameters = self.adapters or self.shape.parameters
        return 3 * trained_parameters * (4 if self.nf4 else self.value_bytes / self.gpus)

    def computing_parts(self, tokens: int, *, backward: bool) -> dict[str, float]:
        """Bytes that a micro-batch of `tokens` needs by component while it is computed, with or without
        gradients."""
        shape, (q, kv) = self.shape, self.shape.attention
        fused = self.fused and not self.is_critic
        copied_parameters = shape.embeddings + 2 * shape.layer
        copies = copied_parameters * (2 + 4 * (backward and not self.adapters))
        if self.nf4:
            copies = 2 * 2 * shape.hidden * shape.intermediate
        layer = 2 * tokens * (4 * shape.hidden + q + 2 * kv + 3 * shape.intermediate)
        activations = 2 * tokens * shape.layers * shape.hidden + 2 * layer
        if not self.checkpointed:
            activations = shape.layers * layer
        logit_bytes = (FUSED_BYTES if fused else LOGIT_BYTES)[not backward]
        logit_tokens = min(tokens, FUSED_TOKENS) if fused else tokens
        parts = {
            "copies": copies,
            "activations": activations if backward else layer,
            "mask": 4 * tokens**2 if self.sdpa else 0,
            "logits": 0 if self.is_critic else logit_bytes * shape.vocabulary * logit_tokens,
        }
        # Logits that are not fused are blocks of their own.
        block_bytes = parts["logits"] if logit_tokens == tokens else 0
        return {**parts, "allocator": SLACK * (sum(parts.values()) - block_bytes)}


def vllm_parts(shape: ModelShape, gpus: int, *, step_tokens: int, sequences: int) -> dict[str, float]:
    """Bytes on each of the `gpus` that share a vLLM: of its weights, and of the values of a step with at most
    `step_tokens` of at most so many sequences."""
    values = RoleMemory(shape).computing_parts(step_tokens, backward=False)["activations"]
    logits = LOGIT_BYTES[0] * sequences * shape.vocabulary
    return {"vLLM's weights": 2 * shape.parameters / gpus, "vLLM's values": (values + logits) / gpus}


def cached_contexts(shape: ModelShape, gpus: int, cache_bytes: float, context_tokens: int) -> float:
    """How many contexts of so many tokens fit into a cache of `cache_bytes` on each of the `gpus`, which
    share the heads of keys and values."""
    return cache_bytes / (context_tokens * shape.cached_bytes / min(gpus, shape.kv_heads))
