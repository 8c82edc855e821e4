"""HTTP servers on a free port of 127.0.0.1, each in its own thread, as context managers.

`LoopbackServer` is the base class; the pipeline's teacher is such a server. `Proxy` forwards requests to
another server, and its subclasses change the answers or delay them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Self

import aiohttp
from aiohttp import web


@dataclass
class LoopbackServer:
    """An HTTP server that runs in a thread for the length of a `with` block.

    Entering the block raises RuntimeError if the server does not start within 30 seconds.
    """

    #: The address without a path, once the server has started.
    url: str = field(default="", init=False)

    def add_routes(self, app: web.Application) -> None:
        """Add the handlers to `app`. Subclasses override this."""

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._fault: BaseException | None = None
        ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(ready,), daemon=True)
        self._thread.start()
        if not ready.wait(30) or self._fault is not None:
            raise RuntimeError("the server on loopback did not start") from self._fault
        return self

    def __exit__(self, *unused: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)

    def _serve(self, ready: threading.Event) -> None:
        """Start the server, set `ready`, and serve until the loop is stopped.

        An exception at the start is kept in `_fault`, for `__enter__` to raise.
        """
        asyncio.set_event_loop(self._loop)
        with closing(self._loop):
            try:
                app = web.Application(client_max_size=1 << 22)
                self.add_routes(app)
                runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
                self._loop.run_until_complete(runner.setup())
                site = web.TCPSite(runner, "127.0.0.1", 0)
                self._loop.run_until_complete(site.start())
                self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            except BaseException as fault:
                self._fault = fault
                return
            finally:
                ready.set()
            self._loop.run_forever()
            self._loop.run_until_complete(self._close_server(runner))

    async def _close_server(self, runner: web.AppRunner) -> None:
        """Close the server, and cancel the handlers that are still waiting."""
        await runner.cleanup()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass
class Proxy(LoopbackServer):
    """Forwards requests to another server. Requests do not wait for one another.

    Of a request's headers only the content type is forwarded, so the other server must not require a token.
    An answer keeps its status and its body, and is declared to be JSON.
    """

    #: Address of the other server.
    backend: str

    def add_routes(self, app: web.Application) -> None:
        """Send every request to `handle`."""
        app.router.add_route("*", "/{path:.*}", self.handle)
        app.cleanup_ctx.append(self._client)

    async def handle(self, request: web.Request) -> web.Response:
        """Answer a request with the backend's answer. Subclasses override this."""
        return await self.forward_request(request)

    async def forward_request(self, request: web.Request) -> web.Response:
        """Return the backend's answer to a request.

        The status is 502 if the backend cannot be reached, ends the connection, or takes longer than
        aiohttp's client waits (5 minutes).
        """
        data = await request.read()
        target = self.backend.rstrip("/") + request.path_qs
        headers = {"Content-Type": request.content_type}
        try:
            async with self._session.request(request.method, target, data=data, headers=headers) as answer:
                return web.Response(
                    status=answer.status, body=await answer.read(), content_type="application/json"
                )
        except (aiohttp.ClientError, TimeoutError):  # the time limit of a whole request is no ClientError
            return web.Response(status=502)

    async def _client(self, app: web.Application) -> AsyncIterator[None]:
        """Keep one HTTP client open while the server runs."""
        async with aiohttp.ClientSession() as self._session:
            yield


@dataclass
class DelayingProxy(Proxy):
    """Delays answers to POST requests, to imitate searches in a large index or on the web."""

    #: Delay of each answer in seconds.
    delay_s: float

    async def handle(self, request: web.Request) -> web.Response:
        """Answer as the backend does, a POST request after the delay."""
        if request.method == "POST":
            await request.read()  # a server receives the whole request before it searches
            await asyncio.sleep(self.delay_s)
        return await self.forward_request(request)
