"""`rag-r1 eval` against scripted endpoints behind HTTP: what it asks, writes and reports, also when it is
killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rag_r1.agent.records import read_records
from rag_r1.cli import COMMANDS
from rag_r1.config.schema import RagR1Config
from rag_r1.data.rows import QuestionRow, write_rows
from rag_r1.demo.policy import policy_path
from rag_r1.demo.world import make_questions, make_world, to_row
from rag_r1.evaluation import command
from rag_r1.evaluation.validation_limits import validation_limits
from rag_r1.io.atomic_files import write_json_lines
from rag_r1.protocols import load_protocol
from rag_r1.rollouts.requests import seeded_fraction
from tests.evaluation.command_words import command_words
from tests.evaluation.killed_runs import kill_at, lines
from tests.evaluation.scripted_runs import untimed
from tests.fakes.judge_server import JudgeServer
from tests.fakes.scripted_teacher import Teacher
from tests.fakes.scripted_vllm import Policy

ROOT = Path(__file__).parents[2]
MQ = load_protocol("rag_r1_mq")
PASSAGES = (("p1", '"Rome"\nRome is a city.'), ("p2", '"Tiber"\nA river.'))


def is_right(question: str, *unused: object) -> bool:
    return seeded_fraction(0, "right", question) < 0.6


def rows_of(count: int, path: Path) -> list[QuestionRow]:
    """Questions of the demo's world, written to a file."""
    questions = make_questions(make_world(1, "test", people=150, places=40), count, 1)
    rows = [to_row(question, index, "test", MQ) for index, question in enumerate(questions)]
    write_rows(path, rows)
    return rows


def policy_of(tokenizer, rows, **options) -> Policy:
    golds = {row.question: row.golds[0] for row in rows}
    return Policy(tokenizer, golds, is_right, **{"searches": True, "passages": PASSAGES, **options})


def words(url: str, folder: Path, *more: object, **flags: object) -> list[str]:
    """The command line of a run in a folder; `flags` replace its own."""
    files = {"data": folder / "q.parquet", "out": folder / "out", "tokenizer": policy_path("rag_r1_mq")}
    policy = {"base_url": url, "model": "policy", "retriever_url": url}
    limits = {"in_flight": 32, "retries": 1, "backoff_s": 0.01}
    return command_words(*more, **{**files, **policy, **limits, **flags})


def report_of(out: Path) -> dict:
    return json.loads((out / "report.json").read_text())


def card_of(out: Path) -> dict:
    return json.loads((out / "provenance.json").read_text())


def timeless(report: dict) -> dict:
    """A report without what differs from run to run: seconds, the card's start, and addresses."""
    figures = {name: figure for name, figure in report["figures"].items() if name != "seconds"}
    card = {**report["card"], "started": "", "retriever": "", "engine": {}}
    return {**report, "figures": figures, "card": card}


