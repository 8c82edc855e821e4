"""The benchmark of search cards: what it checks, and that a finished card is not played again."""

from __future__ import annotations

import json

import pytest

from benchmarks import search_card as benchmark
from rag_r1.demo.world import KINDS
from rag_r1.probes.probes import PROBES

RIGHT = {"real": 0.9, "closed_book": 0.0, "empty": 0.1, "random": 0.1, "gold": 0.95, "withheld": 0.2}


def card(kinds: dict[str, float] | None = None, **changed: float) -> dict:
    """A card; `kinds`: the EM with a closed book by kind."""
    conditions = {
        name: {
            "em": {"value": value},
            "groups": {
                f"demo/{kind}": {"value": (kinds or {}).get(kind, value) if name == "closed_book" else value}
                for kind in KINDS
            },
        }
        for name, value in {**RIGHT, **changed}.items()
    }
    return {"conditions": conditions, "verdict": "searches"}


@pytest.mark.parametrize(
    ("made", "held"),
    [
        (card(), [True, True, True]),
        (card({"both": 0.06}), [False, True, True]),
        (card({"comparison": 0.5}), [True, True, True]),
        (card(withheld=0.46), [True, False, True]),
        (card(gold=0.89), [True, True, False]),
    ],
)
def test_what_is_checked_holds_or_not(made, held):
    assert list(benchmark.checks(made).values()) == held


@pytest.mark.slow  # draws a picture
def test_finished_cards_become_a_table_and_one_picture(tmp_path, capsys):
    for seed, made in ((0, card()), (1, card(gold=0.5))):
        folder = tmp_path / f"seed{seed}" / "card"
        folder.mkdir(parents=True)
        (folder / "search_card.json").write_text(json.dumps(made))
    benchmark.main(["--seeds", "0", "1", "--out", str(tmp_path)])
    output = capsys.readouterr().out
    assert "| the real run | 0.90 | 0.90 | 0.90 |" in output and output.count("| ") > len(PROBES)
    assert (
        "seed 0: searches; all held" in output and "seed 1: searches; missed: gold >= the real run" in output
    )
    assert (tmp_path / "search_card.png").read_bytes()[:4] == b"\x89PNG"
