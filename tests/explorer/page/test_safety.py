"""No record runs a script in the page of `rag-r1 view`, or in what is exported from it."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.explorer.page.page_player import IN_BROWSER, fetched, in_page, rows
from tests.explorer.page.sample_runs import GOLD, played, view_server, write_records
from tests.serving.browser import Tab

pytestmark = IN_BROWSER

ATTACK = (
    "<img src=x onerror=\"window.ran='{0}'\"><script>window.ran='{0}'</script>"
    "<a href=\"javascript:window.ran='{0}'\">\u202e{0}\u2066</a></script>--><svg onload=\"window.ran='{0}'\">"
)


def hostile_records() -> list[dict]:
    """200 records with markup, control characters, lone surrogates and long texts in every field."""
    made = []
    for number in range(200):
        text = ATTACK.format(number) + ("\ud800" if number % 3 else "\x00\x1b[31m")
        long = text + "x" * 30_000 if number % 50 == 0 else text
        record = played(0, GOLD).to_dict()
        record |= {"id": f"{number}{text}", "question": f"{number} {long}", "answer": long, "golds": [text]}
        record |= {"data_source": text, "status": text, "protocol": text, "metadata": {text: {text: text}}}
        record |= {"rewards": {"score": 0.5, "em": 0.0, text: 1.0}, "step": number, "split": text}
        for turn in record["turns"]:
            turn |= {"text": f"<think>{text}</think>{long}", "action": text, "status": text}
            for call in turn["calls"]:
                call |= {"arguments": {"query": text, text: text}, "tool": text, "sent": {"query": text}}
                call["documents"] = [
                    {"id": text, "contents": f"{text}\n{long}", "score": 1.0, "verbatim": False}
                ]
        record["failures"] = [{"kind": text, "turn": 0, "detail": text}]
        record["paths"] = [dict(record), dict(record)] if number == 7 else []
        made.append(record)
    return made


async def nothing_ran(page: Tab) -> None:
    assert await page.run("typeof window.ran") == "undefined"
    made = (
        "document.querySelectorAll('main :is(img, script, iframe, [onload], [onerror], a[href^=javascript])')"
    )
    assert await page.run(f"{made}.length") == 0


@pytest.mark.full
def test_nothing_in_200_hostile_records_runs_in_any_view_or_in_an_export(tmp_path, browser, cache):
    folder = "".join(filter(str.isprintable, ATTACK.format("folder"))).replace("/", "_")
    write_records(tmp_path / folder, hostile_records())
    write_records(tmp_path / "other", hostile_records())

    async def play(page: Tab) -> None:
        await page.until("document.querySelector('.total')?.textContent.startsWith('400 trajectories')")
        await page.until("document.querySelectorAll('.facet').length > 3")
        await nothing_ran(page)
        text = await page.run("document.querySelector('.rows tbody a').textContent")
        assert "<script>" in text and "⟨202E⟩" in text and "\u202e" not in text
        for tid in await page.run(
            "[...document.querySelectorAll('.rows tbody a')].map((one) => one.hash).slice(0, 12)"
        ):
            await page.run(f"location.hash = {json.dumps(tid)}")
            await page.until("document.querySelector('.trajectory .passage') !== null")
            await page.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
            await nothing_ran(page)
        for view in ("causes", "charts", "compare", "beside&tids=1:2:3"):
            await page.run(f"location.hash = '#view={view}'")
            await page.until("document.querySelector('.sheet :is(.cause, .chart, .pairs, .pair)') !== null")
            await asyncio.sleep(0.1)
            await nothing_ran(page)

    with view_server(tmp_path) as address:
        in_page(browser, address, play)
        export = tmp_path / "page.html"
        export.write_bytes(fetched(f"{address}api/export?{'&'.join(f'tid={n}' for n in range(1, 41))}"))

    async def read(page: Tab) -> None:
        assert len(await page.texts(".exported a")) == 40
        for number in (1, 8, 40):
            await page.run(f"location.hash = '#{number}'")
            await page.until("document.querySelectorAll('.exported a[aria-current]').length === 1")
            await nothing_ran(page)

    in_page(browser, export.as_uri(), read)


def test_should_markup_get_in_the_pages_policy_still_keeps_it_from_running(browser, url):
    ways = (
        f"document.body.innerHTML = {json.dumps(ATTACK.format('markup'))}",
        "const i = new Image(); i.setAttribute('onerror', 'window.ran = 1'); i.src = 'x'",
        "const s = document.createElement('script'); s.text = 'window.ran = 2'; document.body.append(s)",
        "window.ran = eval('4')",
    )

    async def play(page: Tab) -> None:
        await rows(page, 24)
        for way in ways:
            await page.run(f"(() => {{ try {{ {way} }} catch (error) {{}} }})()")
        await asyncio.sleep(0.2)
        assert await page.run("typeof window.ran") == "undefined"

    in_page(browser, url, play, problems=True)


def test_an_export_shows_the_same_trajectory_without_a_server(tmp_path, browser, runs, url):
    export = tmp_path / "page.html"
    export.write_bytes(fetched(f"{url}api/export?tid=1&tid=2"))

    async def play(page: Tab) -> None:
        first, second = await page.texts(".exported a")
        await page.until("document.querySelector('.trajectory .question') !== null")
        assert first.endswith((await page.texts(".trajectory .question"))[0])
        assert await page.texts(".turn") != []
        await page.press("]")
        await page.until("location.hash === '#2'")
        shown = "document.querySelector('.trajectory .question').textContent"
        await page.until(f"{json.dumps(second)}.endsWith({shown})")
        assert await page.run("performance.getEntriesByType('resource').length") == 0

    in_page(browser, export.as_uri(), play)
