"""A web server that answers with a page whatever it is asked, as the front of many a host does."""

from __future__ import annotations

from aiohttp import web

from rag_r1.demo.loopback import LoopbackServer


class WebPage(LoopbackServer):
    """Its `asked` are the paths of all requests."""

    status = 200

    def __enter__(self) -> WebPage:
        self.asked: list[str] = []
        return super().__enter__()

    def add_routes(self, app: web.Application) -> None:
        app.router.add_route("*", "/{path:.*}", self.page)

    async def page(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        return web.Response(
            text="<!doctype html><title>Welcome</title>", content_type="text/html", status=self.status
        )
