"""`rag-r1 corpus check` from end to end: what is written and printed, and what hostile files can do."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rag_r1.cli import main as cli
from rag_r1.corpus.report import markdown
from rag_r1.data.annotations import read_answerable
from rag_r1.data.files.bad_rows import BadRows
from tests.corpus.row_files import rows_of, written
from tests.fakes.retriever import Retriever

CORPUS = [
    {"id": "1", "contents": '"Ulm"\nUlm is a city on the Danube.'},
    {"id": "2", "contents": '"Heat (1995 film)"\nHeat was directed by Michael Mann.'},
    {"id": "3", "title": "São Paulo", "text": "The city has 12,000,000 people."},
]
QUESTIONS = [
    {"id": "river", "question": "On which river is Ulm?", "golden_answers": ["the Danube", "Donau"]},
    {"id": "film", "question": "Who directed Heat?", "answer": "Michael Mann", "supporting_titles": ["Heat"]},
    {"id": "people", "question": "How many people?", "answer": "12000000"},
    {"id": "lost", "question": "Which town?", "answer": "Berlin"},
    {"id": "is", "question": "Is it?", "answer": "yes"},
    {"id": "ids", "question": "x?", "answer": "x", "supporting_ids": ["1", "9"]},
    {"id": "titles", "question": "y?", "answer": "y", "supporting_titles": ["são_paulo", "Rome"]},
]
EXPECTED = {
    "river": ("answerable", "anywhere"),
    "film": ("unknown", "titles_similar"),
    "people": ("unknown", "anywhere_weak"),
    "lost": ("unanswerable", "nowhere"),
    "is": ("unknown", "yes_or_no"),
    "ids": ("unanswerable", "ids_missing"),
    "titles": ("unanswerable", "titles_missing"),
}


@pytest.fixture
def run(tmp_path, capsys):
    """run(*arguments): status, what was printed, the error. `data`: questions besides those above; `corpus`:
    another one; `out`: another folder."""
    default = written(tmp_path / "corpus.jsonl", CORPUS)
    questions = written(tmp_path / "q.jsonl", QUESTIONS)

    def call(*arguments: object, data=(), corpus: Path = default, out: str = "out") -> tuple[int, str, str]:
        words = ["--data", questions, *data, "--corpus", corpus, "--out", tmp_path / out, "--no-progress"]
        status = cli(["corpus", "check", *map(str, [*words, *arguments])])
        return status, *capsys.readouterr()

    return call


@pytest.mark.slow
def test_a_check_writes_verdicts_ids_missing_passages_summary_and_picture(run, tmp_path):
    status, printed, _ = run()
    out = tmp_path / "out"
    assert status == 0
    verdicts = {row["id"]: row for row in rows_of(out / "verdicts.jsonl")}
    assert {question_id: (row["verdict"], row["reason"]) for question_id, row in verdicts.items()} == EXPECTED
    assert verdicts["river"]["golden_answers"] == ["the Danube", "Donau"]
    assert verdicts["river"]["signals"]["passage"] == "1"
    assert verdicts["titles"]["signals"]["titles"] == {"são_paulo": "case", "Rome": None}
    assert json.loads((out / "answerable_ids.json").read_text()) == {"q": ["river"]}
    answerable = read_answerable(out / "answerable_ids.json", BadRows())
    assert answerable.get("q", "river") and answerable.get("q", "titles") is None
    missing = [(row.get("id"), row.get("title")) for row in rows_of(out / "missing.jsonl")]
    assert missing == [(None, "Heat"), ("9", None), (None, "Rome")]
    summary = json.loads((out / "summary.json").read_text())
    counts = summary["sources"]["q"]
    assert summary["all"] == counts and summary["passages"] == 3
    assert [counts[name] for name in ("questions", "answerable", "unanswerable", "unknown")] == [7, 1, 3, 3]
    assert counts["signals"]["ids"] == {"yes": 0, "no": 1, "none": 6}
    assert counts["signals"]["retriever"] == {"yes": 0, "no": 0, "none": 7}
    assert counts["title_levels"] == {"suffix": 1, "case": 1, "missing": 1}
    assert (out / "shares.png").read_bytes()[:4] == b"\x89PNG"
    assert "| `q` | 7 | 14.3% | 42.9% | 42.9% |" in printed
    assert (out / "summary.md").read_text() == markdown(summary) + "\n"
    assert "  lost: Which town? (no gold answer in the corpus)" in printed
    assert "  titles: y? (missing: Rome)" in printed


@pytest.mark.slow
def test_a_repaired_corpus_makes_its_questions_answerable(run, tmp_path):
    supply = [{"id": "9", "contents": "nine"}, {"id": "5", "contents": "five"}]
    supply.insert(0, {"title": "Rome", "text": "A city."})
    status, printed, _ = run("--supply", written(tmp_path / "supply.jsonl", supply))
    repaired = tmp_path / "out" / "repaired_corpus.jsonl"
    assert status == 0 and f"rag-r1 index build --corpus {repaired}" in printed
    assert "3 passages and 2 supplied ones (1 of these with a new id)" in printed
    assert [row["id"] for row in rows_of(repaired)] == ["1", "2", "3", "supplied-1", "9"]
    assert run(corpus=repaired, out="again")[0] == 0
    verdicts = {row["id"]: row["reason"] for row in rows_of(tmp_path / "again" / "verdicts.jsonl")}
    assert (verdicts["ids"], verdicts["titles"]) == ("ids_present", "titles_present")


def test_the_answer_of_a_server_decides_where_no_evidence_is_named(run, tmp_path):
    with Retriever({"3": "The city has 12,000,000 people."}) as stub:
        urls = ("--retriever-url", stub.url, "--bm25-url", f"{stub.url}/retrieve")
        for _ in range(2):
            assert run(*urls, "--topk", "5")[0] == 0
            assert len(stub.queries) == 2 + 14, "each server is tried once, and a second check asks nothing"
    verdicts = {row["id"]: row for row in rows_of(tmp_path / "out" / "verdicts.jsonl")}
    assert verdicts["people"]["reason"] == "in_top_k"
    assert verdicts["people"]["signals"]["retriever_rank"] == verdicts["people"]["signals"]["bm25_rank"] == 1
    assert verdicts["river"]["signals"]["retriever_rank"] == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["all"]["retriever_recall"] == 0 and summary["notes"] == []


def test_a_server_of_another_corpus_or_one_that_fails_is_noted(run, tmp_path):
    with Retriever({"77": "another"}) as stub:
        stub.refuse = "river"
        _, printed, _ = run("--retriever-url", stub.url)
    assert "1 of 1 passages that the servers returned first are not in this corpus" in printed
    assert "1 questions got no answer from the retriever. Run again to ask only these." in printed


def test_ids_of_another_corpus_are_ignored_unless_they_are_trusted(run, tmp_path):
    row = {"id": "a", "question": "x?", "answer": "the Danube", "supporting_ids": ["70", "71"]}
    data = written(tmp_path / "other.jsonl", [row])
    _, printed, _ = run(data=[data])
    assert "supporting ids of 1 source(s) were ignored" in printed and "| `anywhere` | 2 |" in printed
    _, printed, _ = run("--ids", "trust", data=[data])
    assert "ignored" not in printed and "| `ids_missing` | 2 |" in printed
    _, printed, _ = run("--ids", "ignore", data=[data])
    assert "ids_missing" not in printed


def test_redirects_are_followed(run, tmp_path):
    (redirects := tmp_path / "redirects.tsv").write_text("Rome\tUlm\nHeat\tHeat (1995 film)\n")
    run("--redirects", redirects)
    verdicts = {row["id"]: row["signals"]["titles"] for row in rows_of(tmp_path / "out" / "verdicts.jsonl")}
    assert verdicts["titles"]["Rome"] == "redirect" and verdicts["film"] == {"Heat": "redirect"}


@pytest.mark.parametrize("name", ["corpus.jsonl", "q.jsonl", "redirects.jsonl"])
def test_bad_rows_refuse_the_check_or_are_left_out(run, tmp_path, name):
    bad = tmp_path / name
    bad.write_text((bad.read_text() if bad.exists() else "") + "[]\n")
    more = ["--redirects", bad] if name.startswith("redirects") else []
    status, _, error = run(*more)
    assert status == 1 and f"{name}, " in error and "--skip-bad-rows" in error
    assert not (tmp_path / "out" / "verdicts.jsonl").exists()
    status, printed, error = run(*more, "--skip-bad-rows")
    assert status == 0 and "7 questions, 3 passages" in printed and "left out: 1 bad row" in error


@pytest.mark.parametrize(
    ("option", "name"),
    [("--corpus", "none.jsonl"), ("--data", "none.jsonl"), ("--supply", "s.txt"), ("--redirects", "r.csv")],
)
def test_a_file_that_cannot_be_read_is_named(run, option, name):
    status, _, error = run(option, name)
    assert status == 1 and name in error


def test_a_wrong_address_and_a_wrong_subcommand_end_with_status_2(run, capsys):
    with pytest.raises(SystemExit) as end:
        run("--retriever-url", "ftp://x")
    assert end.value.code == 2 and "argument --retriever-url: must be" in capsys.readouterr().err
    assert cli(["corpus", "chekc"]) == 2 and "did you mean check?" in capsys.readouterr().err
    assert cli(["corpus", "--help"]) == 0


HOSTILE = "\x1b[2J\x07\u202egnp.exe\u009b31m <script>alert(1)</script> | `x` $\\frac{"


def test_hostile_texts_reach_neither_terminal_nor_markdown_nor_picture(run, tmp_path):
    corpus = [{"id": HOSTILE, "contents": f'"{HOSTILE}"\n{HOSTILE}'}]
    row = {"question": f"{HOSTILE}?", "answer": "nobody", "supporting_titles": [f"{HOSTILE} x"]}
    data = written(tmp_path / "a$b|`<i>\x1b[1m.jsonl", [{"id": HOSTILE, **row}, {"id": "2", **row}])
    status, printed, error = run(data=[data], corpus=written(tmp_path / "h.jsonl", corpus))
    assert status == 0
    assert not set(printed + error) & set("\x1b\x07\u202e\u009b")
    page = (tmp_path / "out" / "summary.md").read_text()
    assert not set(page) & set("<>\x1b")
    assert all(line.count("|") in (0, 3, 6) for line in page.splitlines())
    assert (tmp_path / "out" / "shares.png").is_file()
    assert HOSTILE in {row["id"] for row in rows_of(tmp_path / "out" / "verdicts.jsonl")}


def test_sources_whose_names_look_the_same_in_the_summary_each_have_a_row(run, tmp_path):
    run(data=[written(tmp_path / f"a{end}.jsonl", [{"question": "q", "answer": "x"}]) for end in "|<"])
    assert (tmp_path / "out" / "summary.md").read_text().count("`a_`") == 2


def test_an_id_that_two_passages_have_is_named_with_both_places_and_nothing_is_written(run, tmp_path):
    other = written(tmp_path / "more.jsonl", [{"id": "7", "contents": "a"}, {"id": "2", "contents": "b"}])
    for skip in ([], ["--skip-bad-rows"]):
        status, _, error = run("--corpus", other, *skip)
        named = f"{other}, line 2: the id '2' is that of {tmp_path}/corpus.jsonl, line 2"
        assert status == 1 and named in error
    assert not (tmp_path / "out" / "summary.json").exists()


def test_bad_rows_of_all_files_are_named_beside_a_dead_server_before_the_run(run, tmp_path):
    bad = written(tmp_path / "bad.jsonl", [*CORPUS, {"id": "4"}, {"contents": "five"}])
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(b"no gzip")
    words = ["--corpus", cut, "--retriever-url", "http://127.0.0.1:9"]
    status, _, error = run(*words, corpus=bad)
    assert status == 1 and not (tmp_path / "out").exists()
    for part in ("bad.jsonl, line 4: ", "bad.jsonl, line 5: ", "cut.jsonl.gz: a broken gzip", "127.0.0.1:9"):
        assert part in error


def test_a_table_without_the_columns_of_passages_is_told_so(run, tmp_path):
    table = tmp_path / "table.parquet"
    pq.write_table(pa.table({"idx": [1], "body": ["text"]}), table)
    _, _, error = run(corpus=table)
    assert "no column `id`" in error and "`contents`" in error and "idx, body" in error
