"""Measures vLLM's server alone: its generation and its sleep.

Sleep belongs to vLLM's routes for development, which a server has with VLLM_SERVER_DEV_MODE=1. vLLM's build
for a CPU has no sleep.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rag_r1.inference.vllm_server import vllm_server
from rag_r1.io.bounded_http import bounded_http_client
from rag_r1.system.gpu_driver import gpu_memory_used

#: The token ids of each prompt.
Prompts = Sequence[Sequence[int]]
#: Time limit of a request, in seconds.
_WAIT_S = 300.0


def generation(model: Path, log: Path, prompts: Prompts, options: Sequence[str]) -> dict[str, Any]:
    """Return the seconds until a server is ready, its tokens per second, and the used bytes of the GPU.

    All prompts are generated at once.
    """
    started = time.monotonic()
    with vllm_server(model, log, options=options) as url:
        ready_s = time.monotonic() - started
        tokens, seconds = _generate(url, prompts)
        return {
            "ready_s": ready_s,
            "prompts": len(prompts),
            "tokens": sum(map(len, tokens)),
            "tokens_per_s": sum(map(len, tokens)) / seconds,
            "gpu_used": gpu_memory_used(),
        }


def sleep(model: Path, log: Path, prompts: Prompts, options: Sequence[str]) -> dict[str, Any]:
    """Return the seconds of a sleep of level 1 (weights in host memory) and of waking up.

    The result also has the used bytes of the GPU, awake and asleep, and says whether the server generates the
    same greedy tokens afterwards.
    """
    os.environ["VLLM_SERVER_DEV_MODE"] = "1"
    with vllm_server(model, log, options=["--enable-sleep-mode", *options]) as url:
        before, _ = _generate(url, prompts)
        awake = gpu_memory_used()
        sleep_s = _post(url, "/sleep?level=1")
        asleep = gpu_memory_used()
        wake_s = _post(url, "/wake_up")
        after, _ = _generate(url, prompts)
        return {
            "awake": awake,
            "asleep": asleep,
            "sleep_s": sleep_s,
            "wake_s": wake_s,
            "same_tokens": before == after,
        }


def _generate(url: str, prompts: Prompts) -> tuple[list[list[int]], float]:
    """Generate 128 greedy tokens for each prompt in one request; returns them and the seconds."""
    body: dict[str, Any] = {"model": "policy", "prompt": list(map(list, prompts)), "max_tokens": 128}
    body |= {"temperature": 0.0, "ignore_eos": True, "return_token_ids": True}
    started = time.monotonic()
    with bounded_http_client(_WAIT_S) as client:
        answer = client.post(f"{url}/completions", json=body).raise_for_status().json()
    choices = sorted(answer["choices"], key=lambda choice: choice["index"])
    return [choice["token_ids"] for choice in choices], time.monotonic() - started


def _post(url: str, route: str) -> float:
    """Send an empty POST request, and return its seconds."""
    started = time.monotonic()
    with bounded_http_client(_WAIT_S) as client:
        client.post(url.removesuffix("/v1") + route).raise_for_status()
    return time.monotonic() - started
