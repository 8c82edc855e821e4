"""`rag-r1 own` from its command line, over HTTP, up to the trainings: what it makes, asks and refuses."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from rag_r1.cli import main
from rag_r1.data.rows import QuestionRow, read_rows
from rag_r1.explorer.runs.facts import runs_below
from rag_r1.options.command_line import read_arguments
from rag_r1.own.plan_file import PLAN
from rag_r1.protocols import load_with_prompt
from rag_r1.serving.terminal.arguments import ChatArguments
from tests.fakes.own_policy import OwnPolicy
from tests.fakes.own_teacher import OwnTeacher
from tests.own.conftest import MODEL, PROMPT_FILE, Own

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DATA = ("documents", "index", "questions", "traces", "sft_data")


def done(out: Path, step: str) -> dict:
    return json.loads((out / step / "done.json").read_text())


def rows_of(out: Path, split: str) -> list[QuestionRow]:
    return [QuestionRow.from_row(row) for row in read_rows(out / "questions" / f"{split}.parquet")]


@pytest.fixture(scope="module")
def prepared(own: Own, tmp_path_factory) -> Path:
    """A run whose next step is a training."""
    out = tmp_path_factory.mktemp("prepared") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAG_R1_PIPELINE", "")
        assert main(own.words(out, "--until", "sft_data")) == 0
    return out


def test_documents_become_questions_traces_and_samples(own: Own, prepared: Path):
    assert done(prepared, "documents")["facts"]["documents"] == len(own.world.passages)
    train, test = made = rows_of(prepared, "train"), rows_of(prepared, "test")
    assert train and test
    protocol = load_with_prompt("rag_r1_mq", str(PROMPT_FILE))
    assert all(row.prompt == tuple(protocol.messages(row.question)) for row in (*train, *test))
    named = [{title for row in rows for title in row.metadata["supporting_titles"]} for rows in made]
    assert not named[0] & named[1], "no document is asked about in both"
    traces = done(prepared, "traces")["facts"]
    assert traces["judged"] == traces["right"] == len(train), "this teacher finds every answer that it wrote"
    assert done(prepared, "sft_data")["facts"]["samples"] > len(train) / 2


def test_a_run_that_is_repeated_asks_nothing(own: Own, prepared: Path, capsys):
    asked = len(own.teacher.bodies)
    assert main(own.words(prepared, "--until", "sft_data")) == 0
    assert len(own.teacher.bodies) == asked
    assert capsys.readouterr().out.count("was done before") == len(DATA)


def test_the_plan_of_the_first_start_is_read_again_even_without_the_teacher(prepared: Path, tmp_path, capsys):
    text = (prepared / PLAN).read_text()
    assert main(["own", "--out", str(prepared), "--until", "sft_data"]) == 0
    assert (prepared / PLAN).read_text() == text
    plan = yaml.safe_load(text)
    assert plan["policy"]["model"] == str(MODEL) and plan["grpo"]["recipe"] == "demo/grpo"


def test_a_changed_key_of_a_step_that_has_begun_is_refused_and_the_plan_stays(
    own: Own, prepared: Path, capsys
):
    before = (prepared / PLAN).read_text()
    assert main(own.words(prepared, "--until", "sft_data", "--per-kind", "13")) == 1
    assert "questions.per_kind was 12 and is now 13" in capsys.readouterr().err
    assert (prepared / PLAN).read_text() == before


def test_a_changed_key_is_told_beside_other_problems(own: Own, prepared: Path, capsys):
    wrong = ["--per-kind", "13", "sft.overrides=[no_such_key=1]"]
    assert main(own.words(prepared, "--until", "sft_data", *wrong)) == 1
    problems = capsys.readouterr().err
    assert "questions.per_kind was 12" in problems and "no_such_key" in problems


def test_a_key_of_a_step_that_has_not_begun_may_change(own: Own, prepared: Path):
    assert main(own.words(prepared, "--until", "sft_data", "--steps", "5")) == 0
    assert yaml.safe_load((prepared / PLAN).read_text())["grpo"]["steps"] == 5


def test_the_requests_are_no_more_than_was_forecast(own: Own, tmp_path, prepared: Path, capsys):
    from rag_r1.own.arguments import OwnArguments
    from rag_r1.own.command import check_start
    from rag_r1.own.forecast import forecast_of
    from rag_r1.runs.steps import PipelineFolder

    args = read_arguments(OwnArguments, own.words(tmp_path / "new")[1:], description="")
    forecast = forecast_of(check_start(args), PipelineFolder(tmp_path / "new"))
    used = [
        done(prepared, "questions")["facts"]["usage"],
        {"teacher": done(prepared, "traces")["facts"]["usage"]},
    ]
    teacher = sum(usage["teacher"]["requests"] for usage in used)
    assert 0 < teacher <= forecast.teacher.requests
    assert 0 < used[0]["reader"]["requests"] <= forecast.reader.requests
    assert forecast.train + forecast.test == 4 * 12
    prompt = sum(usage["teacher"]["prompt_tokens"] for usage in used)
    assert prompt <= forecast.teacher.prompt_tokens


def test_check_only_prints_the_forecast_and_asks_and_writes_nothing(own: Own, tmp_path, capsys):
    asked, out = len(own.teacher.bodies), tmp_path / "new"
    prices = ("--price-in", "1", "--price-out", "2", "--max-cost", "0.01")
    assert main(own.words(out, "--check-only", *prices)) == 0
    output = capsys.readouterr().out
    assert "cost: about " in output and "teacher.max_cost 0.01 may end the run earlier" in output
    assert len(own.teacher.bodies) == asked and not out.exists()


@pytest.mark.full
def test_the_cost_limit_counts_questions_and_traces_and_a_higher_one_goes_on(
    own: Own, prepared: Path, tmp_path
):
    out = tmp_path / "dear"
    usage = done(prepared, "questions")["facts"]["usage"].values()
    tokens = sum(used["prompt_tokens"] + used["completion_tokens"] for used in usage)
    prices = ("--price-in", "1", "--price-out", "1")
    until = ("--until", "traces")
    assert main(own.words(out, *until, *prices, "--max-cost", str(tokens / 2e6))) == 1
    assert not (out / "questions" / "done.json").exists()
    assert main(own.words(out, *until, *prices, "--max-cost", str(1.1 * tokens / 1e6))) == 1
    assert (out / "questions" / "done.json").exists() and not (out / "traces" / "done.json").exists()
    assert main(own.words(out, *until, *prices, "--max-cost", "1")) == 0
    assert rows_of(out, "train") == rows_of(prepared, "train")


@pytest.mark.full
def test_a_run_whose_teacher_fails_in_the_traces_goes_on_and_asks_nothing_twice(own: Own, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(own.words(out, "--until", "questions")) == 0
    with OwnTeacher() as other:
        answers = other.reply
        other.reply = lambda body: 401 if len(other.bodies) > 4 else answers(body)
        broken = [word if word != own.teacher.base else other.base for word in own.words(out)]
        assert main([*broken, "--until", "traces"]) == 1
        assert "the traces are not complete" in capsys.readouterr().err
        other.reply, asked = answers, len(other.bodies)
        assert main([*broken, "--until", "traces"]) == 0
    usage = done(out, "traces")["facts"]["usage"]
    assert usage["requests"] - 4 <= len(other.bodies) - asked + 1, "one more: is the endpoint there?"


@pytest.mark.full
def test_a_start_that_is_killed_is_gone_on_with_and_ends_with_the_same_data(
    own: Own, prepared: Path, tmp_path
):
    out, asked = tmp_path / "out", len(own.teacher.bodies)
    words = own.words(out, "--until", "sft_data")
    process = subprocess.Popen([sys.executable, "-m", "rag_r1.cli", *words], cwd=ROOT)
    try:
        while len(own.teacher.bodies) < asked + 60:
            assert process.poll() is None, "it ended before it was killed"
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    assert not (out / "sft_data" / "done.json").exists()
    assert main(words) == 0
    for name in ("questions/train.parquet", "questions/test.parquet", "sft_data/train.parquet"):
        assert (out / name).read_bytes() == (prepared / name).read_bytes()


def test_the_questions_of_ones_own_take_the_place_of_the_teachers(own: Own, prepared: Path, tmp_path, capsys):
    files = {}
    for split in ("train", "test"):
        files[split] = tmp_path / f"{split}.jsonl"
        lines = [{"question": row.question, "answer": list(row.golds)} for row in rows_of(prepared, split)]
        files[split].write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ("--questions", str(files["train"]), "--test-questions", str(files["test"]), "--skip", "sft")
    asked, out = len(own.teacher.bodies), tmp_path / "out"
    assert main(own.words(out, "--until", "questions", *words)) == 0
    assert len(own.teacher.bodies) == asked
    for split in files:
        made, before = rows_of(out, split), rows_of(prepared, split)
        assert [(row.question, row.golds, row.prompt) for row in made] == [
            (row.question, row.golds, row.prompt) for row in before
        ]
    words = ("--questions", str(files["train"]), "--test-questions", str(files["train"]), "--skip", "sft")
    assert main(own.words(tmp_path / "same", "--until", "questions", *words)) == 1
    assert "are also in questions.train" in capsys.readouterr().err


@pytest.fixture(scope="module")
def evaluated(own: Own, tmp_path_factory) -> tuple[Path, str]:
    """An evaluation of a model behind a server, and what was printed."""
    from contextlib import redirect_stdout
    from io import StringIO

    from transformers import AutoTokenizer

    out, printed = tmp_path_factory.mktemp("evaluated") / "run", StringIO()
    with OwnPolicy.of(AutoTokenizer.from_pretrained(MODEL)) as policy, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAG_R1_PIPELINE", "")
        with redirect_stdout(printed):
            words = ("--evaluate-only", f"policy.url={policy.url}/v1", "--per-kind", "40")
            assert main(own.words(out, *words)) == 0
    return out, printed.getvalue()


def test_an_evaluation_alone_says_whether_the_model_searches_and_beats_plain_rag(evaluated):
    out, _ = evaluated
    report = json.loads((out / "report.json").read_text())
    assert list(report["models"]) == ["untrained", "one_shot"]
    assert report["models"]["untrained"]["em"]["value"] == 1.0, "this policy finds every answer"
    assert report["models"]["one_shot"]["queries"]["value"] == 1.0
    [claim] = report["claims"]
    assert claim["models"] == ["untrained", "one_shot"] and claim["value"] > 0
    assert "0 %" in report["card"][0], "it knows nothing with a closed book"
    assert not (out / "traces").exists() and not (out / "grpo").exists()
    page = (out / "report.md").read_text()
    assert all(sentence in page for sentence in report["card"]) and (out / "report.png").exists()


def test_the_last_line_is_a_command_that_chats_with_the_agent_over_the_documents(own: Own, evaluated):
    out, printed = evaluated
    program, command, *words = shlex.split(printed.splitlines()[-1])
    chat = read_arguments(ChatArguments, words, description="")
    assert (program, command) == ("rag-r1", "chat")
    assert (chat.documents, chat.model, chat.prompt) == (own.documents, str(MODEL), str(PROMPT_FILE))
    assert "rag_r1.retriever.topk=2" in chat.overrides


def test_rag_r1_runs_lists_the_run_and_its_parts(evaluated, prepared: Path):
    kinds = {facts.name: (facts.kind, facts.state) for facts in runs_below(evaluated[0].parent)}
    assert kinds["run"] == ("own", "finished")
    assert kinds["run/questions"] == ("questions", "finished")
    assert kinds["run/evaluation/one_shot/run"] == ("eval", "finished")
    assert {facts.kind for facts in runs_below(prepared)} == {"own", "questions", "traces", "sft-data"}


def test_a_corpus_of_passages_takes_the_place_of_a_folder(own: Own, tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(passage) + "\n" for passage in own.world.passages))
    words = own.words(tmp_path / "out", "--until", "index", f"documents.corpus=[{corpus}]")
    assert main([words[0], *words[2:]]) == 0
    assert done(tmp_path / "out", "index")["facts"]["passages"] == len(own.world.passages)
    assert not (tmp_path / "out" / "documents").exists()
