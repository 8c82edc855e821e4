"""The recorded runs with a model: evaluations, traces, filter, data for a retriever, the loop, the chat.

Each function is a run in its own folder; RUNS has all of them by name. Requests are sent one at a time, so
that journals always have the same order.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from . import inside, offline_runs
from .workplace import Workplace, flags

#: Options for one request at a time; a failed one is repeated at once.
_ONE = {"in_flight": 1, "retries": 1, "backoff_s": 0.01}
_TOPK = "rag_r1.retriever.topk=2"


def evaluation(place: Workplace) -> None:
    """Run `eval`: the agent, each baseline, the card, modes, report and comparison."""
    inside.write_demo_files(place.folder)
    with inside.readers() as (reading, knowing):
        options = {
            "data": "questions.parquet",
            "base_url": reading.url,
            "model": "policy",
            "tokenizer": inside.copy_policy(place.folder),
            "retriever_url": reading.url,
            "protocol": inside.DIALECT,
            "prompt": "prompt.txt",
            **_ONE,
        }
        sides = flags({"supporting": "supporting.jsonl", "answerable": "answerable.json"})
        agent = flags(options | {"out": "agent"})
        place.rag_r1("eval", *agent, *sides, _TOPK)
        place.rag_r1("eval", *agent, *sides, _TOPK)  # nothing is left to ask
        place.rag_r1("eval", *agent, *sides, "rag_r1.retriever.topk=3")  # refused
        for baseline in ("direct", "cot", "one_shot", "no_search"):
            changes = {"prompt": None, "out": baseline}  # a baseline has its own prompt
            place.rag_r1("eval", "--baseline", baseline, *flags(options | changes), _TOPK)
        corpus = ("--corpus", "corpus.jsonl", *sides[:2])
        place.rag_r1("eval", "--card", *flags(options | {"out": "card"}), *corpus, _TOPK)
        trained = {"trained": "tuned", "trained_url": knowing.url, "out": "modes"}
        limits = ("rag_r1.agent.max_turns=4", "rag_r1.agent.max_turn_tokens=40")
        place.rag_r1("eval", "modes", *flags(options | trained), *limits)
        place.write_lines("asked.jsonl", [*reading.bodies, *knowing.bodies])
    place.rag_r1("eval", "report", "agent")
    place.rag_r1("eval", "compare", "agent", "cot")  # refused: their cards differ
    differs = [
        word
        for name in ("budget", "condition", "retriever", "protocol", "model")
        for word in ("--differs", name)
    ]
    place.rag_r1("eval", "compare", "agent", "cot", "modes/after", *differs)
    place.rag_r1("eval", "sigma", "agent")


def evaluation_by_chat(place: Workplace) -> None:
    """Run `eval` on a chat endpoint that sometimes fails, with a judge."""
    with inside.teacher(place.folder, 12) as teacher, inside.judge() as judge:
        options = {
            "data": "questions.parquet",
            "base_url": f"{teacher.url}/v1",
            "model": "rules",
            "engine": "chat",
            "retriever_url": teacher.url,
            "judge_url": judge.base,
            "judge_model": "judge",
            "judge_in_flight": 1,
            "out": "out",
            **_ONE,
            "retries": 5,
            "timeout_s": 4,
        }
        place.rag_r1("eval", *flags(options))
        place.write_lines("asked.jsonl", [*teacher.log, *judge.bodies])


def traces(place: Workplace) -> None:
    """Run `traces` with a teacher that sometimes fails, and `sft-data` on the traces."""
    with inside.teacher(place.folder) as teacher:
        options = {
            "questions": "questions.parquet",
            "teacher_url": f"{teacher.url}/v1",
            "teacher_model": "rules",
            "retriever_url": teacher.url,
            "protocol": "rag_r1_mq",
            "out": "out",
            "price_in": 1,
            "price_out": 2,
            **_ONE,
            "retries": 5,
            "timeout_s": 4,
        }
        place.rag_r1("traces", *flags(options))
        place.write_lines("asked.jsonl", teacher.log)
    model = inside.copy_policy(place.folder, "rag_r1_mq")
    for layout in ("cut", "whole"):
        layout_options = {"traces": "out", "model": model, "out": f"sft-{layout}", "layout": layout}
        place.rag_r1("sft-data", *flags(layout_options))


def difficulty(place: Workplace) -> None:
    """Run `filter`."""
    with inside.difficult(place.folder) as policy:
        options = {
            "questions": "questions.parquet",
            "url": policy.url,
            "model": "m",
            "tokenizer": inside.copy_policy(place.folder, "rag_r1_mq"),
            "retriever_url": policy.url,
            "out": "out",
            "seed": 11,
            **_ONE,
        }
        place.rag_r1("filter", *flags(options))
        place.write_lines("asked.jsonl", policy.bodies)


def retriever(place: Workplace) -> None:
    """Run `retriever data`, and `retriever select` on its scores."""
    with inside.retriever_world(Path()) as world:
        words = world.words(Path("out"), *inside.RETRIEVER_DATA, in_flight=1, judge_in_flight=1)
        place.rag_r1("retriever", "data", *words)
        place.write_lines("asked.jsonl", [*world.policy.bodies, *world.judge.bodies])
    scores = {name: f"out/{name}.jsonl" for name in ("candidates", "correctness", "relevance")}
    for selection in ("safe", "faithful"):
        options = scores | {"out": f"{selection}.jsonl", "selection": selection, "dataset": "demo"}
        place.rag_r1("retriever", "select", *flags(options))


def iterate(place: Workplace) -> None:
    """Run `iterate` for two rounds with stubs for all trainings, and again with nothing left to do."""
    (place.folder / "loop").mkdir()
    with inside.loop(Path("loop")) as (loop, server):
        words = loop.words("--rounds", "2")
        place.rag_r1("iterate", *words)
        place.rag_r1("iterate", *words)
        place.write_lines("asked.jsonl", server.orders)
    (place.folder / "loop" / "python").unlink()  # the stub itself


def chat(place: Workplace) -> None:
    """Run `serve` (a streamed chat, a whole chat, refusals, the page), and `chat` on the terminal."""
    with inside.chat_policy() as policy:
        options = {
            "model": "policy",
            "base_url": f"{policy.url}/v1",
            "retriever_url": policy.url,
            "tokenizer": inside.copy_policy(place.folder, "rag_r1_mq"),
        }
        with place.running("serve", *flags(options | {"port": 0, "out": "out"})) as process:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            body = {"messages": [{"role": "user", "content": inside.CHAT_QUESTION}]}
            answers = {
                "stream": _fetched(f"{url}/v1/chat/completions", body | {"stream": True}),
                "whole": _fetched(f"{url}/v1/chat/completions", body),
                "refused": _fetched(f"{url}/v1/chat/completions", {"messages": []}),
                **{path: _fetched(url + path) for path in ("/", "/v1/models", "/health", "/nowhere")},
            }
            place.write_json("answers.json", answers)
        place.rag_r1("chat", *flags(options | {"out": "terminal"}), stdin=f"{inside.CHAT_QUESTION}\n")
        place.write_lines("asked.jsonl", policy.bodies)


def _fetched(url: str, body: object = None) -> list[Any]:
    """Send a request and return the lines of the response, also of an error; JSON lines become values."""
    data = None if body is None else json.dumps(body).encode()
    request = Request(url, data, {"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=60) as answer:
            text = answer.read().decode()
    except OSError as error:
        read = getattr(error, "read", None)
        text = f"{getattr(error, 'code', error)}\n{read().decode() if read else ''}"
    return [json.loads(line[line.find("{") :]) if line.startswith(("{", "data: {")) else line
            for line in text.splitlines()]  # fmt: skip


#: Name of the run and of its folder -> the function.
RUNS: dict[str, Callable[[Workplace], None]] = {
    "help": offline_runs.help_texts,
    "rollouts": offline_runs.rollouts,
    "eval": evaluation,
    "eval-chat": evaluation_by_chat,
    "traces": traces,
    "filter": difficulty,
    "retriever": retriever,
    "iterate": iterate,
    "serve": chat,
    "data": offline_runs.data,
    "corpus": offline_runs.corpus,
    "index": offline_runs.index,
    "mcp": offline_runs.mcp,
    "recipes": offline_runs.recipes,
    "train-check": offline_runs.training_checks,
}
