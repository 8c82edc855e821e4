"""The writer of pages and the one place that draws."""

from __future__ import annotations

import sys
from itertools import combinations

import pytest

from rag_r1.runs import pictures
from rag_r1.runs.markdown import Claim, Page, number, table

PAGE = """\
# Title

One.

Two.

## Part

| a | b |
|---|---:|
| x | 1 |

- c: held
- d: held in part (1 of 2 seeds)

![p](p.png)"""


@pytest.mark.parametrize(
    ("value", "signed", "text"),
    [(1e-4, True, "0.000"), (-1e-4, True, "0.000"), (-1e-4, False, "0.000"), (1e-3, True, "+0.001")],
)
def test_a_number_that_rounds_to_zero_has_no_sign(value, signed, text):
    assert number(value, signed=signed) == text


def test_the_name_of_a_picture_is_no_markup(tmp_path):
    assert str(Page().pictures([tmp_path / "a)*b.png"])) == r"![a)\*b](a%29%2Ab.png)"


def test_a_page_has_an_empty_line_between_its_blocks(tmp_path):
    page = Page("Title").text("One.", "Two.").heading("Part").table(["a", "b"], [["x", "1"]])
    page.bullets([Claim("c", True), Claim("d", 1, 2)]).bullets([]).pictures([tmp_path / "p.png"])
    assert str(page) == PAGE


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [(Claim("c", False), "missed"), (Claim("c", 0, 2), "missed"), (Claim("c", 2, 2), "held")],
)
def test_a_claim_is_held_or_missed(claim, verdict):
    assert claim.verdict == verdict


def test_columns_are_aligned_as_is_said():
    assert table(["n", "name"], [], "rl")[1] == "|---:|---|"


def test_without_matplotlib_there_is_no_picture_and_a_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert pictures.draw(tmp_path / "p.png", pytest.fail, size=(1, 1)) == []
    assert "no picture p.png" in caplog.text and not list(tmp_path.iterdir())


#: To linear RGB of what protanopes, deuteranopes and tritanopes see (Machado et al., 2009, severity 1).
SEEN = {
    "protan": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    "deutan": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    "tritan": ((1.256, -0.077, -0.179), (-0.078, 0.931, 0.148), (0.005, 0.691, 0.304)),
}


def lab(color: str, seen: tuple[tuple[float, ...], ...]) -> list[float]:
    """A colour as it is seen, in CIE L*a*b*."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    red, green, blue = (sum(a * b for a, b in zip(row, linear, strict=True)) for row in seen)
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089
    x, y, z = (max(v, 0.0) ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return [116 * y - 16, 500 * (x - y), 200 * (y - z)]


@pytest.mark.parametrize("kind", SEEN)
def test_the_colour_blind_can_tell_series_apart(kind):
    for one, other in combinations(pictures.SERIES, 2):
        apart = [a - b for a, b in zip(lab(one, SEEN[kind]), lab(other, SEEN[kind]), strict=True)]
        assert sum(d * d for d in apart) ** 0.5 > 15, (one, other)


def test_a_line_without_points_draws_nothing():
    pictures.line(None, [], "none", pictures.BLUE)
