"""The chat's server in the main thread, where the commands run it."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from rag_r1.serving.arguments import to_eval_arguments
from rag_r1.serving.command import bind_socket
from rag_r1.serving.http_server import serve
from rag_r1.serving.launch import LaunchedAgent
from rag_r1.serving.page import PageInfo
from tests.serving.running_chat import arguments, policy_of


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_orderly_and_the_handlers_from_before_return(tmp_path, number):
    received = []
    before = signal.signal(number, lambda *call: received.append(call))
    handler = signal.getsignal(number)
    try:
        with policy_of() as policy, bind_socket("127.0.0.1", 0) as listener:
            args = arguments(policy.url, tmp_path)
            place = LaunchedAgent(to_eval_arguments(args), PageInfo("passages", protocol=args.protocol))
            asyncio.run(serve(args, place, listener, lambda server: os.kill(os.getpid(), number)))
        assert signal.getsignal(number) is handler and not received
    finally:
        signal.signal(number, before)
