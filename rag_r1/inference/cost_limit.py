"""The cost of a run's requests, and its limit (`--max-cost`).

`CostTracker` adds up the cost. With a limit, a request reserves the most that it can cost (its prompt, by
estimate, and all tokens that it may generate) and is not sent if the limit could be passed. It then waits
until others have come back, which mostly cost less than they reserved; if none is under way, the run ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rag_r1.runs.cancel_token import CancelToken
from rag_r1.runs.response_cache import Usage


class CostTracker:
    """Adds up the cost of a run, and keeps it below a limit. Prices are per million tokens, `max_cost` is in
    their currency (None: no limit); `earlier`: the usage of earlier starts, which counts."""

    def __init__(
        self,
        stop: CancelToken,
        price_in: float = 0.0,
        price_out: float = 0.0,
        max_cost: float | None = None,
        earlier: Usage | None = None,
    ):
        self.stop, self.max_cost = stop, max_cost
        self.price_in, self.price_out = price_in, price_out
        self.usage = Usage()
        self.usage.add(earlier or Usage())
        self._reserved: list[float] = []
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def has_prices(self) -> bool:
        """Whether the cost is known."""
        return bool(self.price_in or self.price_out)

    @property
    def cost(self) -> float:
        """The cost of all usage so far."""
        return self.usage.cost(self.price_in, self.price_out)

    def add(self, usage: Usage) -> None:
        """Count the usage of an answer."""
        self.usage.add(usage)

    @asynccontextmanager
    async def reserved(self, prompt_tokens: int, max_tokens: int) -> AsyncIterator[None]:
        """Reserves the most that a request can cost while the block runs. Waits until there is enough, and
        ends the run if there cannot be."""
        if self.max_cost is None:
            yield
            return
        request_cost = Usage(1, prompt_tokens, max_tokens).cost(self.price_in, self.price_out)
        while self.cost + sum(self._reserved) + request_cost > self.max_cost:
            if not self._reserved:
                self.stop(
                    f"the next request could cost up to {request_cost:.4f}, and {self.cost:.4f} of "
                    f"--max-cost {self.max_cost:g} is spent"
                )
            await self.stop.block_if_cancelled()
            release = asyncio.get_running_loop().create_future()
            self._waiting.append(release)
            await release
        self._reserved.append(request_cost)
        try:
            yield
        finally:
            self._reserved.remove(request_cost)
            waiting, self._waiting = self._waiting, []
            for release in waiting:
                if not release.done():
                    release.set_result(None)
