"""What stands in the parquet: no duplicates, no overlap, ids of their own, rows that veRL reads."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.data.files.qa_parquet import make_rows, make_splits, question_key, write_splits
from rag_r1.data.files.question_file import QuestionFile
from rag_r1.data.files.questions import Question
from rag_r1.data.rows import QuestionRow
from rag_r1.io.errors import DataError
from rag_r1.protocols import load_protocol
from rag_r1.rewards import as_golds

SQ, MQ = load_protocol("rag_r1_sq"), load_protocol("rag_r1_mq")


def source(*questions: str | Question, name: str = "made") -> QuestionFile:
    rows = [q if isinstance(q, Question) else Question(q, ("x",)) for q in questions]
    return QuestionFile(name, rows, n_read=len(rows))


def texts(split):
    return [q.question for q in split.questions]


def test_the_first_of_duplicates_stays_and_overlap_leaves_train():
    train, test = make_splits(source("A?", "B?", "a", "C?", "c!"), source("D?", "b", "B?"))
    assert (train.name, texts(train)) == ("train", ["A?", "C?"])
    assert (test.name, texts(test)) == ("test", ["D?", "b"])
    assert train.counts == {"read": 5, "malformed": 0, "duplicates": 2, "overlap_with_test": 1, "written": 2}
    assert test.counts == {"read": 3, "malformed": 0, "duplicates": 1, "overlap_with_test": 0, "written": 2}


def test_one_split_alone_is_enough():
    assert [split.name for split in make_splits(source("A?"), None)] == ["train"]
    assert [split.name for split in make_splits(None, source("A?"))] == ["test"]


def test_a_train_set_that_is_all_in_test_is_an_error():
    with pytest.raises(DataError, match="mine.json is also in the validation set"):
        make_splits(source("A?", name="mine.json"), source("a"))


TEXTS = st.text(alphabet="ab ?é1", min_size=1)


@given(st.lists(TEXTS), st.lists(TEXTS, min_size=1))
def test_counts_add_up_and_the_splits_share_nothing(train_texts, test_texts):
    train_source, test_source = source("kept in any case", *train_texts), source(*test_texts)
    train, test = make_splits(train_source, test_source)
    for split in (train, test):
        assert 2 * split.counts["read"] == sum(split.counts.values())
    keys = [question_key(q.question) for split in (train, test) for q in split.questions]
    assert len(keys) == len(set(keys))
    assert {question_key(t) for t in ["kept in any case", *train_texts, *test_texts]} == set(keys)


def test_a_row_has_the_protocols_prompt_and_its_place():
    [row] = make_rows([Question("Who?", ("Ada", "A. L."), "q1")], MQ, "hotpotqa", "train")
    assert row == QuestionRow(
        "Who?",
        golds=("Ada", "A. L."),
        prompt=tuple(MQ.messages("Who?")),
        id="hotpotqa/train/q1",
        data_source="hotpotqa",
        protocol="rag_r1_mq",
        index=0,
    )


def test_ids_are_unique_across_splits_sources_and_repeated_source_ids():
    questions = [Question(f"{i}?", ("x",), "same" if i < 3 else None) for i in range(6)]
    questions.append(Question("own?", ("x",), "own"))
    files = product(("hotpotqa", "nq"), ("train", "test"))
    ids = [row.id for name, split in files for row in make_rows(questions, SQ, name, split)]
    assert len(set(ids)) == len(ids) == 28
    assert "nq/test/own" in ids and not any(id_.endswith("/same") for id_ in ids)


def test_a_question_has_the_same_id_under_every_protocol_and_at_every_place():
    questions = [Question("A?", ("x",)), Question("B?", ("x",))]
    sq = {r.question: r.id for r in make_rows(questions, SQ, "s", "train")}
    mq = {r.question: r.id for r in make_rows(questions[::-1], MQ, "s", "train")}
    assert sq == mq


def test_what_is_written_is_read_back_and_scored_as_golds(tmp_path):
    made = source(Question("Who é?", ("Ada", "A, L")), Question("One?", ("1",)))
    write_splits(make_splits(made, source("Z?")), SQ, "made", tmp_path)
    rows = pq.read_table(tmp_path / "train.parquet").to_pylist()
    assert rows == [row.to_row() for row in make_rows(made.questions, SQ, "made", "train")]
    frame = pq.read_table(tmp_path / "train.parquet").to_pandas()
    assert [as_golds(cell["ground_truth"]) for cell in frame["reward_model"]] == [["Ada", "A, L"], ["1"]]


def test_an_error_leaves_both_files_of_an_earlier_run(tmp_path):
    """A row of the new training file may be in the earlier test file."""
    write_splits(make_splits(source("A?"), source("B?")), SQ, "made", tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    train, test = make_splits(source("B?"), source("C?"))
    with pytest.raises(AttributeError):
        write_splits([train, replace(test, questions=[None])], SQ, "made", tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.slow
def test_verl_reads_the_files_and_joins_sources(tmp_path, monkeypatch):
    datasets, omegaconf = pytest.importorskip("datasets"), pytest.importorskip("omegaconf")
    rl_dataset = pytest.importorskip("verl.utils.dataset.rl_dataset")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for name, protocol in (("one", SQ), ("two", MQ)):
        write_splits(make_splits(source(f"{name}?"), None), protocol, name, tmp_path / name)

    class Words:
        """As much of a tokenizer as veRL's length filter needs."""

        def apply_chat_template(self, messages, **options):
            return [len(word) for message in messages for word in message["content"].split()]

    files = [str(tmp_path / name / "train.parquet") for name in ("one", "two")]
    config = omegaconf.OmegaConf.create({"max_prompt_length": 500, "filter_overlong_prompts_workers": None})
    joined = rl_dataset.RLHFDataset(files, Words(), config)
    assert [joined[i]["raw_prompt"] for i in (0, 1)] == [SQ.messages("one?"), MQ.messages("two?")]
    assert [joined[i]["extra_info"]["id"].split("/")[0] for i in (0, 1)] == ["one", "two"]
    assert joined[1]["agent_name"] == "search_agent"
    assert joined[1]["reward_model"]["ground_truth"]["target"] == ["x"]
