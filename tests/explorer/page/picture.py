"""Draws the picture of the guide: a trajectory of a run in the page of `rag-r1 view`.

python -m tests.explorer.page.picture outputs/demo/grpo docs/images/explorer.png
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from PIL import Image

from tests.explorer.page.sample_runs import view_server
from tests.serving.browser import chromium, tab

#: The trajectories of which the first is drawn.
CHOICE = "kind=training&step_min=4&right=false&cause=retrieved_and_misread&searches_min=2"


def main(run: str, out: str) -> None:
    """Draw a run's trajectory into a PNG."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        with view_server(Path(run)) as address, chromium(Path(folder)) as port:
            asyncio.run(_draw(port, f"{address}#{CHOICE}", Path(out)))


async def _draw(port: int, address: str, out: Path) -> None:
    async with tab(port) as page:
        await page.look(1000, 800, scale=1.5)
        await page.go(address)
        await page.until("document.querySelector('.rows tbody a') !== null")
        await page.click(".rows tbody a")
        await page.until("/ of /.test(document.querySelector('.reader-head').textContent)")
        await page.until("document.querySelector('.trajectory .turn') !== null")
        await asyncio.sleep(1)
        await page.picture(out)
    # Few colours make a small file.
    Image.open(out).convert("RGB").quantize(96, dither=Image.Dither.NONE).save(out, optimize=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
