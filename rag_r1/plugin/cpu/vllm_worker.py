"""A vLLM worker on a CPU whose weights can be replaced repeatedly.

veRL sends the actor's weights to vLLM in buckets and calls ``model.load_weights`` for each of them. vLLM's
CPU build packs the weights of a linear layer for oneDNN after the first load and drops ``layer.weight``
(vllm/model_executor/layers/utils.py, `dispatch_cpu_unquantized_gemm`), so a second load would find no
parameter to write to. vLLM's own ``reload_weights`` restores the layers first and packs them again, but needs
all weights at once. So the extension below collects the buckets and passes them on together. During the
transfer it holds a second copy of the weights, which is affordable for the small models of a CPU recipe.

A head that is tied to the embedding receives no weights, so ``reload_weights`` would leave it packed with
vLLM's random initial weights (vllm/model_executor/models/llama.py, `LlamaForCausalLM`; Qwen's head is the
embedding itself). Therefore it is packed again after each transfer.

``actor_rollout_ref.rollout.engine_kwargs.vllm.worker_extension_cls`` selects this worker.
"""

from __future__ import annotations

import torch
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead


class CPUWorkerExtension(vLLMColocateWorkerExtension):
    """veRL's worker extension with weight transfer on a CPU."""

    def update_weights_from_ipc(
        self, peft_config: dict | None = None, base_sync_done: bool = False, use_shm: bool = False
    ) -> None:
        """Replace the weights with those that the trainer sends. Raises NotImplementedError if the trainer
        sends LoRA adapters, which vLLM's CPU build cannot load."""
        if peft_config:
            raise NotImplementedError(
                "vLLM's CPU build cannot load LoRA adapters: set actor_rollout_ref.model.lora.merge=true, or"
                " train all weights with actor_rollout_ref.model.lora_rank=0"
            )
        weights: list[tuple[str, torch.Tensor]] = []
        BucketedWeightReceiver(
            zmq_handle=self._get_zmq_handle(), device=self.device, use_shm=use_shm
        ).receive_weights(
            # The weights are copied because all buckets share one buffer.
            on_bucket_received=lambda bucket, is_last: weights.extend((name, w.clone()) for name, w in bucket)
        )
        self.model_runner.reload_weights(weights_iterator=iter(weights))
        for module in self.model_runner.model.modules():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)
