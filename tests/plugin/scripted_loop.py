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
    """Stands for veRL's generation client: answers with scripted texts, and keeps what it was asked."""

    def __init__(self, tokenizer, texts):
        self.tokenizer, self.texts, self.asked = tokenizer, list(texts), []

    async def generate(self, request_id, *, prompt_ids, sampling_params):
        self.asked.append((request_id, list(prompt_ids), sampling_params))
        text = self.texts[len(self.asked) - 1]
        if text is None:
            return TokenOutput(token_ids=[], stop_reason="aborted", extra_fields={})
        ids = self.tokenizer.encode(text, add_special_tokens=False)[: sampling_params["max_tokens"]]
        version = len(self.asked)
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
        found = [Document(str(i), f"Title {i}\n" + f"w{i} " * 200) for i in range(3)]
        return [[Document(d.id, f"{d.contents} {random.random()}") for d in found] for _ in queries]


def config(**rag_r1):
    return OmegaConf.create(
        {
            "actor_rollout_ref": {
                "rollout": {
                    "prompt_length": PROMPT_LENGTH,
                    "response_length": RESPONSE_LENGTH,
                    "max_model_len": PROMPT_LENGTH + RESPONSE_LENGTH,
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


def play(tokenizer, texts, cfg=None, client_class=ScriptedClient, **row):
    """Run one row through the agent loop; returns the output and the scripted client."""
    client = client_class(tokenizer, texts)
    row = {
        "raw_prompt": [{"role": "user", "content": "Who?"}],
        "extra_info": {"id": "q1", "question": "Who?"},
        "uid": "u",
        "session_id": 3,
        **row,
    }

    async def main():
        cfg_ = cfg or config()
        loop = SearchAgentLoop(
            DictConfigWrap(cfg_),
            client,
            tokenizer,
            None,
            None,
            DictConfigWrap(cfg_.data),
            hf_model_type="qwen2",
        )
        return await loop.run({"temperature": 1.0, "logprobs": True}, **row)

    return asyncio.run(main()), client


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
