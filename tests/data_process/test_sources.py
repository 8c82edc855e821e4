"""Every source's rows become questions, from each layout in which it is published; others are refused."""

from __future__ import annotations

import json
import os
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
from data_process.sources.multi_question import COMBINATIONS, combinations, join
from data_process.sources.source_kind import HubSplit
from rag_r1.data.files.questions import Question
from rag_r1.data.files.row_files import DataError
from rag_r1.data.rows import SOURCE_METADATA, QuestionRow, RowWriter, read_rows, row_fault
from rag_r1.rewards.terms.choice import is_choice

ROOT = Path(__file__).parents[2]
SAMPLES = Path(os.environ.get("RAG_R1_DATA") or ROOT.parent / "shared" / "data") / "raw_samples"
real_data = pytest.mark.skipif(
    not SAMPLES.is_dir(), reason="left out: the samples of raw files are not here (set RAG_R1_DATA)"
)

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
            writer.add(
                QuestionRow(
                    question.question,
                    question.golds,
                    ({"role": "user", "content": question.question},),
                    metadata=question.metadata,
                )
            )
    rows = list(read_rows(tmp_path / "rows.parquet"))
    assert [row_fault(row) for row in rows] == [None] * n
    kept = [QuestionRow.from_row(row) for row in rows]
    assert [row.golds for row in kept] == [question.golds for question in questions]
    counts = [
        sum(key in row.metadata for row in kept) for key in ("supporting_titles", "question_type", "hops")
    ]
    assert counts == [titles, types, hops]


@real_data
def test_a_corpus_is_not_a_file_of_questions():
    for source in SOURCES:
        with pytest.raises(DataError, match="no usable question.*row 1: "):
            read(source, SAMPLES / CORPUS)


