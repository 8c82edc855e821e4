"""The formulas for the memory of a GPU in each phase of a training.

vLLM and the trainer alternate on a GPU. The memory of a phase is the sum of its components (`COMPONENTS`),
which estimate.py selects. Among them are the weights and moments of other roles, unless `param_offload` and
`optimizer_offload` move them to the host. In the following, a model has P parameters of b bytes (4 for veRL's
default `model_dtype`, fp32), shared by g GPUs, in L layers, and a vocabulary of V tokens. A layer has the
width h, its queries q, its keys k, and its MLP m. A micro-batch has T tokens. The components, with their
sources:

    contexts      HELD: CUDA contexts of trainer and vLLM, memory of a sleeping vLLM, memory not given back;
                  without vLLM CONTEXT
    weights       P b / g; in nf4 .516 bytes for each weight of the linear layers, whole on each GPU
                  (bitsandbytes: 4 bits, an absmax of 8 bits for 64 weights, one of 32 for 256 of these)
    adapters      p values of b bytes, on g GPUs; over nf4 4 p bytes, whole on each
    optimizer     gradients and Adam's two moments: three times the trained weights
    copies        bf16 for computing: the embeddings and two layers (FSDP's units, `get_fsdp_wrap_policy` of
                  veRL), and their gradients in fp32 if all weights are trained; over nf4 two linear layers
    activations   the inputs of all layers, 2 T L h, and the values of one layer, 2 T (4 h + q + 2 k + 3 m),
                  twice (recomputed, and in the backward pass); without gradients these once, without
                  checkpointing those of all layers
    mask          4 T^2 with PyTorch's attention over packed rows: a mask of bytes, its inverse, and bf16
                  (`sdpa_mask` of transformers; `convert_boolean_attn_mask` of PyTorch)
    logits        10 T V (bf16, fp32, the gradient), 6 T V without gradients; fused: 24 and 16 bytes for 512
                  tokens at a time (veRL's utils/experimental/torch_functional.py, `FusedLinearForPPO`)
    allocator     memory that PyTorch's allocator reserves but does not use: SLACK of the four above, except
                  for logits that are not fused, which have separate blocks
    vLLM          2 P / TP, values of `max_num_batched_tokens`, logits of `max_num_seqs`, 10 V for each
                  (bf16, fp32, probabilities in fp32); its cache has the rest of `gpu_memory_utilization`
    bucket        the buffer in which weights are sent (`update_weights_bucket_megabytes`)

Three constants were measured on one H100 (docs/results/gpu.md); everything else is calculated. HELD and SLACK
were fitted to a single run with 1.5 billion parameters: HELD to the phase in which nothing else is on the
GPU, and SLACK to three phases at once. CONTEXT is from another run, the only one with adapters, which was cut
short. It is not known how HELD changes with the model, the GPU or vLLM's settings. Logits that are not fused,
nf4 and several GPUs were never measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from rag_r1.training.preflight.memory.shape import ModelShape

#: Bytes of the component `contexts` with vLLM; fitted.
HELD = 7.2e9
#: Bytes of the component `contexts` without vLLM: CUDA's context, NCCL and cuBLAS of one process. It is what
#: an H100 had in use beyond PyTorch's reserved memory after the first step (docs/results/gpu.md, "Adapters on
#: one GPU").
CONTEXT = 1.4e9
#: Memory that the allocator reserves in addition, as a share of that for computing a micro-batch; fitted.
SLACK = 0.35
#: Bytes of a weight in nf4 with double quantisation.
NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
#: Bytes of a logit in the trainer, by whether gradients are computed, and in vLLM's sampler.
LOGIT_BYTES, SAMPLER_BYTES = {True: 10, False: 6}, 10
#: Bytes of a logit in veRL's fused layer, by whether gradients are computed, and the number of tokens that it
#: processes at a time.
FUSED_BYTES, FUSED_TOKENS = {True: 24, False: 16}, 512
#: All components, in the order in which tables show them.
COMPONENTS = (
    *("contexts", "weights", "adapters", "optimizer", "kept by other roles"),
    *("copies", "activations", "mask", "logits", "allocator"),
    *("vLLM's weights", "vLLM's values", "bucket", "cache"),
)


def dtype_bytes(dtype: object) -> int:
    """Return the bytes of a value of this `model_dtype`: 4 for 32 bits and for None, veRL's default, else
    2."""
    return 4 if str(dtype) in ("32", "fp32", "float32", "None") else 2


@dataclass(frozen=True)
class RoleMemory:
    """The memory on a GPU of a role that computes or is trained, and the settings on which it depends."""

    shape: ModelShape
    #: Bytes of a value in `model_dtype`.
    value_bytes: int = 4
    #: The number of GPUs that share the weights.
    gpus: int = 1
    #: The number of parameters of the adapters; 0 if all weights are trained.
    adapters: int = 0
    #: Whether the weights are in nf4.
    nf4: bool = False
    #: Whether veRL's fused layer computes the logits.
    fused: bool = False
    #: Whether packed rows go through PyTorch's attention.
    sdpa: bool = False
    #: Whether this is the critic, whose head has no logits.
    is_critic: bool = False
    #: Whether gradients are computed with checkpointing.
    checkpointed: bool = True

    @property
    def parameter_parts(self) -> dict[str, float]:
        """The bytes of the weights and of the adapters, by component."""
        parameters, linear = self.shape.parameters, self.shape.linear_parameters
        if self.nf4:
            return {"weights": linear * NF4_BYTES + (parameters - linear) * 2, "adapters": 4 * self.adapters}
        shared_bytes = self.value_bytes / self.gpus
        return {"weights": parameters * shared_bytes, "adapters": self.adapters * shared_bytes}

    @property
    def optimizer_bytes(self) -> float:
        """The bytes of the gradients and moments."""
        trained_parameters = self.adapters or self.shape.parameters
        return 3 * trained_parameters * (4 if self.nf4 else self.value_bytes / self.gpus)

    def computing_parts(self, tokens: int, *, backward: bool) -> dict[str, float]:
        """Return the bytes, by component, that a micro-batch of `tokens` needs while it is computed.
        `backward` says whether gradients are computed."""
        shape, (q, kv) = self.shape, self.shape.projection_widths
        fused = self.fused and not self.is_critic
        copied_parameters = shape.embedding_parameters + 2 * shape.layer_parameters
        copies = copied_parameters * (6 if backward and not self.adapters else 2)
        if self.nf4:
            copies = 2 * 2 * shape.hidden_size * shape.intermediate_size
        layer = 2 * tokens * (4 * shape.hidden_size + q + 2 * kv + 3 * shape.intermediate_size)
        activations = 2 * tokens * shape.layers * shape.hidden_size + 2 * layer
        if not self.checkpointed:
            activations = shape.layers * layer
        logit_bytes = (FUSED_BYTES if fused else LOGIT_BYTES)[backward]
        logit_tokens = min(tokens, FUSED_TOKENS) if fused else tokens
        parts = {
            "copies": copies,
            "activations": activations if backward else layer,
            "mask": 4 * tokens**2 if self.sdpa else 0,
            "logits": 0 if self.is_critic else logit_bytes * shape.vocabulary * logit_tokens,
        }
        # Logits that are not fused have separate blocks, in which the allocator wastes nothing.
        block_bytes = 0 if fused else parts["logits"]
        return {**parts, "allocator": SLACK * (sum(parts.values()) - block_bytes)}


def vllm_parts(shape: ModelShape, gpus: int, *, step_tokens: int, sequences: int) -> dict[str, float]:
    """Return the bytes, by component, on each of the `gpus` that share a vLLM: of its weights, and of the
    values of a step with at most `step_tokens` tokens of at most `sequences` sequences."""
    values = RoleMemory(shape).computing_parts(step_tokens, backward=False)["activations"]
    logits = SAMPLER_BYTES * sequences * shape.vocabulary
    return {"vLLM's weights": 2 * shape.parameters / gpus, "vLLM's values": (values + logits) / gpus}


def cached_contexts(shape: ModelShape, gpus: int, cache_bytes: float, context_tokens: int) -> float:
    """Return how many contexts of `context_tokens` fit into a cache of `cache_bytes` on each of the `gpus`,
    which share the heads of keys and values."""
    return cache_bytes / (context_tokens * shape.cache_bytes_per_token / min(gpus, shape.kv_heads))
