"""`rag-r1 serve --demo` on vLLM: what the chat answers is what `rag-r1 eval` answers, token by token."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web

from rag_r1.data.rows import write_rows
from rag_r1.demo.eval_arguments import demo_eval_arguments
from rag_r1.demo.loopback import Proxy
from rag_r1.demo.world import demo_data, demo_protocol, to_row
from rag_r1.evaluation import command
from rag_r1.inference.streaming import CONTENT_TYPE, StreamAssembler
from rag_r1.serving.arguments import ServeArguments
from rag_r1.serving.launch import LaunchedAgent, launch_agent
from tests.serving.running_chat import chat_server_at, question

pytestmark = [pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(900)]


@dataclass
class Recorder(Proxy):
    """Passes requests on to vLLM, and keeps the ids that went in and came out."""

    requests: list[tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.Response:
        answer = await self.forward_request(request)
        if request.path.endswith("/completions"):
            body, message = await request.json(), answer.body
            if body.get("stream"):
                answer.content_type = CONTENT_TYPE
                assembler = StreamAssembler(lambda text: None)
                assembler.feed(answer.body)
                message = assembler.message()
            if body["max_tokens"] > 1:  # not the probe
                [choice] = json.loads(message)["choices"]
                self.requests.append((tuple(body["prompt"]), tuple(choice["token_ids"])))
        return answer


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The demo, with a recorder before its vLLM."""
    pytest.importorskip("vllm")
    args = ServeArguments(demo=True, out=tmp_path_factory.mktemp("serve"), queue=8, in_flight=8)
    with ExitStack() as stack:
        place = stack.enter_context(launch_agent(args))
        recorder = stack.enter_context(Recorder(place.evaluation.base_url.removesuffix("/v1")))
        evaluation = place.evaluation.model_copy(update={"base_url": f"{recorder.url}/v1"})
        yield args, LaunchedAgent(evaluation, place.about), recorder


def test_the_chat_answers_what_an_evaluation_answers_token_by_token(place, tmp_path: Path):
    serve_args, place, recorder = place
    evaluation = place.evaluation
    protocol = demo_protocol(evaluation.protocol)
    questions = demo_data(0, train=1).val[:12]
    rows = [to_row(question, index, "val", protocol) for index, question in enumerate(questions)]
    write_rows(tmp_path / "q.parquet", rows)
    model, questions_file, out = Path(evaluation.model), tmp_path / "q.parquet", tmp_path / "eval"
    # One at a time, as the chat below: a batch of another size can round differently.
    more = {"base_url": evaluation.base_url, "tokenizer": evaluation.model, "in_flight": 1}
    args = demo_eval_arguments(model, questions_file, evaluation.protocol, evaluation.retriever_url, out)
    assert command.run(args.changed(**more)) == 0
    evaluated, recorder.requests = recorder.requests, []
    records = (tmp_path / "eval" / "trajectories" / "records.jsonl").read_text().splitlines()
    with chat_server_at(serve_args, place) as chat:
        answers = [chat.post(question(item.text)).json() for item in questions]
    assert len(evaluated) >= 24 and recorder.requests == evaluated
    expected = [json.loads(record)["answer"] or "" for record in records]
    assert [answer["choices"][0]["message"]["content"] for answer in answers] == expected


def test_of_32_chats_at_once_with_the_demo_each_is_answered_or_refused(place):
    args, place, _ = place
    questions = [example.question for example in place.about.examples]
    with chat_server_at(args, place) as chat, ThreadPoolExecutor(32) as threads:
        answers = list(threads.map(lambda i: chat.post(question(questions[i % len(questions)])), range(32)))
        assert chat.health()["running"] == 0
    refused = [answer for answer in answers if answer.status_code == 503]
    assert all(1 <= int(answer.headers["retry-after"]) <= 60 for answer in refused)
    answered = [answer for answer in answers if answer.status_code == 200]
    assert len(answered) + len(refused) == 32 and len(answered) >= 16
