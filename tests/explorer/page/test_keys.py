"""Every function of the page of `rag-r1 view` is reached by a key."""

from __future__ import annotations

import json

from tests.explorer.page.page_player import IN_BROWSER, in_focus, in_page, rows
from tests.explorer.page.sample_runs import QUESTIONS
from tests.serving.browser import Tab

pytestmark = IN_BROWSER

FOCUSED = "document.activeElement"
#: Keeps what is copied, and the names of what is saved.
RECORD = """
const writeText = async (text) => { window.copied = text; };
Object.defineProperty(navigator, 'clipboard', {value: {writeText}});
HTMLAnchorElement.prototype.click = new Proxy(HTMLAnchorElement.prototype.click, {
  apply(click, link, rest) { if (link.download) window.saved = link.download; else click.apply(link, rest); },
});"""


def test_every_function_is_reached_by_a_key(browser, url):
    async def play(page: Tab) -> None:
        await rows(page, 6)  # three questions at steps 0 and 3
        await page.press("j")
        assert await in_focus(page) == QUESTIONS[0]
        for key in "jjk":
            await page.press(key)
        assert await page.run("document.querySelector('tr.selected').ariaRowIndex") == "3"
        await page.press("Enter")
        await page.until("document.querySelector('.reader-head .soft')?.textContent === '2 of 6'")
        await page.press("]")
        await page.until("document.querySelector('.reader-head .soft').textContent === '3 of 6'")
        await page.press("[")
        await page.until("document.querySelector('.reader-head .soft').textContent === '2 of 6'")
        # Until the new trajectory is there, the page goes on showing the one before.
        await page.until("document.querySelector('.turn')?.closest('[aria-busy]').ariaBusy === 'false'")
        closed = await page.run("document.querySelectorAll('.passage:not([open])').length")
        await page.press("p")
        assert closed
        await page.until("document.querySelector('.passage:not([open])') === null")
        await page.press("j")
        assert (await in_focus(page)).startswith("Turn 1")
        await page.press("h")
        await page.until("document.querySelectorAll('.pair .trajectory').length === 2")
        await page.press("Escape")
        await page.until("document.querySelector('.reader-head .soft')?.textContent === '2 of 6'")
        await page.press("Escape")
        await rows(page, 6)
        assert await page.run("document.querySelector('tr.selected a') === document.activeElement")
        await page.press("End")
        await page.until("document.querySelector('tr.selected').ariaRowIndex === '7'")
        for key, heading in (("2", "Causes of failure"), ("3", "By step"), ("4", "Compare")):
            await page.press(key)
            await page.until(f"document.querySelector('.sheet-head h2')?.textContent === '{heading}'")
        await page.press("/")
        await page.until(f"{FOCUSED}.type === 'search'")
        await page.send("Input.insertText", text="Creek")
        await page.press("Enter")
        await rows(page, 1)
        await page.press("Escape")
        await page.press("x")
        await rows(page, 24)
        await page.press("f")
        assert await page.run(f"{FOCUSED}.type") == "checkbox"
        await page.press("?")
        assert await page.run("document.getElementById('keys').open")
        await page.press("Escape")
        assert not await page.run("document.getElementById('keys').open")

    in_page(browser, f"{url}#run=grpo&split=val&sort=step", play)


def test_the_record_and_the_link_are_copied_and_a_selection_is_exported(browser, url):
    async def play(page: Tab) -> None:
        await rows(page, 24)
        await page.run(RECORD)
        await page.press("e")
        await page.until("window.saved === 'trajectories.html'")
        await page.press("Enter")
        await page.until("document.querySelector('.trajectory') !== null")
        await page.press("c")
        await page.until("window.copied !== undefined")
        assert json.loads(await page.run("window.copied"))["question"] in QUESTIONS
        await page.press("l")
        await page.until("window.copied === location.href")

    in_page(browser, url, play)
