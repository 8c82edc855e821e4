"""The recorded runs with a model: evaluations, traces, filter, data for a retriever, the loop, the chat.

Each function is a run in its own folder; RUNS has all of them by name. Requests are sent one at a time, so
that journals always have the same order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from . import inside, offline_runs
from .workplace import Workplace, flags

#: Options for one request at a time; a failed one is repeated at once.
_ONE_AT_A_TIME = {"in_flight": 1, "retries": 1, "backoff_s": 0.01}
_TOPK = "rag_r1.retriever.topk=2"


def evaluation(workplace: Workplace) -> None:
    """Run `eval`: the agent, each baseline, the card, modes, report and comparison."""
    inside.write_demo_files(workplace.folder)
    with inside.reading_policies() as (reading, knowing):
        options = {
            "data": "questions.parquet",
            "base_url": reading.url,
            "model": "policy",
            "tokenizer": inside.copy_policy(workplace.folder),
            "retriever_url": reading.url,
            "protocol": inside.DIALECT,
            "prompt": "prompt.txt",
            **_ONE_AT_A_TIME,
        }
        sides = flags({"supporting": "supporting.jsonl", "answerable": "answerable.json"})
        agent = flags(options | {"out": "agent"})
        workplace.rag_r1("eval", *agent, *sides, _TOPK)
        workplace.rag_r1("eval", *agent, *sides, _TOPK)  # nothing is left to ask
        workplace.rag_r1("eval", *agent, *sides, "rag_r1.retriever.topk=3")  # refused
        for baseline in ("direct", "cot", "one_shot", "no_search"):
            changes = {"prompt": None, "out": baseline}  # a baseline has its own prompt
            workplace.rag_r1("eval", "--baseline", baseline, *flags(options | changes), _TOPK)
        corpus = ("--corpus", "corpus.jsonl", *sides[:2])
        workplace.rag_r1("eval", "--card", *flags(options | {"out": "card"}), *corpus, _TOPK)
        trained = {"trained": "tuned", "trained_url": knowing.url, "out": "modes"}
        limits = ("rag_r1.agent.max_turns=4", "rag_r1.agent.max_turn_tokens=40")
        workplace.rag_r1("eval", "modes", *flags(options | trained), *limits)
        workplace.write_lines("asked.jsonl", [*reading.bodies, *knowing.bodies])
    workplace.rag_r1("eval", "report", "agent")
    workplace.rag_r1("eval", "compare", "agent", "cot")  # refused: their cards differ
    differs = [
        argument
        for name in ("budget", "condition", "retriever", "protocol", "model")
        for argument in ("--differs", name)
    ]
    workplace.rag_r1("eval", "compare", "agent", "cot", "modes/after", *differs)
    workplace.rag_r1("eval", "sigma", "agent")


def evaluation_by_chat(workplace: Workplace) -> None:
    """Run `eval` on a chat endpoint that sometimes fails, with a judge."""
    with inside.teacher(workplace.folder, 12) as teacher, inside.judge() as judge:
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
            **_ONE_AT_A_TIME,
            "retries": 5,
            "timeout_s": 4,
        }
        workplace.rag_r1("eval", *flags(options))
        workplace.write_lines("asked.jsonl", [*teacher.log, *judge.bodies])


def traces(workplace: Workplace) -> None:
    """Run `traces` with a teacher that sometimes fails, and `sft-data` on the traces."""
    with inside.teacher(workplace.folder) as teacher:
        options = {
            "questions": "questions.parquet",
            "teacher_url": f"{teacher.url}/v1",
            "teacher_model": "rules",
            "retriever_url": teacher.url,
            "protocol": "rag_r1_mq",
            "out": "out",
            "price_in": 1,
            "price_out": 2,
            **_ONE_AT_A_TIME,
            "retries": 5,
            "timeout_s": 4,
        }
        workplace.rag_r1("traces", *flags(options))
        workplace.write_lines("asked.jsonl", teacher.log)
    model = inside.copy_policy(workplace.folder, "rag_r1_mq")
    for layout in ("cut", "whole"):
        layout_options = {"traces": "out", "model": model, "out": f"sft-{layout}", "layout": layout}
        workplace.rag_r1("sft-data", *flags(layout_options))


def difficulty(workplace: Workplace) -> None:
    """Run `filter`."""
    with inside.unsteady_policy(workplace.folder) as policy:
        options = {
            "questions": "questions.parquet",
            "url": policy.url,
            "model": "m",
            "tokenizer": inside.copy_policy(workplace.folder, "rag_r1_mq"),
            "retriever_url": policy.url,
            "out": "out",
            "seed": 11,
            **_ONE_AT_A_TIME,
        }
        workplace.rag_r1("filter", *flags(options))
        workplace.write_lines("asked.jsonl", policy.bodies)


def retriever(workplace: Workplace) -> None:
    """Run `retriever data`, and `retriever select` on its scores."""
    with inside.retriever_world(Path()) as world:
        arguments = world.words(Path("out"), *inside.RETRIEVER_DATA, in_flight=1, judge_in_flight=1)
        workplace.rag_r1("retriever", "data", *arguments)
        workplace.write_lines("asked.jsonl", [*world.policy.bodies, *world.judge.bodies])
    scores = {name: f"out/{name}.jsonl" for name in ("candidates", "correctness", "relevance")}
    for selection in ("safe", "faithful"):
        options = scores | {"out": f"{selection}.jsonl", "selection": selection, "dataset": "demo"}
        workplace.rag_r1("retriever", "select", *flags(options))


def iterate(workplace: Workplace) -> None:
    """Run `iterate` for two rounds with stubs for all trainings, and again with nothing left to do."""
    (workplace.folder / "loop").mkdir()
    with inside.loop(Path("loop")) as (loop, server):
        arguments = loop.words("--rounds", "2")
        workplace.rag_r1("iterate", *arguments)
        workplace.rag_r1("iterate", *arguments)
        workplace.write_lines("asked.jsonl", server.orders)
    (workplace.folder / "loop" / "python").unlink()  # the stub itself


def chat(workplace: Workplace) -> None:
    """Run `serve` (a streamed chat, a whole chat, refusals, the page), and `chat` on the terminal."""
    with inside.chat_policy() as policy:
        options = {
            "model": "policy",
            "base_url": f"{policy.url}/v1",
            "retriever_url": policy.url,
            "tokenizer": inside.copy_policy(workplace.folder, "rag_r1_mq"),
        }
        with workplace.running("serve", *flags(options | {"port": 0, "out": "out"})) as process:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            body = {"messages": [{"role": "user", "content": inside.CHAT_QUESTION}]}
            answers = {
                "stream": _response_lines(f"{url}/v1/chat/completions", body | {"stream": True}),
                "whole": _response_lines(f"{url}/v1/chat/completions", body),
                "refused": _response_lines(f"{url}/v1/chat/completions", {"messages": []}),
                **{path: _response_lines(url + path) for path in ("/", "/v1/models", "/health", "/nowhere")},
            }
            workplace.write_json("answers.json", answers)
        workplace.rag_r1("chat", *flags(options | {"out": "terminal"}), stdin=f"{inside.CHAT_QUESTION}\n")
        workplace.write_lines("asked.jsonl", policy.bodies)


def _response_lines(url: str, body: object = None) -> list[Any]:
    """Send a request and return the lines of the response, also of an error; JSON lines become values."""
    data = None if body is None else json.dumps(body).encode()
    request = Request(url, data, {"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=60) as answer:
            text = answer.read().decode()
    except OSError as error:
        text = f"{getattr(error, 'code', error)}\n{error.read().decode() if hasattr(error, 'read') else ''}"
    is_json = re.compile(r"(?:data: )?\{")
    return [json.loads(line[line.find("{") :]) if is_json.match(line) else line for line in text.splitlines()]


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
