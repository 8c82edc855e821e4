"""Plays in the page of `rag-r1 view`."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from tests.serving.browser import CHROMIUM, Tab, tab

#: The marks of what needs a browser.
IN_BROWSER = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium"),
]


def in_page(browser: int, url: str, play, problems: bool = False) -> None:
    """Play in a new page at this address; whether the browser reports problems is checked at the end."""

    async def main() -> None:
        async with tab(browser) as page:
            await page.look(1280, 800)
            await page.go(url)
            await play(page)
            assert bool(page.problems) == problems, page.problems

    asyncio.run(main())


async def rows(page: Tab, number: int) -> None:
    """Wait until the table has so many rows."""
    await page.until(f"document.querySelectorAll('.rows tbody a').length === {number}")
    await page.until("document.querySelector('.table-view').ariaBusy === 'false'")


def fetched(address: str) -> bytes:
    """The body of an answer of the server."""
    answer = httpx.get(address, trust_env=False, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.content


async def opened(page: Tab, question: str) -> None:
    """Wait until the trajectory of this question is shown."""
    text = f"document.querySelector('.trajectory .question')?.textContent === {json.dumps(question)}"
    await page.until(text)


async def state(page: Tab) -> dict[str, str]:
    """The state in the address."""
    return await page.run("Object.fromEntries(new URLSearchParams(location.hash.slice(1)))")


async def in_focus(page: Tab) -> str:
    """The text of what has the focus."""
    return await page.run("document.activeElement.textContent")
