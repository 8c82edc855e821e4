"""veRL's calls of the agent loop and the reward manager, with a scripted engine in the place of vLLM."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace

import numpy as np
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import DictConfigWrap
from verl.workers.rollout.replica import TokenOutput

from rag_r1.plugin.agent_loop import SearchAgentLoop
from rag_r1.plugin.reward_manager import SearchRewardManager
from rag_r1.protocols import Document, Failure

PROMPT_LENGTH, RESPONSE_LENGTH = 64, 400


class ScriptedClient:
    """Stands for veRL's generation client: answers with scripted texts, and keeps its requests."""

    def __init__(self, tokenizer, texts):
        self.tokenizer, self.texts, self.requests = tokenizer, list(texts), []

    async def generate(self, request_id, *, prompt_ids, sampling_params):
        self.requests.append((request_id, list(prompt_ids), sampling_params))
        text = self.texts[len(self.requests) - 1]
        if text is None:
            return TokenOutput(token_ids=[], stop_reason="aborted", extra_fields={})
        ids = self.tokenizer.encode(text, add_special_tokens=False)[: sampling_params["max_tokens"]]
        version = len(self.requests)
        return TokenOutput(
            token_ids=ids,
            log_probs=[-0.5] * len(ids),
            stop_reason="completed",
            extra_fields={"min_global_steps": version, "max_global_steps": version, "global_steps": version},
        )


class OneFact:
    def __init__(self, options):
        self.options = options

    async def search(self, queries):
        return [Failure("no answer") if q == "fail" else [Document("1", f'"{q}"\nfact')] for q in queries]


class Many:
    """Finds as many documents as the configuration says."""

    def __init__(self, options):
        self.topk = options["topk"]

    async def search(self, queries):
        return [[Document(str(i), "fact") for i in range(self.topk)] for _ in queries]


class Long:
    """Finds three passages of 600 characters."""

    def __init__(self, options):
        pass

    async def search(self, queries):
        texts = [f"Title {i}\n" + f"w{i} " * 200 for i in range(3)]
        return [
            [Document(str(i), f"{text} {random.random()}") for i, text in enumerate(texts)] for _ in queries
        ]


def config(prompt_length=PROMPT_LENGTH, response_length=RESPONSE_LENGTH, **rag_r1):
    return OmegaConf.create(
        {
            "actor_rollout_ref": {
                "rollout": {
                    "name": "vllm",
                    "prompt_length": prompt_length,
                    "response_length": response_length,
                    "max_model_len": prompt_length + response_length,
                }
            },
            "data": {},
            "rag_r1": {
                "protocol": "rag_r1_mq",
                "agent": {"max_turns": 2, "max_turn_tokens": 100},
                "retriever": {"tool": f"{__name__}:OneFact"},
                "failures": {"wait_s": 0},
                **rag_r1,
            },
        }
    )


async def run_loop(cfg, client, tokenizer, question="Who?", **row):
    """The output of the agent loop for a row of the data set."""
    trainer, data = DictConfigWrap(cfg), DictConfigWrap(cfg.data)
    loop = SearchAgentLoop(trainer, client, tokenizer, None, None, data, hf_model_type="qwen2")
    row = {
        "raw_prompt": [{"role": "user", "content": question}],
        "extra_info": {"id": "q1", "question": question},
        **row,
    }
    return await loop.run({"temperature": 1.0, "logprobs": True}, **row)


def play(tokenizer, texts, cfg=None, client_class=ScriptedClient, **row):
    """Run one row through the agent loop; returns the output and the scripted client."""
    client = client_class(tokenizer, texts)
    row = {"uid": "u", "session_id": 3, **row}
    return asyncio.run(run_loop(cfg or config(), client, tokenizer, **row)), client


def tokens(output, generated):
    """The ids of a response that were generated, or those that were observed."""
    pairs = zip(output.response_ids, output.response_mask, strict=True)
    return [token for token, bit in pairs if bit == generated]


def score(tokenizer, output, cfg, **row):
    """What the reward manager returns for an agent loop's output."""
    row = {
        "reward_model": {"ground_truth": {"target": np.array(["x"], dtype=object)}},
        "global_steps": 7,
        **row,
    }
    data = SimpleNamespace(non_tensor_batch={**row, "tool_extra_fields": output.extra_fields})
    manager = SearchRewardManager(cfg, tokenizer, None)
    return asyncio.run(manager.run_single([data]))
