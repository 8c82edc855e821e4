"""Every view of `rag-r1 view` fits narrow windows, and axe-core has nothing serious to say about it."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import tarfile

import pytest

from tests.explorer.page.page_player import IN_BROWSER, in_page, rows
from tests.serving.browser import Tab

pytestmark = IN_BROWSER

AXE = (
    "axe-core@4.14.1",
    "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==",
)

RUN_AXE = """axe.run({resultTypes: ['violations']}).then(({violations}) => violations
  .filter(({impact}) => impact === 'serious' || impact === 'critical')
  .map(({id, nodes}) => [id, nodes.slice(0, 3).map(({html, failureSummary}) => [html, failureSummary])]))"""
VIEWS = (
    "",
    "view=causes",
    "view=charts",
    "view=compare&a=eval/before&b=eval/after",
    "view=trajectory&tid={}",
    "view=beside&tids={}:2:3",
)
SHOWN = ".rows tbody a, .cause, .chart canvas, .pairs tbody tr, .turn"
READY = f"document.querySelector('main :is({SHOWN})') !== null"


async def each_view(page: Tab, url: str) -> list[str]:
    """The addresses of all views, with the first trajectory's."""
    await rows(page, 24)
    tid = await page.run(
        "new URLSearchParams(document.querySelector('.rows tbody a').hash.slice(1)).get('tid')"
    )
    return [f"{url}#{view.format(tid)}" for view in VIEWS]


def test_every_view_fits_narrow_windows(browser, url):
    async def play(page: Tab) -> None:
        for address in await each_view(page, url):
            for width in (1280, 800, 360):
                await page.look(width, 740)
                await page.run(f"location.href = {json.dumps(address)}")
                await page.until(READY)
                # Charts follow the width of the window when they are drawn the next time.
                await page.until(f"document.documentElement.scrollWidth <= {width}")
                await page.until(f"document.querySelector('main').scrollWidth <= {width}")

    in_page(browser, url, play)


@pytest.fixture(scope="module")
def axe(tmp_path_factory) -> str:
    """The script of axe-core, which npm downloads."""
    folder = tmp_path_factory.mktemp("axe")
    name, digest = AXE
    try:
        command = ["npm", "pack", name, "--silent", "--pack-destination", str(folder)]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=120)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"axe-core cannot be downloaded: {error}")
    (archive,) = folder.glob("*.tgz")
    assert base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode() == digest
    with tarfile.open(archive) as tar:
        return tar.extractfile("package/axe.min.js").read().decode()


@pytest.mark.full
@pytest.mark.parametrize(("dark", "width"), [(False, 1280), (True, 800)], ids=["light", "dark and narrow"])
def test_axe_finds_nothing_serious_in_any_view(browser, url, axe, dark, width):
    async def play(page: Tab) -> None:
        await page.look(width, 900, dark=dark)
        await page.send("Page.reload")
        found = {}
        for address in await each_view(page, url):
            await page.run(f"location.href = {json.dumps(address)}")
            await page.until(READY)
            await page.until("document.querySelectorAll('[aria-busy=true]').length === 0")
            await page.send("Runtime.evaluate", expression=axe)
            if violations := await page.run(RUN_AXE):
                found[address] = violations
        assert found == {}

    in_page(browser, url, play)
