"""A chat server as `rag-r1 serve` runs it, in a thread, over a scripted policy behind real HTTP."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from rag_r1.demo.policy import policy_path
from rag_r1.http_server.listening import bind_socket
from rag_r1.serving.arguments import ServeArguments, to_eval_arguments
from rag_r1.serving.http_server import RunningServer, serve
from rag_r1.serving.launch import LaunchedAgent
from rag_r1.serving.page import PageInfo
from tests.fakes.scripted_vllm import Policy

QUESTION, GOLD = "Where was Mara Torval born?", "Karlen Ford"
PASSAGES = (
    ("p1", '"Mara Torval"\nThe painter Mara Torval was born in Karlen Ford in 1907.'),
    ("p2", '"Tito Vesmer"\nThe doctor Tito Vesmer was born in Zantis Mill in 1911.'),
)


def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(policy_path("rag_r1_mq"))


def always_right(*unused: object) -> bool:
    return True


def policy_of(golds: dict[str, str] | None = None, **options: Any) -> Policy:
    """A policy that searches once and then gives the gold answer."""
    options = {"searches": True, "passages": PASSAGES, **options}
    return Policy(tokenizer(), golds or {QUESTION: GOLD}, always_right, **options)


def arguments(url: str, out: Path, **options: Any) -> ServeArguments:
    """Those of `rag-r1 serve` for a policy at an address, which also searches, unless documents are given."""
    shared = {"tokenizer": str(policy_path("rag_r1_mq")), "out": out}
    if "documents" not in options:
        shared["retriever_url"] = url
    return ServeArguments(model="policy", base_url=f"{url}/v1", **{**shared, **options})


@dataclass
class Asked:
    """A running chat server and how to ask it."""

    url: str

    def __post_init__(self) -> None:
        # No certificates are needed, and to load them takes long.
        self.client = httpx.Client(base_url=self.url, timeout=30, trust_env=False, verify=False)

    def post(self, body: dict, **options: Any) -> httpx.Response:
        return self.client.post("/v1/chat/completions", json=body, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.client.get(path, **options)

    def health(self) -> dict:
        return self.get("/health").json()

    def metric(self, line: str) -> float:
        """The value of a line of /metrics that begins so; 0 if there is none."""
        lines = self.get("/metrics").text.splitlines()
        return next((float(text.rpartition(" ")[2]) for text in lines if text.startswith(f"{line} ")), 0.0)


@contextmanager
def chat_server(args: ServeArguments, about: PageInfo | None = None, **options: Any) -> Iterator[Asked]:
    """The server of these arguments; `options` are those of `serve`."""
    place = LaunchedAgent(to_eval_arguments(args), about or PageInfo("some passages", protocol=args.protocol))
    with chat_server_at(args, place, **options) as server:
        yield server


@contextmanager
def chat_server_at(args: ServeArguments, place: LaunchedAgent, **options: Any) -> Iterator[Asked]:
    """The same for what has been started."""
    servers: list[RunningServer] = []
    failures: list[BaseException] = []
    ready = threading.Event()

    def note(running: RunningServer) -> None:
        servers.append(running)
        ready.set()

    def run(listener: Any) -> None:
        try:
            asyncio.run(serve(args, place, listener, note, **options))
        except BaseException as error:
            failures.append(error)
        ready.set()

    with bind_socket("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=run, args=(listener,), daemon=True)
        thread.start()
        assert ready.wait(60)
        if failures:
            raise failures[0]
        try:
            yield Asked(servers[0].url)
        finally:
            servers[0].stop()
            thread.join(30)
            assert not thread.is_alive() and not failures


def question(text: str = QUESTION, **more: Any) -> dict:
    return {"messages": [{"role": "user", "content": text}], **more}


def events(text: str) -> list[dict]:
    """The chunks of a stream, which must end with [DONE]."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]
