"""Every source's rows become questions, from each layout in which it is published; others are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_process.mixture import MixEntry
from data_process.source_rows import read_source
from data_process.sources import SOURCES
from data_process.sources.multi_question import MAX_GOLDS, join_questions, joined_answers
from data_process.sources.source_kind import HubSplit
from rag_r1.data.files.questions import Question
from rag_r1.data.row_schema import SOURCE_METADATA
from rag_r1.data.rows import QuestionRow, RowWriter, read_rows, row_fault
from rag_r1.io.errors import DataError
from rag_r1.rewards.terms.choice import choice_score

from .conftest import DATA, needs_data

SAMPLES = DATA / "raw_samples"
real_data = needs_data(SAMPLES)

#: File -> its source, its rows, and how many of them tell supporting titles, a type and hops.
FILES = {
    "2wikimultihopqa_raw_20.json": ("2wikimultihopqa", 20, 20, 20, 20),
    "asearcher_frames_20.jsonl": ("asearcher", 20, 0, 0, 0),
    "bamboogle_flashrag_20.jsonl": ("bamboogle", 20, 0, 0, 20),
    "bamboogle_raw_20.csv": ("bamboogle", 20, 0, 0, 20),
    "gsm8k_20.jsonl": ("gsm8k", 20, 0, 20, 0),
    "hotpotqa_raw_distractor_20.json": ("hotpotqa", 20, 20, 20, 20),
    "medmcqa_20.jsonl": ("medmcqa", 20, 0, 20, 0),
    "medqa_us_4options_20.jsonl": ("medqa", 20, 0, 20, 0),
    "medqa_zh_4options_20.jsonl": ("medqa_zh", 20, 0, 20, 0),
    "musique_ans_raw_20.jsonl": ("musique", 20, 20, 20, 20),
    "nq_flashrag_20.jsonl": ("nq", 20, 0, 0, 0),
    "nq_flashrag_quickstart_17.jsonl": ("nq", 17, 0, 0, 0),
    "popqa_flashrag_20.jsonl": ("popqa", 20, 20, 20, 20),
    "popqa_raw_with_paragraphs_20.jsonl": ("popqa", 20, 20, 20, 20),
    "triviaqa_flashrag_20.jsonl": ("triviaqa", 20, 0, 0, 0),
}
#: Not questions.
CORPUS = "searchr1_example_corpus_10.jsonl"


def read(source: str, path: Path) -> list[Question | ValueError]:
    return [question for _, question in read_source(MixEntry("train", SOURCES[source], source, path))]


def question_of(source: str, row: object) -> Question:
    return SOURCES[source].read_row(row, SOURCES)


@real_data
def test_every_sample_is_listed_here():
    assert sorted(path.name for path in SAMPLES.iterdir()) == sorted([*FILES, CORPUS])


@real_data
@pytest.mark.parametrize("name", FILES)
def test_every_row_of_a_sample_is_a_valid_row(name, tmp_path):
    source, n, titles, types, hops = FILES[name]
    questions = read(source, SAMPLES / name)
    assert len(questions) == n and all(isinstance(question, Question) for question in questions)
    with RowWriter(tmp_path / "rows.parquet") as writer:
        for question in questions:
            prompt = ({"role": "user", "content": question.question},)
            writer.add(QuestionRow(question.question, question.golds, prompt, metadata=question.metadata))
    rows = list(read_rows(tmp_path / "rows.parquet"))
    assert [row_fault(row) for row in rows] == [None] * n
    kept = [QuestionRow.from_row(row) for row in rows]
    assert [row.golds for row in kept] == [question.golds for question in questions]
    keys = ("supporting_titles", "question_type", "hops")
    assert [sum(key in row.metadata for row in kept) for key in keys] == [titles, types, hops]


@real_data
def test_a_corpus_is_not_a_file_of_questions():
    for source in SOURCES:
        with pytest.raises(DataError, match="no usable question.*row 1: "):
            read(source, SAMPLES / CORPUS)


@real_data
@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("med")])
def test_of_a_multiple_choice_the_right_letter_and_its_text_are_right_and_no_other_option(name):
    for question in read(FILES[name][0], SAMPLES / name):
        _, *options = question.question.rsplit("\n", 4)
        letters = [option.partition(". ") for option in options]
        right = [letter for letter, _, text in letters if choice_score(letter, list(question.golds))]
        assert [letter for letter, _, text in letters if choice_score(text, list(question.golds))] == right
        assert len(right) == 1 and f"{right[0]}." in question.golds[2]


@real_data
@pytest.mark.parametrize(
    ("name", "named"),
    [
        (name, named)
        for name, (source, *_) in FILES.items()
        for named in ("hotpotqa", "2wikimultihopqa", "musique", "popqa", "gsm8k", "asearcher", "nq")
        if source not in (named, "asearcher", "nq", "triviaqa", "bamboogle", "medmcqa")
    ],
)
def test_a_sample_under_another_name_is_refused(name, named):
    with pytest.raises(DataError, match=f"row 1: not of {named}|row 1: .answer. must"):
        read(named, SAMPLES / name)


@real_data
def test_musique_names_the_answer_of_every_hop_and_the_last_is_the_questions():
    for question in read("musique", SAMPLES / "musique_ans_raw_20.jsonl"):
        steps = question.metadata["step_answers"]
        assert len(steps) == question.metadata["hops"] and steps[-1] == question.golds[0]


@real_data
def test_the_same_questions_in_two_layouts_are_the_same():
    raw, flashrag = (
        read("bamboogle", SAMPLES / f"bamboogle_{name}") for name in ("raw_20.csv", "flashrag_20.jsonl")
    )
    assert [(q.question, q.golds) for q in raw] == [(q.question, q.golds) for q in flashrag]


#: Rows in the layouts that the samples do not have, and the questions that they are.
TITLES = {"supporting_titles": ["Ada", "Byron"]}


def who(**columns: object) -> dict:
    return {"question": "Who?", **columns}


def answered(*golds: str, id: str | None = None, question: str = "Who?", **metadata: object) -> Question:
    return Question(question, golds, id, metadata=metadata)


FACTS = {"title": ["Ada", "Byron", "Ada"], "sent_id": [0, 1, 2]}
STEPS = [
    {"id": 1, "question": "Where?", "answer": "London", "support_paragraph": {"title": "L"}},
    {"id": 2, "question": "When in #1?", "answer": 1843, "support_paragraph": None},
    {"id": 3, "question": "Who in #2?", "answer": " Ada "},
    {"id": 4, "question": "Who again?", "answer": "Ada"},
]
OPTIONS = {"opa": "x", "opb": "y", "opc": "z", "opd": "w"}
MEM1 = [{"role": "user", "content": "Search. Answer the following questions: who is she?; where?\n"}]
MEM1_TARGET = {"style": "rule", "ground_truth": {"target": [["Ada", "A. L."], ["London"]]}}
MEM1_PARTS = {"parts": ["who is she?", "where?"], "part_answers": [["Ada", "A. L."], ["London"]]}
LAYOUTS = [
    ("nq", who(answer=["Ada", "Ada L."]), answered("Ada", "Ada L.")),
    (
        "triviaqa",
        {"QuestionId": "tc_1", "Question": "Who?", "Answer": {"Value": "Ada", "Aliases": ["Ada L.", "Ada"]}},
        answered("Ada", "Ada L.", id="tc_1"),
    ),
    (
        "triviaqa",
        who(question_id="tc_1", answer={"value": "Ada", "aliases": ["A. L."]}),
        answered("Ada", "A. L.", id="tc_1"),
    ),
    (
        "popqa",
        who(id=5, prop="author", s_wiki_title="Ada", possible_answers='["A", "B"]'),
        answered("A", "B", id="5", question_type="author", supporting_titles=["Ada"], hops=1),
    ),
    (
        "hotpotqa",  # FlashRAG
        who(
            id="dev_0",
            golden_answers=["Ada"],
            type=None,  # counts as missing
            metadata={"type": "bridge", "level": "hard", "supporting_facts": FACTS, "context": {}},
        ),
        answered("Ada", id="dev_0", question_type="bridge", level="hard", hops=2, **TITLES),
    ),
    ("2wikimultihopqa", who(id="x", golden_answers=["Ada"], metadata=None), answered("Ada", id="x")),
    (
        "2wikimultihopqa",
        who(answer="Ada", supporting_facts=[{"title": "T", "sent_id": 0}], type="new"),
        answered("Ada", question_type="new", supporting_titles=["T"]),
    ),
    (
        "musique",  # FlashRAG
        who(id="3hop2__1_2_3", golden_answers=["Ada"], metadata={"question_decomposition": STEPS}),
        answered(
            "Ada", id="3hop2__1_2_3", question_type="3hop2", hops=3, step_answers=["London", "1843", "Ada"]
        ),
    ),
    ("bamboogle", {"Question": "Who?", "Answer": 1775}, answered("1775", hops=2)),
    (
        "asearcher",
        who(answer=["Ada"], aug_answer=["A. L."], source="synthetic", qid="q7"),
        answered("Ada", "A. L.", id="q7", question_type="synthetic"),
    ),
    (
        "gsm8k",
        who(answer="It is 3 * <<3*5=15>>15\n#### 1,015"),
        answered("1,015", "1015", question_type="word_problem"),
    ),
    (
        "medmcqa",
        who(id="m", **OPTIONS, cop=1, exp="y"),
        answered(
            *("y", "B", "B. y"),
            id="m",
            question="Who?\nA. x\nB. y\nC. z\nD. w",
            question_type="multiple_choice",
        ),
    ),
    (
        "n_questions",  # MEM1
        {"data_source": "nq", "prompt": MEM1, "reward_model": MEM1_TARGET, "extra_info": {"split": "train"}},
        answered(
            *("Ada; London", "A. L.; London"),
            question="Answer these 2 questions in order, and separate the answers by semicolons: "
            "who is she?; where?",
            question_type="2_questions",
            **MEM1_PARTS,
        ),
    ),
    (
        "n_questions",
        {"id": "n", "questions": ["who is she"], "golden_answers": [["Ada"]]},
        answered("Ada", id="n", question="who is she", parts=["who is she"], part_answers=[["Ada"]]),
    ),
    ("questions", who(answers=["Ada"], evidences=[]), answered("Ada")),
]


@pytest.mark.parametrize(("source", "row", "expected"), LAYOUTS, ids=[source for source, *_ in LAYOUTS])
def test_each_published_layout_is_read(source, row, expected):
    assert question_of(source, row) == expected


MUSIQUE = who(id="2hop__1_2", answer="Ada")
MEDQA = who(options={"A": "x", "B": "y"}, meta_info="step1")


@pytest.mark.parametrize(
    ("source", "row", "message"),
    [
        ("nq", who(answer="Ada"), "`answer` must be a list of texts, not 'Ada'"),
        ("nq", who(answer=None), r"the row has question, answer \('answer' null\)"),
        ("triviaqa", who(answer=["Ada"]), "the answer must have `value` and `aliases`"),
        ("popqa", who(possible_answers="['A']"), "`possible_answers` must be a JSON list"),
        ("hotpotqa", who(answer="Ada", supporting_facts=[["Ada"]]), "`supporting_facts` must be pairs"),
        (
            "2wikimultihopqa",
            who(answer="Ada", supporting_facts=[{"sent_id": 0}], type="inference"),
            "`supporting_facts` must be pairs",
        ),
        (
            "musique",
            MUSIQUE | {"paragraphs": [], "answerable": False},
            "cannot be answered .*use MuSiQue-Ans",
        ),
        (
            "musique",
            MUSIQUE | {"paragraphs": [{"text": "x"}]},
            "`paragraphs` must be a list of objects with a title",
        ),
        (
            "musique",
            who(id="2hop__1", golden_answers=["Ada"], question_decomposition=[{}]),
            "`question_decomposition` must be a list of objects with an answer",
        ),
        ("gsm8k", who(answer="15"), "`answer` must end in #### and a number"),
        ("medqa", MEDQA | {"answer_idx": "C"}, "`answer_idx` must be one of A, B, not 'C'"),
        ("medqa", MEDQA | {"answer_idx": "B", "answer": "x"}, "`answer` is 'x', but option B is 'y'"),
        ("medqa_zh", who(choices=["x"], answer=["y"]), "`answer` must be one of the choices"),
        ("medqa_zh", who(choices=[*map(str, range(27))], answer=["26"]), "at most 26"),
        ("medmcqa", who(opa="x", options={"B": "y"}, answer_idx="A"), "`options` must be texts by letter"),
        ("medmcqa", who(**OPTIONS, cop=-1), "`cop` must be the number of the right option, 0 to 3, not -1"),
        ("asearcher", who(answer="so\n#### 3"), "it looks like gsm8k"),
        (
            "n_questions",
            {"questions": ["a?", "b?"], "golden_answers": [["x"]]},
            "2 questions, but gold answers for 1",
        ),
        ("n_questions", {"questions": ["a?"], "golden_answers": [[" "]]}, "question 1 has no answer"),
        ("n_questions", {"questions": ["a?", " "], "golden_answers": [["x"], ["y"]]}, "question 2 is blank"),
        ("n_questions", {"prompt": [], "reward_model": {"ground_truth": ["x"]}}, "`prompt` must be messages"),
        ("n_questions", {"questions": ["a?"], "prompt": [], "reward_model": {"ground_truth": 1}}, "prompt"),
        ("musique", "text", "not an object with keys but str"),
    ],
)
def test_what_is_wrong_with_a_row_of_a_source_is_said(source, row, message):
    with pytest.raises(ValueError, match=message):
        question_of(source, row)


def test_a_parquet_file_of_another_source_is_refused_by_its_columns(tmp_path):
    path = tmp_path / "musique.parquet"
    pq.write_table(pa.table({"question": ["Who?"], "question_decomposition": ["x"], "answer": ["Ada"]}), path)
    with pytest.raises(DataError, match="not of hotpotqa: it looks like musique; its columns are question, "):
        read("hotpotqa", path)
    pq.write_table(pa.table({"question": ["Who?"], "answers": ["Ada"]}), path)
    with pytest.raises(
        DataError, match="not of gsm8k, which has question [+] answer; its columns are question, answers"
    ):
        read("gsm8k", path)


def test_own_questions_keep_the_titles_of_their_gold_passages_in_every_format(tmp_path):
    row = {"question": "Who?", "answers": ["x"], "supporting_titles": ["Rome", "Tiber"]}
    (tmp_path / "q.jsonl").write_text(json.dumps(row))
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "q.parquet")
    (tmp_path / "q.csv").write_text('question,answers,supporting_titles\nWho?,x,"[""Rome"", ""Tiber""]"\n')
    for name in ("q.jsonl", "q.parquet", "q.csv"):
        (question,) = read("questions", tmp_path / name)
        assert dict(question.metadata) == {"supporting_titles": ["Rome", "Tiber"]}, name


def test_triviaqas_own_file_and_a_csv_without_a_header_are_read(tmp_path):
    _, row, question = LAYOUTS[1]
    (tmp_path / "web-train.json").write_text(json.dumps({"Data": [row, row], "Domain": "Web"}, indent=4))
    assert read("triviaqa", tmp_path / "web-train.json") == [question] * 2
    (tmp_path / "b.csv").write_text("Who?,,,,Ada,,\nWhere?,,,,here,,\n")
    assert [q.question for q in read("bamboogle", tmp_path / "b.csv")] == ["Who?", "Where?"]
    (tmp_path / "b.csv").write_text("Question,Answer\nWho?,Ada\n")
    assert read("bamboogle", tmp_path / "b.csv") == [answered("Ada", hops=2)]


@pytest.mark.slow
def test_a_hub_data_set_is_read_with_the_columns_of_its_source_only(tmp_path, monkeypatch):
    """Through the package `datasets`, from a file of one of its formats in the place of the Hub."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    facts = {"title": ["Ada", "Byron"], "sent_id": [0, 1]}
    context = {"title": ["Ada"], "sentences": [["..."]]}
    row = {"id": "1", "question": "Who?", "answer": "Ada", "type": "bridge", "level": "easy"}
    pq.write_table(
        pa.Table.from_pylist([{**row, "supporting_facts": facts, "context": context}]), tmp_path / "h.parquet"
    )
    hub = {"train": HubSplit("parquet", None, "train", files=str(tmp_path / "h.parquet"))}
    entry = MixEntry("train", replace(SOURCES["hotpotqa"], hub=hub), "hotpotqa")
    question = answered("Ada", id="1", question_type="bridge", level="easy", hops=2, **TITLES)
    assert list(read_source(entry)) == [(1, question)]
    message = r"parquet \(.*h.parquet, train\): not of popqa: it looks like hotpotqa"
    with pytest.raises(DataError, match=message):
        list(read_source(MixEntry("train", replace(SOURCES["popqa"], hub=hub), "popqa")))
    with pytest.raises(DataError, match="cannot load .* give a file instead: --train hotpotqa=FILE"):
        list(read_source(replace(entry, hub_split="dev")))


