"""An engine for the schedules: vLLM with a demo policy, on the demo's two-hop questions.

One `AsyncLLM` serves all schedules. Sampling is seeded by trajectory and turn, so that all schedules play the
same turns, as far as vLLM's arithmetic allows (its last bits depend on the other requests in the batch).
rollout.py uses it for its part `vllm`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from schedules import Job, Pause

from rag_r1.agent import Generation, TokenizerCodec
from rag_r1.demo.policy import policy_path, prompt_ids
from rag_r1.demo.world import Question, demo_protocol
from rag_r1.protocols import Protocol, control_tokens

#: The most tokens of an episode.
CONTEXT = 512

#: The same values as in recipes/platform/cpu.yaml, which gives the reasons.
_CPU = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}


class VllmEngine:
    """The engine of one trajectory, with its own request ids and seeds on a shared AsyncLLM."""

    def __init__(self, llm: Any, name: str, seed: int, temperature: float):
        self.llm, self.name, self.seed, self.temperature, self.turn = llm, name, seed, temperature, 0

    async def generate(self, context: list[int], max_tokens: int, stop: Sequence[str]) -> Generation:
        """Continue the context in vLLM up to a stop string, which is kept, or `max_tokens`."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self.turn += 1
        sampling = SamplingParams(
            temperature=self.temperature,
            seed=self.seed * 1000 + self.turn,
            max_tokens=max_tokens,
            stop=list(stop),
            include_stop_str_in_output=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        prompt = {"prompt_token_ids": list(context)}
        async for output in self.llm.generate(prompt, sampling, f"{self.name}-{self.turn}"):
            last = output
        return Generation(list(last.outputs[0].token_ids))


class JobFactory:
    """Makes the jobs of each run on the shared AsyncLLM."""

    def __init__(self, llm: Any, protocol: Protocol, tokenizer: Any):
        self.llm, self.protocol, self.tokenizer = llm, protocol, tokenizer
        self.codec = TokenizerCodec(tokenizer, cache_size=0)  # otherwise all runs but the first would profit
        self.runs = 0

    def jobs(self, questions: Sequence[Question], temperature: float, pauses: Sequence[Pause]) -> list[Job]:
        """Return a job for each question; `pauses` has a function that returns its searches' durations."""
        self.runs += 1
        return [
            Job(
                question.id,
                question.text,
                prompt_ids(self.tokenizer, self.protocol, self.protocol.messages(question.text)),
                VllmEngine(self.llm, f"{self.runs}-{index}", index, temperature),
                pause,
            )
            for index, (question, pause) in enumerate(zip(questions, pauses, strict=True))
        ]


@asynccontextmanager
async def real_engine(policy: Path | None, protocol_name: str, slots: int) -> AsyncIterator[JobFactory]:
    """Start vLLM with at most `slots` sequences per batch, and stop it at the end of the block.

    `policy` is a folder; None means the committed warm start.
    """
    for name, value in _CPU.items():
        os.environ.setdefault(name, value)
    from transformers import AutoTokenizer
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    folder = str(policy or policy_path(protocol_name))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    protocol = demo_protocol(protocol_name).with_special_tokens(control_tokens(tokenizer))
    llm = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=folder,
            dtype="float32",
            enforce_eager=True,
            max_model_len=CONTEXT,
            max_num_seqs=slots,
            # All sequences must fit at once: vLLM on a CPU crashes if it splits the prefill of a seeded
            # request.
            max_num_batched_tokens=slots * CONTEXT,
            disable_log_stats=True,
        )
    )
    try:
        yield JobFactory(llm, protocol, tokenizer)
    finally:
        llm.shutdown()
