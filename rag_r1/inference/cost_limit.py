"""Tracks the cost of a run's requests, and enforces its limit (`--max-cost`).

`CostTracker` adds up the cost. If there is a limit, each request reserves its maximum cost: its prompt, by
estimate, and all tokens that it may generate. A request that could exceed the limit is not sent yet. It waits
for requests in flight to finish, since most of them cost less than they reserved. If none is in flight, the
run ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rag_r1.runs.cancel_token import CancelToken
from rag_r1.runs.response_cache import Usage


class CostTracker:
    """Adds up the cost of a run, and keeps it below a limit. `usage` is the usage of all answers so far; the
    caller adds that of each new answer.

    - `stop`: ends the run when the limit is reached
    - `price_in`, `price_out`: prices per million prompt and generated tokens
    - `max_cost`: the limit, in the currency of the prices; None for no limit
    - `earlier`: the usage of earlier invocations, which counts towards the limit
    - `spent`: the cost of another model, which counts towards the limit, too
    """

    def __init__(
        self,
        stop: CancelToken,
        price_in: float = 0.0,
        price_out: float = 0.0,
        max_cost: float | None = None,
        earlier: Usage | None = None,
        spent: float = 0.0,
    ):
        self.stop, self.max_cost, self.spent = stop, max_cost, spent
        self.price_in, self.price_out = price_in, price_out
        self.usage = Usage()
        self.usage.add(earlier or Usage())
        self._reserved: list[float] = []
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def has_prices(self) -> bool:
        """Whether prices are set, so that the cost is known."""
        return bool(self.price_in or self.price_out)

    @property
    def cost(self) -> float:
        """The cost of all usage so far."""
        return self.usage.cost(self.price_in, self.price_out)

    @asynccontextmanager
    async def reserved(self, prompt_tokens: int, max_tokens: int) -> AsyncIterator[None]:
        """Reserve the maximum cost of a request while the block runs. Waits until the limit allows it, and
        ends the run if that cannot happen."""
        if self.max_cost is None:
            yield
            return
        request_cost = Usage(1, prompt_tokens, max_tokens).cost(self.price_in, self.price_out)
        while self.spent + self.cost + sum(self._reserved) + request_cost > self.max_cost:
            if not self._reserved:
                self.stop(
                    f"the next request could cost up to {request_cost:.4f}, and "
                    f"{self.spent + self.cost:.4f} of --max-cost {self.max_cost:g} is spent"
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