@real_data
@real_data
@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("med")])
def test_of_a_multiple_choice_the_right_letter_and_its_text_are_right_and_no_other_option(name):
    for question in read(FILES[name][0], SAMPLES / name):
        _, *options = question.question.rsplit("\n", 4)
        letters = [option.partition(". ") for option in options]
        right = [letter for letter, _, text in letters if is_choice(letter, list(question.golds))]
        assert [letter for letter, _, text in letters if is_choice(text, list(question.golds))] == right
        assert len(right) == 1 and f"{right[0]}." in question.golds[2]


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
LAYOUTS = [
    ("nq", {"question": "who", "answer": ["Ada", "Ada L."]}, Question("who", ("Ada", "Ada L."))),
    (
        "triviaqa",
        {"QuestionId": "tc_1", "Question": "Who?", "Answer": {"Value": "Ada", "Aliases": ["Ada L.", "Ada"]}},
        Question("Who?", ("Ada", "Ada L."), "tc_1"),
    ),
    (
        "triviaqa",
        {"question_id": "tc_1", "question": "Who?", "answer": {"value": "Ada", "aliases": ["A. L."]}},
        Question("Who?", ("Ada", "A. L."), "tc_1"),
    ),
    (
        "popqa",
        {
            "id": 5,
            "question": "Who?",
            "prop": "author",
            "s_wiki_title": "Ada",
            "possible_answers": '["A", "B"]',
        },
        Question(
            "Who?",
            ("A", "B"),
            "5",
            metadata={"question_type": "author", "supporting_titles": ["Ada"], "hops": 1},
        ),
    ),
    (
        "hotpotqa",  # FlashRAG
        {
            "id": "dev_0",
            "question": "Who?",
            "golden_answers": ["Ada"],
            "metadata": {
                "type": "bridge",
                "level": "hard",
                "supporting_facts": {"title": ["Ada", "Byron", "Ada"], "sent_id": [0, 1, 2]},
                "context": {"title": ["Ada"], "sentences": [["..."]]},
            },
        },
        Question(
            "Who?",
            ("Ada",),
            "dev_0",
            metadata={"question_type": "bridge", "level": "hard", "hops": 2, **TITLES},
        ),
    ),
    (
        "2wikimultihopqa",
        {"id": "x", "question": "Who?", "golden_answers": ["Ada"], "metadata": None},
        Question("Who?", ("Ada",), "x"),
    ),
    (
        "2wikimultihopqa",
        {
            "question": "Who?",
            "answer": "Ada",
            "supporting_facts": [{"title": "T", "sent_id": 0}],
            "type": "new",
        },
        Question("Who?", ("Ada",), metadata={"question_type": "new", "supporting_titles": ["T"]}),
    ),
    (
        "musique",  # FlashRAG
        {
            "id": "3hop2__1_2_3",
            "question": "Who?",
            "golden_answers": ["Ada"],
            "metadata": {
                "question_decomposition": [
                    {"id": 1, "question": "Where?", "answer": "London", "support_paragraph": {"title": "L"}},
                    {"id": 2, "question": "When in #1?", "answer": 1843, "support_paragraph": None},
                    {"id": 3, "question": "Who in #2?", "answer": " Ada "},
                    {"id": 4, "question": "Who again?", "answer": "Ada"},
                ]
            },
        },
        Question(
            "Who?",
            ("Ada",),
            "3hop2__1_2_3",
            metadata={"question_type": "3hop2", "hops": 3, "step_answers": ["London", "1843", "Ada"]},
        ),
    ),
    (
        "bamboogle",
        {"Question": "When was the author of Emma born?", "Answer": 1775},
        Question("When was the author of Emma born?", ("1775",), metadata={"hops": 2}),
    ),
    (
        "asearcher",
        {"question": "Who?", "answer": ["Ada"], "aug_answer": ["A. L."], "source": "synthetic", "qid": "q7"},
        Question("Who?", ("Ada", "A. L."), "q7", metadata={"question_type": "synthetic"}),
    ),
    (
        "gsm8k",
        {"question": "How many?", "answer": "It is 3 * <<3*5=15>>15\n#### 1,015"},
        Question("How many?", ("1,015", "1015"), metadata={"question_type": "word_problem"}),
    ),
    (
        "medmcqa",
        {
            "id": "m",
            "question": "Which?",
            "opa": "x",
            "opb": "y",
            "opc": "z",
            "opd": "w",
            "cop": 1,
            "exp": "y",
        },
        Question(
            "Which?\nA. x\nB. y\nC. z\nD. w",
            ("y", "B", "B. y"),
            "m",
            metadata={"question_type": "multiple_choice"},
        ),
    ),
    (
        "n_questions",  # MEM1
        {
            "data_source": "nq",
            "prompt": [
                {"role": "user", "content": "Search. Answer the following questions: who is she?; where?\n"}
            ],
            "reward_model": {"style": "rule", "ground_truth": {"target": [["Ada", "A. L."], ["London"]]}},
            "extra_info": {"split": "train"},
        },
        Question(
            "Answer these 2 questions in order, and separate the answers by semicolons: who is she?; where?",
            ("Ada; London", "A. L.; London"),
            metadata={
                "question_type": "2_questions",
                "parts": ["who is she?", "where?"],
                "part_answers": [["Ada", "A. L."], ["London"]],
            },
        ),
    ),
    (
        "n_questions",
        {"id": "n", "questions": ["who is she"], "golden_answers": [["Ada"]]},
        Question(
            "who is she",
            ("Ada",),
            "n",
            metadata={"parts": ["who is she"], "part_answers": [["Ada"]]},
        ),
    ),
    ("questions", {"question": "Who?", "answers": ["Ada"], "evidences": []}, Question("Who?", ("Ada",))),
]


@pytest.mark.parametrize(("source", "row", "expected"), LAYOUTS, ids=[source for source, *_ in LAYOUTS])
def test_each_published_layout_is_read(source, row, expected):
    assert question_of(source, row) == expected


