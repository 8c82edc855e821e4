"""`rag-r1 serve` as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from rag_r1.demo.policy import policy_path
from tests.fakes.waiting import wait_until
from tests.serving.process_tree import descendants, is_there
from tests.serving.running_chat import GOLD, Asked, events, policy_of, question

ROOT = Path(__file__).parents[2]


@pytest.mark.full
@pytest.mark.slow
def test_sigterm_finishes_what_has_begun_and_the_token_is_never_shown(tmp_path):
    token = "t0ken-of-the-environment"
    sent = {"Authorization": f"Bearer {token}"}
    with policy_of() as policy:
        words = ["--model", "policy", "--base-url", f"{policy.url}/v1", "--retriever-url", policy.url]
        words += ["--tokenizer", str(policy_path("rag_r1_mq")), "--port", "0", "--out", str(tmp_path)]
        process = subprocess.Popen(
            [sys.executable, "-m", "rag_r1.cli", "serve", *words],
            cwd=ROOT,
            env={**os.environ, "CHAT_TOKEN": token, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            line = process.stdout.readline()
            assert line.startswith("chat at http://127.0.0.1:"), process.stderr.read()
            url = line.split()[-1]
            chat, answers = Asked(url), []
            assert chat.get("/v1/models").status_code == 401
            policy.latency_s = 1.5
            asking = threading.Thread(
                target=lambda: answers.append(chat.post(question(stream=True), headers=sent))
            )
            asking.start()
            wait_until(lambda: chat.health()["running"])
            process.send_signal(signal.SIGTERM)
            asking.join(30)
            rest, log = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0
    assert events(answers[0].text)[-1]["choices"][0]["finish_reason"] == "stop"
    assert GOLD in answers[0].text
    assert token not in line + rest + log and "answered, searches: 1" in log
    with pytest.raises(httpx.ConnectError):
        chat.health()


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="left out: reads /proc, which only Linux has")
@pytest.mark.parametrize("moment", ["reading", "serving"])
def test_nothing_that_serving_documents_has_started_survives_a_kill(tmp_path, moment):
    folder, out = tmp_path / "documents", tmp_path / "out"
    folder.mkdir()
    (folder / "ulm.html").write_text("<h1>Ulm</h1><p>Ulm lies on the Danube.</p>")
    if moment == "reading":  # a file that the reader's limits end after 20 s
        (folder / "slow.html").write_text("<a " * (1 << 19))
    children: dict[int, str] = {}
    with policy_of() as policy:
        words = ["--model", "policy", "--base-url", f"{policy.url}/v1", "--documents", str(folder)]
        words += ["--tokenizer", str(policy_path("rag_r1_mq")), "--port", "0", "--out", str(out)]
        process = subprocess.Popen(
            [sys.executable, "-m", "rag_r1.cli", "serve", *words],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            if moment == "serving":
                assert process.stdout.readline().startswith("chat at http://127.0.0.1:")
            wait_until(lambda: descendants(process.pid))
            children = descendants(process.pid)
            process.kill()
            process.wait()
            wait_until(lambda: not any(is_there(*child) for child in children.items()))
        finally:
            process.kill()
            process.wait()
            for pid, started in children.items():
                if is_there(pid, started):
                    os.kill(pid, signal.SIGKILL)
    assert children
