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
from running_chat import GOLD, Asked, events, policy_of, question, wait_until

from rag_r1.demo.policy import policy_path

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
