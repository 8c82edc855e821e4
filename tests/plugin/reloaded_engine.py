"""vLLM on a CPU starts with random weights and is sent those of a model, twice, as in a training.

    python -m tests.plugin.reloaded_engine MODEL

prints the log-probs of the tokens that it then generates greedily, as JSON: [[token, log-prob], ...].
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

PROMPT, TOKENS = [5, 6, 7, 8], 6


class FileReceiver:
    """In place of veRL's receiver of buckets: the tensors of a file."""

    def __init__(self, model: str, **_: Any) -> None:
        self.model = model

    def receive_weights(self, on_bucket_received: Callable[[list, bool], None]) -> None:
        from safetensors.torch import load_file

        on_bucket_received(list(load_file(f"{self.model}/model.safetensors").items()), True)


def send_weights(worker: Any, model: str) -> None:
    from rag_r1.plugin.cpu import vllm_worker

    vllm_worker.BucketedWeightReceiver = partial(FileReceiver, model)
    worker.update_weights_from_ipc()


def main() -> None:
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # so that a worker can be sent a function
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }
    from vllm import LLM, SamplingParams

    model = sys.argv[1]
    engine = LLM(
        model=model,
        load_format="dummy",
        dtype="float32",
        enforce_eager=True,
        skip_tokenizer_init=True,
        max_model_len=64,
        max_num_seqs=2,
        worker_extension_cls="rag_r1.plugin.cpu.vllm_worker.CPUWorkerExtension",
    )
    for _ in range(2):
        engine.collective_rpc(send_weights, args=(model,))
    sampling = SamplingParams(temperature=0, max_tokens=TOKENS, logprobs=0, detokenize=False, ignore_eos=True)
    (reply,) = engine.generate([{"prompt_token_ids": PROMPT}], sampling)[0].outputs
    pairs = [
        (token, of_token[token].logprob)
        for token, of_token in zip(reply.token_ids, reply.logprobs, strict=True)
    ]
    print(json.dumps(pairs))


if __name__ == "__main__":
    main()
