"""HTTP servers on a free port of 127.0.0.1, each in a thread, as context managers.

`Proxy` passes requests on to another server; a subclass changes what comes back, or when.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web


@dataclass
class LoopbackServer:
    """An HTTP server on a free port of 127.0.0.1, in a thread of its own, for the length of a `with` block.
    Its `url` has no path. Raises RuntimeError if it does not start."""

    url: str = field(default="", init=False)

    def add_routes(self, app: web.Application) -> None:
        """Add the handlers to `app`; a subclass overrides this."""

    def __enter__(self):
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
        """Start the server, set `ready`, and serve until the loop is stopped; what went wrong is `_fault`."""
        asyncio.set_event_loop(self._loop)
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
        self._loop.close()

    async def _close_server(self, runner: web.AppRunner) -> None:
        """Close the server, and cancel the handlers that still wait."""
        await runner.cleanup()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass
class Proxy(LoopbackServer):
    """Passes requests on to the server at the address `backend`. Requests do not wait for one another."""

    backend: str

    def add_routes(self, app: web.Application) -> None:
        app.router.add_route("*", "/{path:.*}", self.handle)
        app.cleanup_ctx.append(self._client)

    async def handle(self, request: web.Request) -> web.Response:
        """The answer to a request: the backend's, unless a subclass overrides this."""
        return await self.forward_request(request)

    async def forward_request(self, request: web.Request) -> web.Response:
        """The backend's answer; status 502 if the backend cannot be reached."""
        data = await request.read()
        target = self.backend.rstrip("/") + request.path_qs
        headers = {"Content-Type": request.content_type}
        try:
            async with self._session.request(request.method, target, data=data, headers=headers) as answer:
                return web.Response(
                    status=answer.status, body=await answer.read(), content_type="application/json"
                )
        except aiohttp.ClientError:
            return web.Response(status=502)

    async def _client(self, app: web.Application) -> AsyncIterator[None]:
        """Keep one client open for as long as the server runs."""
        async with aiohttp.ClientSession() as self._session:
            yield


@dataclass
class DelayingProxy(Proxy):
    """Each answer to a POST takes `delay_s` longer, as that of a search in a large index or on the web."""

    delay_s: float

    async def handle(self, request: web.Request) -> web.Response:
        if request.method == "POST":
            await request.read()  # before the wait, as a server does
            await asyncio.sleep(self.delay_s)
        return await self.forward_request(request)