@pytest.mark.parametrize(
    ("source", "row", "message"),
    [
        ("nq", {"question": "who", "answer": "Ada"}, "`answer` must be a list of texts, not 'Ada'"),
        ("nq", {"question": "who", "answer": None}, r"the row has question, answer \('answer' null\)"),
        ("triviaqa", {"question": "Who?", "answer": ["Ada"]}, "the answer must have `value` and `aliases`"),
        (
            "popqa",
            {"question": "Who?", "possible_answers": "['A']"},
            "`possible_answers` must be a JSON list",
        ),
        (
            "hotpotqa",
            {"question": "Who?", "answer": "Ada", "supporting_facts": [["Ada"]]},
            "`supporting_facts` must be pairs",
        ),
        (
            "2wikimultihopqa",
            {"question": "Who?", "answer": "Ada", "supporting_facts": [{"sent_id": 0}], "type": "inference"},
            "`supporting_facts` must be pairs",
        ),
        (
            "musique",
            {"id": "2hop__1_2", "question": "Who?", "answer": "Ada", "paragraphs": [], "answerable": False},
            "cannot be answered .*use MuSiQue-Ans",
        ),
        (
            "musique",
            {"id": "2hop__1_2", "question": "Who?", "answer": "Ada", "paragraphs": [{"text": "x"}]},
            "`paragraphs` must be a list of objects with a title",
        ),
        (
            "musique",
            {"id": "2hop__1", "question": "Who?", "golden_answers": ["Ada"], "question_decomposition": [{}]},
            "`question_decomposition` must be a list of objects with an answer",
        ),
        ("gsm8k", {"question": "How many?", "answer": "15"}, "`answer` must end in #### and a number"),
        (
            "medqa",
            {"question": "Which?", "options": {"A": "x", "B": "y"}, "answer_idx": "C", "meta_info": "step1"},
            "`answer_idx` must be one of A, B, not 'C'",
        ),
        (
            "medqa",
            {
                "question": "Which?",
                "options": {"A": "x", "B": "y"},
                "answer_idx": "B",
                "answer": "x",
                "meta_info": "step1",
            },
            "`answer` is 'x', but option B is 'y'",
        ),
        (
            "medqa_zh",
            {"question": "?", "choices": ["x"], "answer": ["y"]},
            "`answer` must be one of the choices",
        ),
        (
            "medmcqa",
            {"question": "Which?", "opa": "x", "opb": "y", "opc": "z", "opd": "w", "cop": -1},
            "`cop` must be the number of the right option, 0 to 3, not -1",
        ),
        ("asearcher", {"question": "How many?", "answer": "so\n#### 3"}, "it looks like gsm8k"),
        (
            "n_questions",
            {"questions": ["a?", "b?"], "golden_answers": [["x"]]},
            "2 questions, but gold answers for 1",
        ),
        ("n_questions", {"questions": ["a?"], "golden_answers": [[" "]]}, "question 1 has no answer"),
        ("n_questions", {"questions": ["a?", " "], "golden_answers": [["x"], ["y"]]}, "question 2 is blank"),
        ("n_questions", {"prompt": [], "reward_model": {"ground_truth": ["x"]}}, "`prompt` must be messages"),
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


def test_triviaqas_own_file_and_a_csv_without_a_header_are_read(tmp_path):
    row = {"QuestionId": "tc_1", "Question": "Who?", "Answer": {"Value": "Ada", "Aliases": ["A. L."]}}
    (tmp_path / "web-train.json").write_text(json.dumps({"Data": [row, row], "Domain": "Web"}, indent=4))
    assert read("triviaqa", tmp_path / "web-train.json") == [Question("Who?", ("Ada", "A. L."), "tc_1")] * 2
    (tmp_path / "b.csv").write_text("Who?,,,,Ada,,\nWhere?,,,,here,,\n")
    assert [q.question for q in read("bamboogle", tmp_path / "b.csv")] == ["Who?", "Where?"]
    (tmp_path / "b.csv").write_text("Question,Answer\nWho?,Ada\n")
    assert read("bamboogle", tmp_path / "b.csv") == [Question("Who?", ("Ada",), metadata={"hops": 2})]


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
    metadata = {"question_type": "bridge", "level": "easy", "hops": 2, **TITLES}
    assert list(read_source(entry)) == [(1, Question("Who?", ("Ada",), "1", metadata=metadata))]
    with pytest.raises(
        DataError, match=r"parquet \(.*h.parquet, train\): not of popqa: it looks like hotpotqa"
    ):
        list(read_source(MixEntry("train", replace(SOURCES["popqa"], hub=hub), "popqa")))
    with pytest.raises(DataError, match="cannot load .* give a file instead: --train hotpotqa=FILE"):
        list(read_source(replace(entry, hub_split="dev")))


@given(
    st.lists(
        st.lists(st.text("ab", min_size=1), min_size=1, max_size=40, unique=True), min_size=1, max_size=12
    )
)
def test_joined_answers_are_bounded_and_begin_with_the_first_of_each(answers):
    joined = combinations(answers)
    assert 1 <= len(joined) <= COMBINATIONS
    assert joined[0] == "; ".join(aliases[0] for aliases in answers)
    for gold in joined:
        parts = gold.split("; ")
        assert all(part in aliases for part, aliases in zip(parts, answers, strict=True))
    wanted = 1
    for aliases in answers:
        wanted *= len(aliases)
    assert len(joined) == wanted or wanted > COMBINATIONS
    places = list(zip(*(gold.split("; ") for gold in joined), strict=True))
    assert [set(place) for place in places] == [set(aliases) for aliases in answers], "no alias is lost"


def test_questions_that_are_joined_keep_their_titles_steps_hops_and_all_aliases():
    counts = {"hops": 2, "supporting_titles": ["x", "y"], "step_answers": ["Byron", "Ada"]}
    first = Question("Who?", ("Ada", "A."), "1", metadata=counts)
    second = Question("Where is it", ("here",), "2", metadata={"hops": 1, "supporting_titles": ["y"]})
    both = join([first, second], "1+2")
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
