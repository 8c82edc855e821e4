"""Takes the picture of the chat's guide: a question in the page of `rag-r1 serve --demo`.

python -m tests.serving.picture docs/images/chat.png

What answers is what the command serves: the policy of the last demo run in outputs/demo. Held-out questions
are asked until one shows what the picture is to show; with the embedded policy none does.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Iterable
from pathlib import Path

from rag_r1.serving.arguments import ServeArguments
from rag_r1.serving.launch import launch_agent
from tests.serving.browser import Tab, chromium, tab
from tests.serving.running_chat import chat_server_at

#: Whether the answer on the page is right, its words stand in a passage, and two searches were made at once.
SHOWS_ALL = """
    document.querySelector('.answer .verdict')?.textContent.startsWith('Right')
    && document.querySelector('.found mark') !== null
    && document.querySelector('.calls[data-count="2"]') !== null
"""


def main() -> None:
    """Serve the demo, ask, and take a PNG of the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="the PNG")
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        args = ServeArguments(demo=True, out=Path(folder, "serve"))
        with launch_agent(args) as place, chat_server_at(args, place) as chat:
            with chromium(Path(folder, "profile")) as port:
                asyncio.run(take_picture(port, chat.url, place.about.golds, out))


async def take_picture(port: int, url: str, questions: Iterable[str], out: Path) -> None:
    """A PNG of the page with the first of the questions that shows it all; SystemExit if none does."""
    async with tab(port) as page:
        await page.look(900, 760, scale=1.5)
        await page.go(url)
        await page.until("document.getElementById('what').textContent !== ''")
        for question in questions:
            if await _is_worth_a_picture(page, question):
                break
        else:
            why = "no question shows two searches at once, an answer in a passage, and that it is right"
            raise SystemExit(f"{why}: train a policy first, with `rag-r1 demo`")
        await page.run("document.activeElement.blur()")
        await page.run("document.scrollingElement.scrollTop = 0")
        await page.picture(out)


async def _is_worth_a_picture(page: Tab, question: str) -> bool:
    """Ask in a new chat."""
    await page.click("#new")
    await page.type(question)
    await page.until("document.querySelector('.answer') !== null", seconds=60)
    return await page.run(SHOWS_ALL)


if __name__ == "__main__":
    main()
