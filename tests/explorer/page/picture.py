"""Draws the picture of the guide: a trajectory of a run in the page of `rag-r1 view`.

python -m tests.explorer.page.picture outputs/demo/grpo docs/images/explorer.png
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from pathlib import Path

from tests.explorer.page.sample_runs import view_server
from tests.serving.browser import chromium, tab

#: The trajectories of which the first is drawn.
CHOICE = "kind=training&step_min=4&right=false&cause=retrieved_and_misread&searches_min=2"


def main() -> None:
    """Draw a run's trajectory into a PNG."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a training")
    parser.add_argument("out", type=Path, help="the PNG")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        with view_server(args.run) as address, chromium(Path(folder)) as port:
            asyncio.run(_draw(port, f"{address}#{CHOICE}", args.out))


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


if __name__ == "__main__":
    main()
