"""The wheel beside everything that a training on a CPU needs, in an empty folder: the demo, a chat with the
policy that it has trained, an index with its server, and the check of a training of one's own."""

from __future__ import annotations

import re
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.wheel.wheel_environments import Environment

pytestmark = [pytest.mark.nightly, pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def complete(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    pytest.importorskip("verl")
    return Environment.complete(tmp_path_factory.mktemp("complete"), wheel)


@pytest.fixture(scope="module")
def played(complete: Environment, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder in which the demo was run for two steps, and what it printed."""
    here = tmp_path_factory.mktemp("empty")
    before = files_of(complete.site)
    done = complete.run("rag-r1", "demo", "trainer.total_training_steps=2", cwd=here, timeout=800)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert files_of(complete.site) == before
    return here, done.stdout


def files_of(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if "__pycache__" not in path.parts}


@contextmanager
def running(environment: Environment, here: Path, pattern: str, *words: object) -> Iterator[str]:
    """A server of the environment, until the block ends; yields what the pattern finds in its output."""
    log = here / f"{words[1]}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            environment.command(*words),
            cwd=here,
            env=environment.variables(),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + 400
        while not (match := re.search(pattern, log.read_text(errors="replace"))):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text(errors="replace")[
                -4000:
            ]
            time.sleep(0.2)
        yield match[1] if match.groups() else match[0]
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def test_the_environment_has_the_wheel_and_not_the_repository(complete: Environment, tmp_path: Path):
    done = complete.run("python", "-c", "import rag_r1, verl; print(rag_r1.__path__[0])", cwd=tmp_path)
    assert done.stdout.split()[-1] == str(complete.site / "rag_r1")
    assert (
        complete.run("rag-r1", "recipes", "path", cwd=tmp_path).stdout
        == f"{complete.site / 'rag_r1' / 'recipes'}\n"
    )


def test_the_demo_writes_below_the_working_directory_and_its_hints_are_commands_of_the_wheel(
    complete, played
):
    here, printed = played
    out = here / "outputs" / "demo" / "grpo"
    assert (out / "report.png").is_file() and (out / "metrics.jsonl").read_bytes().count(b"\n") >= 2
    assert [path.name for path in here.iterdir()] == ["outputs"]
    hints = [shlex.split(line) for line in printed.splitlines() if line.startswith("  rag-r1 ")]
    assert [words[1] for words in hints] == ["view", "eval", "eval", "eval"]
    report = complete.run(*hints[1], cwd=here)
    assert report.returncode == 0, report.stderr


def test_the_demos_policy_answers_a_question_over_http(complete: Environment, played):
    here, _ = played
    with running(complete, here, r"chat at (http://\S+)", "rag-r1", "serve", "--demo", "--port", "0") as url:
        question = {"role": "user", "content": "Where was Mara Torval born?"}
        body = {"model": "rag-r1", "messages": [question]}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["role"] == "assistant"
    assert "outputs/demo/grpo" in (here / "serve.log").read_text()


def test_an_index_is_built_and_served(complete: Environment, played):
    here, _ = played
    corpus = here / "outputs" / "demo" / "grpo" / "data" / "corpus.jsonl"
    words = ["--corpus", corpus, "--out", "indexes/world", "--backend", "bm25"]
    built = complete.run("rag-r1", "index", "build", *words, cwd=here, timeout=300)
    assert built.returncode == 0, built.stderr
    served = ["rag-r1", "index", "serve", "--index", "indexes/world", "--port", str(free_port())]
    with running(complete, here, "Uvicorn running|http://127", *served):
        url = f"http://127.0.0.1:{served[-1]}"
        until_ready(url)
        body = {"queries": ["Where was Mara Torval born?"], "topk": 2}
        (documents,) = httpx.post(f"{url}/retrieve", json=body, timeout=60).json()["result"]
    assert documents and all(document["contents"] for document in documents)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until_ready(url: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/ready", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"{url} was not ready")


@pytest.mark.parametrize("own", [False, True], ids=["a shipped recipe", "a recipe of ones own"])
def test_a_training_is_checked(complete: Environment, played, own: bool, tmp_path: Path):
    here, _ = played
    demo = here / "outputs" / "demo" / "grpo"
    recipe = "demo/grpo"
    if own:
        (tmp_path / "mine.yaml").write_text("defaults: [demo/grpo, _self_]\ndata: {train_batch_size: 32}\n")
        recipe = "mine.yaml"
    server = ["python", "-m", "retrieval_server.start_retrieval", "--index", demo / "index", "--port"]
    with running(complete, tmp_path, "Uvicorn running|http://127", *server, port := free_port()):
        until_ready(url := f"http://127.0.0.1:{port}")
        policy = complete.site / "rag_r1" / "demo" / "policy" / "rag_r1_mq"
        done = complete.run(
            *("rag-r1", "train", "--recipe", recipe, "--check-only"),
            f"actor_rollout_ref.model.path={policy}",
            f"data.train_files={demo / 'data' / 'train.parquet'}",
            f"data.val_files={demo / 'data' / 'val.parquet'}",
            f"rag_r1.retriever.url={url}",
            cwd=tmp_path,
            timeout=300,
        )
    assert done.returncode == 0 and "preflight: all is well" in done.stdout, done.stdout + done.stderr