@given(
    st.lists(
        st.lists(st.text("ab", min_size=1), min_size=1, max_size=40, unique=True), min_size=1, max_size=12
    )
)
def test_joined_answers_are_bounded_and_begin_with_the_first_of_each(answers):
    joined = joined_answers(answers)
    assert 1 <= len(joined) <= MAX_GOLDS
    assert joined[0] == "; ".join(aliases[0] for aliases in answers)
    for gold in joined:
        parts = gold.split("; ")
        assert all(part in aliases for part, aliases in zip(parts, answers, strict=True))
    wanted = 1
    for aliases in answers:
        wanted *= len(aliases)
    assert len(joined) == wanted or wanted > MAX_GOLDS
    places = list(zip(*(gold.split("; ") for gold in joined), strict=True))
    assert [set(place) for place in places] == [set(aliases) for aliases in answers], "no alias is lost"


def test_a_single_question_keeps_all_of_its_answers_however_many():
    aliases = [f"alias {number}" for number in range(2 * MAX_GOLDS)]
    assert joined_answers([aliases]) == aliases


def test_questions_that_are_joined_keep_their_titles_steps_hops_and_all_aliases():
    counts = {"hops": 2, "supporting_titles": ["x", "y"], "step_answers": ["Byron", "Ada"]}
    first = Question("Who?", ("Ada", "A."), "1", metadata=counts)
    second = Question("Where is it", ("here",), "2", metadata={"hops": 1, "supporting_titles": ["y"]})
    both = join_questions([first, second], "1+2")
    assert both.question.endswith("separate the answers by semicolons: Who?; Where is it?")
    assert both.golds == ("Ada; here", "A.; here") and both.id == "1+2"
    assert both.metadata == {
        "question_type": "2_questions",
        "parts": ["Who?", "Where is it"],
        "part_answers": [["Ada", "A."], ["here"]],
        "supporting_titles": ["x", "y"],
        "step_answers": ["Byron", "Ada"],
        "hops": 3,
    }


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def broken_rows(draw):
    """A source, and a row of one of its layouts in which some values are replaced by anything."""
    source, row, _ = draw(st.sampled_from(LAYOUTS))
    changed = draw(st.dictionaries(st.sampled_from(sorted(row)), json_values, max_size=3))
    return source, {**row, **changed}


@pytest.mark.slow
@settings(max_examples=300)
@given(broken_rows())
def test_no_row_whatever_ends_the_run_and_what_is_kept_can_be_written(tmp_path_factory, broken_row):
    source, row = broken_row
    try:
        question = question_of(source, row)
    except ValueError as error:
        assert str(error)
        return
    assert question.question.strip() and question.golds and set(question.metadata) <= set(SOURCE_METADATA)
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    with RowWriter(path) as writer:
        writer.add(QuestionRow(question.question, question.golds, metadata=question.metadata))
    assert [row_fault(written) for written in read_rows(path)] == [None]
