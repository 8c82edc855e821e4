"""Runs the server of `rag-r1 serve` in a thread of this process, for a chat that is given no address."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from rag_r1.http_server.listening import bind_socket
from rag_r1.runs.errors import RunError
from rag_r1.serving.arguments import ChatAgentArguments
from rag_r1.serving.http_server import RunningServer, serve
from rag_r1.serving.launch import launch_agent


@contextmanager
def local_server(args: ChatAgentArguments) -> Iterator[RunningServer]:
    """Yield a server on a free port of this machine, which runs in a thread until the block ends. Raises
    RunError if it cannot be started, and OSError if --out cannot be used."""
    started: Future[RunningServer] = Future()
    with bind_socket("127.0.0.1", 0) as listener, launch_agent(args) as launched:

        def run_server() -> None:
            """Run the server in this thread; an error before it answers becomes the result of `started`."""
            cause: BaseException | None = None
            try:
                asyncio.run(serve(args, launched, listener, started.set_result, drain_s=1))
            except BaseException as error:
                if started.done():
                    raise  # the thread prints it
                cause = error
            if not started.done():
                fault = RunError(f"the chat could not begin: {cause or 'its server ended'}")
                fault.__cause__ = cause
                started.set_exception(fault)

        thread = threading.Thread(target=run_server, daemon=True)
        thread.start()
        running = started.result()
        try:
            yield running
        finally:
            running.stop()
            thread.join(10)  # seconds; a thread that hangs does not keep the process