@pytest.mark.slow
def test_a_run_of_500_questions_killed_twice_ends_as_one_that_was_not(tmp_path, mq_tokenizer):
    rows = rows_of(500, tmp_path / "q.parquet")
    with policy_of(mq_tokenizer, rows, latency_s=0.05) as policy:
        run_words = words(policy.url, tmp_path, out=tmp_path / "killed")
        tape = tmp_path / "killed" / "journal" / "exchanges.ndjson"
        for answers in (200, 600):
            process = subprocess.Popen(
                [sys.executable, "-m", "rag_r1.cli", "eval", *run_words],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            kill_at(process, tape, answers)
            assert 0 < len(lines(tape)) < 1000
        assert command.main(run_words) == 0
        policy.latency_s = 0.0
        assert command.main(words(policy.url, tmp_path, out=tmp_path / "whole")) == 0
        requests = len(policy.bodies)
        assert command.main(run_words) == 0
        assert len(policy.bodies) == requests, "a finished run asks nothing"
    assert 2000 <= requests <= 2000 + 2 * 32, "only what was under way at a kill is asked again"
    whole, killed = (
        list(map(untimed, read_records(tmp_path / n / "trajectories"))) for n in ("whole", "killed")
    )
    assert [record["question_id"] for record in whole] == [row.id for row in rows]
    assert whole == killed
    assert [record["right"] for record in whole] == [is_right(row.question) for row in rows]
    assert timeless(report_of(tmp_path / "whole")) == timeless(report_of(tmp_path / "killed"))
    em = report_of(tmp_path / "killed")["figures"]["em"]["all"]
    assert em["value"] == pytest.approx(sum(is_right(row.question) for row in rows) / 500, abs=1e-6)
    assert em["questions"] == 500 and card_of(tmp_path / "killed")["engine"]["mode"] == "tokens"


@pytest.mark.slow
def test_every_request_is_greedy_and_in_token_ids_and_every_figure_is_there(tmp_path, mq_tokenizer, capsys):
    rows = rows_of(20, tmp_path / "q.parquet")
    supporting = [{"id": row.id, "supporting_ids": ["p1", "p9"]} for row in rows]
    write_json_lines(tmp_path / "supporting.jsonl", supporting)
    (tmp_path / "answerable.json").write_text(json.dumps([row.id for row in rows[:10]]))
    with policy_of(mq_tokenizer, rows) as policy:
        files = {"answerable": tmp_path / "answerable.json", "supporting": tmp_path / "supporting.jsonl"}
        assert command.main(words(policy.url, tmp_path, **files)) == 0
    for body in policy.bodies:
        assert body["temperature"] == 0.0 and body["return_token_ids"] is True
        # What a request leaves out, vLLM takes from the model's generation_config.json.
        sampling = ("top_p", "top_k", "min_p", "repetition_penalty")
        assert [body[name] for name in sampling] == [1.0, -1, 0.0, 1.0]
        assert all(type(token) is int for token in body["prompt"])
    figures = report_of(tmp_path / "out")["figures"]
    right = [is_right(row.question) for row in rows]
    assert figures["em"]["all"]["value"] == pytest.approx(sum(right) / 20)
    assert figures["em_answerable"]["all"]["value"] == pytest.approx(sum(right[:10]) / 10)
    assert figures["recall"]["all"]["value"] == 0.5 and figures["found_all"]["all"]["value"] == 0.0
    assert (figures["retrievals"]["all"]["value"], figures["turns"]["all"]["value"]) == (1.0, 2.0)
    assert figures["formatted"]["all"]["value"] == 1.0 and figures["failed"]["all"]["value"] == 0.0
    printed = capsys.readouterr().out
    assert "condition agent: 20 questions" in printed and "EM of answerable questions" in printed
    assert "is not known" not in printed and str(tmp_path / "out" / "report.md") in printed
    card = card_of(tmp_path / "out")
    assert card["engine"]["options"]["tokenizer"] == "rag_r1_mq", "no path of this machine"
    assert card["condition"] == "agent" and card["data"]["q.parquet"]["rows"] == 20
    assert (card["budget"]["max_turns"], card["budget"]["max_turn_tokens"]) == (5, 1024)


@pytest.mark.slow
def test_an_endpoint_that_returns_text_only_is_used_and_the_card_says_so(tmp_path, mq_tokenizer):
    rows = rows_of(6, tmp_path / "q.parquet")
    with policy_of(mq_tokenizer, rows, ids=False) as policy:
        assert command.main(words(policy.url, tmp_path)) == 0
    engine = card_of(tmp_path / "out")["engine"]
    assert engine["mode"] == "text" and engine["options"]["answers"] == "text"
    assert "| engine.mode | text |" in (tmp_path / "out" / "report.md").read_text()
    records = list(read_records(tmp_path / "out" / "trajectories"))
    assert [record["right"] for record in records] == [is_right(row.question) for row in rows]


@pytest.mark.slow
def test_a_chat_endpoint_is_told_the_context_as_a_conversation_and_failures_are_no_answers(tmp_path, capsys):
    with Teacher.of_world(seed=3, count=120, latency_s=0.0) as teacher:
        rows = (to_row(question, i, "test", MQ) for i, question in enumerate(teacher.questions))
        write_rows(tmp_path / "q.parquet", rows)
        flags = {"engine": "chat", "tokenizer": None, "retries": 5, "timeout_s": 20}
        run_words = words(f"{teacher.url}/v1", tmp_path, retriever_url=teacher.url, **flags)
        assert command.main(run_words) == 0
    alive = [question for question in teacher.questions if not teacher.is_dead(question)]
    report = report_of(tmp_path / "out")
    assert report["counts"]["all"]["failed"] == 120 - len(alive) > 0
    em = report["figures"]["em"]["all"]["value"]
    assert em == pytest.approx(sum(map(teacher.is_right, alive)) / len(alive), abs=1e-6)
    engine = card_of(tmp_path / "out")["engine"]
    assert (engine["mode"], engine["options"]["answers"]) == ("text", "chat")
    assert all(record["usage"] for record in lines(tmp_path / "out" / "journal" / "records.ndjson"))
    assert "run again, asks" in capsys.readouterr().out


@pytest.mark.slow
def test_baselines_ask_in_their_own_way_and_only_one_shot_needs_a_search(tmp_path, mq_tokenizer, capsys):
    rows = rows_of(6, tmp_path / "q.parquet")
    prompts, figures = {}, {}
    with policy_of(mq_tokenizer, rows, searches=False) as policy:
        for name in ("direct", "cot", "one_shot", "no_search"):
            url = policy.url if name == "one_shot" else "http://127.0.0.1:9"
            flags = {"out": tmp_path / name, "baseline": name, "retriever_url": url}
            assert command.main([*words(policy.url, tmp_path, **flags), "--check-only"]) == 0
            assert command.main(words(policy.url, tmp_path, **flags)) == 0
            prompts[name] = mq_tokenizer.decode(policy.bodies[-1]["prompt"])
            figures[name] = report_of(tmp_path / name)["figures"]
            card = card_of(tmp_path / name)
            assert card["condition"] == name and (card["retriever"] is None) == (name != "one_shot")
            assert len(policy.bodies) == 6
            policy.bodies.clear()
    assert "step by step" in prompts["cot"] and "step by step" not in prompts["direct"]
    assert "Doc 2: " in prompts["one_shot"] and "A river." in prompts["one_shot"]
    assert "up to three queries each time" in prompts["no_search"]
    retrievals = {name: of_run["retrievals"]["all"]["value"] for name, of_run in figures.items()}
    assert retrievals == {"direct": 0.0, "cot": 0.0, "one_shot": 1.0, "no_search": 0.0}
    capsys.readouterr()
    both = [str(tmp_path / "direct"), str(tmp_path / "cot"), "--resamples", "20"]
    assert command.main(["compare", *both]) == 1
    assert "condition: 'direct' | 'cot'" in capsys.readouterr().err
    assert command.main(["compare", *both, "--differs", "condition,protocol"]) == 0
    assert command.main(["report", str(tmp_path / "direct"), "--resamples", "20"]) == 0
    assert "# Evaluation" in capsys.readouterr().out


@pytest.mark.slow
def test_a_judge_is_one_more_term_and_can_be_added_to_a_finished_run(tmp_path, mq_tokenizer, capsys):
    rows = rows_of(8, tmp_path / "q.parquet")
    with policy_of(mq_tokenizer, rows) as policy:
        run_words = words(policy.url, tmp_path)
        assert command.main(run_words) == 0
        requests = len(policy.bodies)
        assert "term:judge" not in report_of(tmp_path / "out")["figures"]
        with JudgeServer.of_cases(lambda case: "correct") as judge:
            judging = ["--judge-url", judge.base, "--judge-model", "grader"]
            assert command.main([*run_words, *judging]) == 0
            assert command.main([*run_words, *judging]) == 0
        assert len(policy.bodies) == requests
    assert len(judge.cases) == len({row.question for row in rows})
    figure = report_of(tmp_path / "out")["figures"]["term:judge"]
    assert figure["all"]["value"] == 1.0 and figure["label"] == "judge (term)"
    assert card_of(tmp_path / "out")["judge"]["model"] == "grader"
    assert "judge: 8 distinct answers, 8 correct" in capsys.readouterr().out


@pytest.mark.slow
def test_several_samples_of_a_question_are_drawn_and_count_as_one_question(tmp_path, mq_tokenizer):
    rows = rows_of(5, tmp_path / "q.parquet")
    with policy_of(mq_tokenizer, rows) as policy:
        assert command.main(words(policy.url, tmp_path, samples=3, temperature=1)) == 0
    counts = report_of(tmp_path / "out")["counts"]["all"]
    assert (counts["questions"], counts["episodes"]) == (5, 15)
    assert len({body["seed"] for body in policy.bodies}) == 30


@pytest.mark.slow
def test_a_run_goes_on_only_with_what_it_was_begun_with(tmp_path, mq_tokenizer, capsys):
    rows = rows_of(4, tmp_path / "q.parquet")
    rows_of(5, tmp_path / "more.parquet")
    with policy_of(mq_tokenizer, rows, corpus="a" * 64, described={"index_version": 1}) as policy:

        def run(*more: object, **flags: object) -> tuple[int, str]:
            status = command.main(words(policy.url, tmp_path, *more, **flags))
            return status, capsys.readouterr().err

        assert run("rag_r1.agent.max_turns=2")[0] == 0
        started = card_of(tmp_path / "out")["started"]
        assert card_of(tmp_path / "out")["budget"]["max_turns"] == 2
        for (status, error), message in (
            (run(), "budget.max_turns was 2 and is now 5"),
            (run("rag_r1.agent.max_turns=2", temperature=1), "temperature was 0.0 and is now 1.0"),
            (run("rag_r1.agent.max_turns=2", baseline="cot"), "condition was 'agent' and is now 'cot'"),
            (run("rag_r1.agent.max_turns=2", model="other"), "model was 'policy' and is now 'other'"),
            (run("rag_r1.agent.max_turns=2", data=tmp_path / "more.parquet"), "questions was 4 and is now 5"),
        ):
            assert status == 1 and message in error
        policy.corpus = "b" * 64
        status, error = run("rag_r1.agent.max_turns=2")
        assert status == 1 and "corpus_sha256 was 'aaa" in error and "choose another --out" in error
        policy.corpus = "a" * 64
        policy.described = {"index_version": 2}
        assert run("rag_r1.agent.max_turns=2", in_flight=1)[0] == 0, "the same index, reloaded"
        assert card_of(tmp_path / "out")["started"] == started


@pytest.mark.slow
def test_wrong_inputs_are_named_before_anything_is_asked(tmp_path, mq_tokenizer, capsys):
    rows = rows_of(3, tmp_path / "q.parquet")
    (tmp_path / "broken.json").write_text('[{"answerable": 1}]')
    (tmp_path / "others.json").write_text('["of-another-set"]')
    (tmp_path / "prompt.txt").write_text("Say it: {question}")
    with policy_of(mq_tokenizer, rows) as policy:
        for flags, message in (
            ({"data": tmp_path / "absent.parquet"}, "absent.parquet"),
            ({"protocol": "absent.yaml"}, "absent.yaml"),
            ({"base_url": None, "model": tmp_path / "nowhere"}, "is not a folder"),
            ({"base_url": None, "model": tmp_path}, "download it again as a whole, or give another folder"),
            ({"tokenizer": tmp_path}, "--tokenizer"),
            ({"answerable": tmp_path / "broken.json"}, "needs an `id`"),
            ({"answerable": tmp_path / "absent.json"}, "absent.json"),
            ({"answerable": tmp_path / "others.json"}, "others.json names none of the run's questions"),
            ({"retriever_url": "http://127.0.0.1:9", "retries": 0}, "rag-r1 index serve"),
            ({"baseline": "one_shot", "prompt": tmp_path / "prompt.txt"}, "--prompt has no {documents}"),
            ({"term": "no_such"}, "no_such"),
        ):
            run_words = words(policy.url, tmp_path, "rag_r1.retriever.retries=0", **flags)
            assert command.main(run_words) == 1, message
            assert message in capsys.readouterr().err
        for flags, message in (
            ({"baseline": "no_such"}, "must be one of direct, cot, one_shot, no_search"),
            ({"samples": 2}, "--samples above 1 needs a --temperature above 0"),
            ({"judge_url": policy.url}, "--judge-url"),
            ({"temperature": -1}, "--temperature"),
            ({"base_url": "localhost:1"}, "argument --base-url: must be an http(s) address"),
        ):
            with pytest.raises(SystemExit) as end:
                command.main(words(policy.url, tmp_path, **flags))
            assert end.value.code == 2 and message in capsys.readouterr().err
        assert policy.bodies == [] and not (tmp_path / "out" / "report.json").exists()


def recipe(name: str, key: str = "rag_r1") -> dict:
    return yaml.safe_load((ROOT / "recipes" / f"{name}.yaml").read_text())[key]


@pytest.mark.parametrize(
    ("protocol", "name"),
    [
        ("rag_r1_mq", "rag_r1/_common"),
        ("rag_r1_sq", "checkpoints/released/_rag_r1"),
        ("search_r1", "checkpoints/released/_search_r1"),
        ("r1_searcher", "checkpoints/released/_r1_searcher"),
        ("r1_searcher_instruct", "r1_searcher/_common"),
        ("agentic_rag_tools", "agentic_rag/grpo_tools"),
        (str(ROOT / "rag_r1" / "protocols" / "rag_r1_mq.yaml"), "rag_r1/_common"),
    ],
)
def test_the_limits_are_those_of_a_validation_with_the_recipes(protocol, name):
    def settings(block: dict) -> RagR1Config:
        keys = ("agent", "validation_agent", "retriever", "validation_retriever")
        return RagR1Config.from_config({"protocol": protocol, **{k: block[k] for k in keys if k in block}})

    limits, recipes = settings(validation_limits(protocol)), settings(recipe(name))
    assert limits.validation_agent == recipes.validation_agent
    assert limits.validation_retriever.get("topk", 3) == recipes.validation_retriever.get("topk", 3)


def test_report_and_compare_are_parts_of_eval():
    assert COMMANDS["eval"][0] == "rag_r1.evaluation.command"
    assert not {"report", "compare"} & set(COMMANDS)
