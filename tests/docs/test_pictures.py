"""Every picture of the pages has a command that draws it, the project's colours, and a size that can be read.

What a command draws into a picture is tested beside its code; here is which command it is. Those of
the chat and of the explorer are photographs of the page in a browser.
"""

from __future__ import annotations

import re
import shlex
import struct
from pathlib import Path

import pytest

from rag_r1.runs import pictures
from tests.docs.command_parsers import check_command
from tests.docs.fences import ROOT

#: The picture and the command that draws it, as a page has it.
PICTURES = {
    "docs/images/chat.png": "python -m tests.serving.picture docs/images/chat.png",
    "docs/images/demo.png": "rag-r1 demo",
    "docs/images/explorer.png": (
        "python -m tests.explorer.page.picture outputs/demo/grpo docs/images/explorer.png"
    ),
    "docs/images/pipeline.png": "rag-r1 pipeline --out outputs/pipeline",
    "docs/images/search_card.png": (
        "rag-r1 eval outputs/demo/grpo --card --corpus outputs/demo/grpo/data/corpus.jsonl"
    ),
    "docs/results/agentic_memory.png": "python -m examples.memory.run --seeds 1 2 3",
    "docs/results/agentic_r.png": "python -m examples.agentic_r.run --seeds 0 1 2",
    "docs/results/real_model.png": (
        "python -m examples.real_small.report --grpo grpo0 --grpo grpo1 --grpo grpo2 --evals evals "
        "--out report"
    ),
    "docs/results/two_stages.png": "python benchmarks/two_stages.py --seeds 0 1 2",
}
DRAWN = sorted(set(PICTURES) - {"docs/images/chat.png", "docs/images/explorer.png"})
PAGES = [
    page
    for pattern in ("*.md", "docs/**/*.md", "recipes/**/*.md", "examples/**/*.md", "retrieval_server/*.md")
    for page in ROOT.glob(pattern)
]
#: Text of 9 points at 150 pixels an inch is 10 pixels high in a page of 800 pixels.
MOST_PIXELS = 1500


def test_every_picture_has_a_command():
    shown = {
        (page.parent / target).resolve().relative_to(ROOT).as_posix()
        for page in PAGES
        for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text("utf-8"))
    }
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.png")}
    assert shown == files == set(PICTURES)


@pytest.mark.parametrize("picture", PICTURES)
def test_the_command_of_a_picture_stands_in_a_page(picture: str):
    assert any(PICTURES[picture] in page.read_text("utf-8") for page in PAGES)


@pytest.mark.slow  # imports what the commands import
@pytest.mark.parametrize("picture", PICTURES)
def test_the_command_of_a_picture_is_taken_by_its_parser(picture: str, tmp_path: Path):
    check_command(shlex.split(PICTURES[picture]), tmp_path)


@pytest.mark.parametrize("picture", PICTURES)
def test_a_picture_can_be_read_in_a_page_of_800_pixels(picture: str):
    width, _ = struct.unpack(">II", (ROOT / picture).read_bytes()[16:24])
    assert width <= MOST_PIXELS


@pytest.mark.slow  # decodes a picture
@pytest.mark.parametrize("picture", DRAWN)
def test_the_colours_of_a_picture_are_those_of_the_palette(picture: str):
    np, image = pytest.importorskip("numpy"), pytest.importorskip("matplotlib.image")
    pixels = (image.imread(ROOT / picture)[..., :3] * 255).round().astype(int) @ [1 << 16, 1 << 8, 1]
    packed, counts = np.unique(pixels, return_counts=True)
    colours = packed[:, None] >> [16, 8, 0] & 255
    is_vivid = (counts > pixels.size / 5000) & (np.ptp(colours, axis=1) > 60)
    palette = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in pictures.SERIES])
    paleness = np.linspace(0, 1, 21)[:, None, None]  # lines and bands may be transparent, over white
    shades = (palette + paleness * (255 - palette)).reshape(-1, 3)
    # Where lines cross, or lie on each other, one colour shines through another.
    opaque, below = pictures.LINE_OPACITY, 255 * (1 - pictures.LINE_OPACITY)
    crossed = opaque * palette[:, None] + (1 - opaque) * (opaque * palette + below)
    shades = np.vstack([shades, crossed.reshape(-1, 3)])
    is_ours = np.abs(colours[is_vivid][:, None] - shades).max(-1).min(-1) <= 12
    # The rest are edges of letters and of lines.
    assert counts[is_vivid][is_ours].sum() > 0.85 * counts[is_vivid].sum() > 0
