"""Comparing runs: only equal cards, only shared questions, and differences that are computed by question."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rag_r1.evaluation.report.bootstrap import Bootstrap
from rag_r1.evaluation.report.compare_command import compare, main, run_names
from rag_r1.evaluation.report.comparison_markdown import markdown
from rag_r1.runs.errors import RunError
from tests.evaluation.finished_runs import card, record, write_run

FEW = Bootstrap(resamples=200)
CARD = card()


def runs(tmp_path: Path, *all_records: list[dict], cards=None) -> list[Path]:
    """Run folders `a`, `b`, ... with these records and the same card."""
    rows = zip("abcd", all_records, cards or [CARD] * len(all_records), strict=False)
    return [write_run(tmp_path / name, records, run_card) for name, records, run_card in rows]


def compared(tmp_path: Path, *all_records: list[dict], cards=None, **options) -> dict:
    """The comparison of such runs, with few replicates."""
    return compare(runs(tmp_path, *all_records, cards=cards), bootstrap=FEW, **options)


def answers(pattern: str, source: str = "hotpotqa", **options) -> list[dict]:
    """Records of one question for each letter: `r` right, `w` wrong, `f` failed."""
    texts = {"r": "Paris", "w": "Rome", "f": None}
    return [
        record(f"{source}/{i}", texts[c], failure="engine" if c == "f" else None, source=source, **options)
        for i, c in enumerate(pattern)
    ]


def values_of(group: dict, key: str = "values") -> list[float]:
    return [figure["value"] for figure in group[key]]


def test_identical_runs_do_not_differ(tmp_path):
    records = answers("rrwwr") + answers("wrw", "nq")
    comparison = compared(tmp_path, records, records[::-1])
    for figure in comparison["figures"].values():
        for group in (*figure["sources"].values(), figure["mean"], figure["all"]):
            [difference] = group["differences"]
            assert [difference[name] for name in ("value", "low", "high")] == [0.0] * 3
            if figure["tested"]:
                assert difference["p"] == difference["p_bootstrap"] == difference.get("p_holm", 1.0) == 1.0


def test_differences_and_tests_by_hand(tmp_path):
    """HotpotQA: 1 to 7 of 8 that differ; NQ: 0 to 5 of 5."""
    first = answers("rwwwwwww" + "rr") + answers("wwwww", "nq")
    second = answers("wrrrrrrr" + "rr") + answers("rrrrr", "nq")
    comparison = compared(tmp_path, first, second)
    em = comparison["figures"]["em"]
    [hotpot] = em["sources"]["hotpotqa"]["differences"]
    [nq] = em["sources"]["nq"]["differences"]
    assert (hotpot["test"], hotpot["only_first"], hotpot["only_second"]) == ("mcnemar", 1, 7)
    assert hotpot["value"] == 0.6 and hotpot["p"] == pytest.approx(18 / 256)
    assert nq["value"] == nq["low"] == nq["high"] == 1.0 and nq["p"] == pytest.approx(2 / 32)
    assert nq["p_bootstrap"] == pytest.approx(1 / 201, rel=1e-5)  # no replicate is as far from 1 as 0 is
    # Holm: the smaller, 0.0625, is doubled, and the larger cannot be below it.
    assert nq["p_holm"] == hotpot["p_holm"] == pytest.approx(0.125)
    assert em["mean"]["differences"][0]["value"] == 0.8
    assert em["all"]["differences"][0]["value"] == pytest.approx(11 / 15, abs=1e-6)
    assert values_of(em["sources"]["hotpotqa"]) == [0.3, 0.9]
    f1 = comparison["figures"]["f1"]["sources"]["hotpotqa"]["differences"][0]
    # Signs of 1 and -1 flipped at will: the same binomial test.
    assert f1["test"] == "permutation" and f1["p"] == pytest.approx(18 / 256)


def test_only_questions_that_all_runs_have_and_none_has_lost_count(tmp_path):
    first = answers("rrwf") + answers("r", "nq")
    second = answers("wrfrr")
    comparison = compared(tmp_path, first, second)
    counts = comparison["questions"]
    assert counts["compared"] == 2 and comparison["sources"] == ["hotpotqa"]
    assert counts["not_in_all_runs"] == [1, 1] and counts["failed"] == [1, 1]
    assert values_of(comparison["figures"]["em"]["all"]) == [1.0, 0.5]
    page = markdown(comparison)
    assert "| a | 1 | 1 |" in page and page.startswith("# Comparison\n\n2 questions")


def test_failures_that_the_runs_show_to_the_policy_are_scored(tmp_path):
    scoring = card(failures={"mask": ["engine"]})
    records = [record("a", "Rome", failure="retriever")]
    comparison = compared(tmp_path, records, records, cards=[scoring] * 2)
    assert comparison["questions"]["compared"] == 1


def test_several_runs_are_each_compared_with_the_first(tmp_path):
    three = runs(tmp_path, answers("wwww"), answers("rwww"), answers("rrrr"))
    em = compare(three, bootstrap=FEW)["figures"]["em"]["all"]
    assert values_of(em) == [0.0, 0.25, 1.0] and values_of(em, "differences") == [0.25, 1.0]


def test_holm_corrects_over_sources_and_runs(tmp_path):
    others = [answers("rrrrr") + answers("rrrrr", "nq")] * 2
    three = runs(tmp_path, answers("wwwww") + answers("wwwww", "nq"), *others)
    figure = compare(three, bootstrap=FEW)["figures"]["em"]
    differences = [row for group in figure["sources"].values() for row in group["differences"]]
    assert [row["p_holm"] for row in differences] == pytest.approx([4 * 2 / 32] * 4)


def test_samples_are_averaged_by_question_and_tested_by_permutation(tmp_path):
    first = [record("q", "Rome", sample=i) for i in range(4)] + [record("z", "Rome")]
    second = [record("q", "Paris" if i else "Rome", sample=i) for i in range(4)] + [record("z", "Rome")]
    em = compared(tmp_path, first, second)["figures"]["em"]["sources"]["hotpotqa"]
    assert em["values"][1]["value"] == 0.375  # three quarters of one of two questions
    assert em["differences"][0]["test"] == "permutation" and em["differences"][0]["p"] == 1.0


def test_the_first_runs_place_only_turns_the_signs(tmp_path):
    first, second = answers("rwwrwr"), answers("rrrrww")
    orders = {"a": (first, second), "turned": (second, first)}
    ems = [compared(tmp_path / name, *order)["figures"]["em"]["all"] for name, order in orders.items()]
    a, b = (em["differences"][0] for em in ems)
    assert (a["value"], a["p"]) == (-b["value"], b["p"])


def test_the_normaliser_can_be_chosen(tmp_path):
    first = [record("q", "Jean-Luc", golds=["Jean Luc"])]
    for normaliser, value in (("squad", 0.0), ("r1_searcher", 1.0)):
        figures = compared(tmp_path, first, first, normaliser=normaliser)["figures"]
        assert values_of(figures["em"]["all"]) == [value, value]


def test_runs_whose_cards_differ_are_refused_with_every_key_and_both_values(tmp_path):
    other = card(model={"name": "trained"}, corpus_sha256="e" * 64, budget={"max_turns": 8})
    folders = runs(tmp_path, answers("rw"), answers("rr"), cards=[CARD, other])
    with pytest.raises(RunError) as caught:
        compare(folders)
    message = str(caught.value)
    for part in (
        "model.name: 'base' | 'trained'",
        f"model.sha256: {'0' * 64!r} | not known",
        "budget.max_turns: 4 | 8",
        f"corpus_sha256: {'c' * 64!r} | {'e' * 64!r}",
        "--differs budget --differs corpus_sha256 --differs model",
    ):
        assert part in message
    with pytest.raises(RunError) as caught:
        compare(folders, ["model", "budget.max_turns"])
    assert "model" not in str(caught.value).split("name it")[0] and "corpus_sha256" in str(caught.value)
    comparison = compare(folders, ["model,budget", "corpus_sha256"], bootstrap=FEW)
    assert comparison["differing"]["budget.max_turns"] == [4, 8]
    assert "| budget.max\\_turns | 4 | 8 |" in markdown(comparison)


def test_a_key_that_no_card_has_is_refused(tmp_path):
    folders = runs(tmp_path, answers("r"), answers("w"))
    with pytest.raises(RunError, match=r"--differs modle: .* did you mean model\?"):
        compare(folders, ["modle"])


def test_a_run_without_a_card_is_refused_unless_it_is_named(tmp_path):
    folders = runs(tmp_path, answers("rw"), answers("rr"), cards=[CARD, None])
    with pytest.raises(RunError, match=r"/b: no provenance\.json"):
        compare(folders)
    assert compare(folders, ["card"], bootstrap=FEW)["differing"] == {}


def test_the_same_id_for_another_question_is_a_bad_row(tmp_path):
    first = [record("q1"), record("q2")]
    second = [record("q1", golds=["Lyon"]), record("q2")]
    folders = runs(tmp_path, first, second)
    with pytest.raises(RunError, match="1 bad row: hotpotqa, q1: another question, or other gold"):
        compare(folders)
    comparison = compare(folders, bootstrap=FEW, skip_bad_rows=True)
    assert comparison["questions"]["compared"] == 1
    assert "**1 ids stand for different questions" in markdown(comparison)


def test_runs_without_a_shared_question_are_refused(tmp_path):
    with pytest.raises(RunError, match="no question has an answer in all of these runs"):
        compare(runs(tmp_path, answers("r"), answers("r", "nq")))


def test_terms_that_all_runs_have_are_compared(tmp_path):
    first = answers("r", rewards={"judge": 0.25, "own": 1.0}) + answers("r", "nq", rewards={"judge": 0.25})
    second = answers("r", rewards={"judge": -0.5}) + answers("r", "nq", rewards={"judge": 0.5})
    figures = compared(tmp_path, first, second)["figures"]
    judge = figures["term:judge"]["all"]
    assert judge["differences"][0]["value"] == -0.25 and "term:own" not in figures
    assert judge["values"][1]["high"] == 0.0, "an interval of values that are not all in [0, 1]"


def test_published_figures_are_shown_as_not_comparable(tmp_path):
    folders = runs(tmp_path, answers("r", "rag_r1/hotpotqa"), answers("w", "rag_r1/hotpotqa"))
    page = markdown(compare(folders, bootstrap=FEW))
    assert "**Not comparable**" in page and "| RAG-R1-mq | em | 0.495 | 0.495 | arXiv 2507.02962" in page
    both = [answers(fates, "rag_r1/hotpotqa") + answers(fates, "rag_r1/popqa") for fates in "rw"]
    page = markdown(compared(tmp_path / "both", *both))
    assert "| RAG-R1-mq | em | 0.479 | 0.495 | 0.487 | arXiv 2507.02962" in page
    assert "| R1-Searcher (Qwen2.5-7B) | judge | – | 0.750 | – | arXiv 2503.05592" in page
    page = markdown(compared(tmp_path / "own", answers("r", "own"), answers("w", "own")))
    assert "Published" not in page


def test_names_of_runs_tell_them_apart(tmp_path):
    assert run_names([Path("x/a"), Path("x/b")]) == ["a", "b"]
    assert run_names([Path("x/run"), Path("y/run")]) == ["x/run", "y/run"]
    assert run_names([Path("x/run"), Path("x/run")]) == ["run (1)", "run (2)"]
    assert run_names([Path("x/run"), Path("y/run"), Path("x/run")])[2] == "x/run (3)"


@pytest.mark.slow
def test_the_command_prints_the_tables_and_writes_its_files(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    folders = runs(tmp_path, answers("rwwwww"), answers("rrrrrr"), cards=[CARD, card(seed=1)])
    arguments = [*map(str, folders), "--resamples", "50", "--out", str(tmp_path / "out")]
    assert main(arguments) == 1
    assert "seed: 0 | 1" in capsys.readouterr().err and not (tmp_path / "out").exists()
    assert main([*arguments, "--differs", "seed"]) == 0
    printed = capsys.readouterr().out
    assert "| HotpotQA | 6 | +0.833 [" in printed and "| 0 | 5 | 0.062 | 0.062 |" in printed
    names = ["compare.json", "compare.md", "compare_em.png", "compare_f1.png"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    comparison = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert comparison["runs"] == ["a", "b"] and comparison["differing"] == {"seed": [0, 1]}


def test_the_command_needs_two_runs(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path)])
    assert ended.value.code == 2 and "give at least two runs" in capsys.readouterr().err


def test_validations_of_trainings_are_compared_at_one_step(tmp_path, capsys):
    first, second = answers("ww", step=2) + answers("rw", step=4), answers("rr", step=4)
    arguments = [*map(str, runs(tmp_path, first, second)), "--check-only"]
    assert main(arguments) == 1 and "choose one with --step" in capsys.readouterr().err
    assert main([*arguments, "--step", "4"]) == 0
    assert "2 runs share 2 questions" in capsys.readouterr().out


def test_a_comparison_is_the_same_for_another_order_of_records(tmp_path):
    first, second = answers("rwrwwr") + answers("rw", "nq"), answers("rrwwwr") + answers("ww", "nq")
    comparison = compared(tmp_path, first, second)
    assert json.dumps(comparison) == json.dumps(compared(tmp_path / "again", first[::-1], second[::-1]))


def test_folders_without_records_are_named_and_nothing_else_is_asked_of_them(tmp_path, capsys):
    (full,) = runs(tmp_path, answers("r"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "other" / "trajectories").mkdir(parents=True)
    assert main([str(tmp_path / "empty"), str(full)]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: {tmp_path}/empty has no trajectory records: ") and said.count("\n") == 1
    assert main([str(tmp_path / "empty"), str(tmp_path / "other")]) == 1
    said = capsys.readouterr().err
    assert f"{tmp_path}/empty has" in said and f"{tmp_path}/other/trajectories has" in said
    assert "provenance" not in said


def test_a_record_without_an_id_is_named_by_its_file_and_line(tmp_path, capsys):
    folders = runs(tmp_path, answers("rw"), answers("rw"))
    (file,) = folders[1].rglob("*.jsonl")
    with file.open("a") as lines:
        lines.write('{"question": "Who?"}\n')
    assert main(list(map(str, folders))) == 1
    assert f"{file}, line 3: a record is not a trajectory: it has no id, protocol" in capsys.readouterr().err
