"""`rag-r1 retriever data` over a small world, with an agent and a judge behind HTTP: what it writes, asks and
tells."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from rag_r1.data.rows import QuestionRow, read_rows, write_rows
from rag_r1.demo.search import WorldSearch
from rag_r1.evaluation import command
from rag_r1.retriever.data import command as data
from rag_r1.retriever.records import TrainingRow, read_records
from rag_r1.retriever.training.dataset import load_training_data
from rag_r1.retriever.training.encoder_settings import EncoderSettings
from tests.fakes.scored_world import FEW, ScoredWorld, lines, scored_world, texts_of
from tests.retriever.small_training import ENCODER

pytestmark = pytest.mark.slow


def correct_passages(world: ScoredWorld, question, search: int, names) -> set[str]:
    """Ids of the passages with which alone, in the place of what its search number `search` (from 1) found, a
    question is answered: every fact stands in them or in what its other searches find."""
    texts = {passage["id"]: passage["contents"] for passage in world.world.passages}
    others = [lookup.entity for i, lookup in enumerate(question.lookups, 1) if i != search]
    results = WorldSearch(world.world.passages, topk=3).results(others)
    beside = [document.contents for documents in results for document in documents]

    def is_answered(name: str) -> bool:
        shown_texts = [texts[name], *beside]
        return all(
            any(f.entity in text and f.value in text for text in shown_texts) for f in question.lookups
        )

    return set(filter(is_answered, names))


def test_a_passage_is_correct_if_and_only_if_the_agent_answers_with_it_alone(finished):
    world, out = finished
    questions = {question.id: question for question in world.questions}
    scored = lines(out / "correctness.jsonl")
    assert len(scored) == sum(len(question.lookups) for question in world.questions)
    for record in scored:
        question, number, scores = questions[record["id"]], record["round_index"], record["docid_score"]
        right = {name for name, score in scores.items() if score["metric_score"]["em"] == 1}
        assert right == correct_passages(world, question, number, scores)
        # The other searches of the question are still to come, whatever this one has found.
        later_searches = {score["retrieved_times"] for score in scores.values()}
        assert later_searches == {len(question.lookups) - number}
        entities = [lookup.entity for lookup in question.lookups]
        assert [*record["history_queries"], record["current_query"]] == entities[:number]
    ems = [score["metric_score"]["em"] for record in scored for score in record["docid_score"].values()]
    assert set(ems) == {0.0, 1.0}


def test_every_record_names_passages_of_the_corpus_by_its_own_ids(finished):
    world, out = finished
    corpus = {passage["id"]: passage["contents"] for passage in world.world.passages}
    texts = texts_of(out / "passages.jsonl")
    assert texts.items() <= corpus.items()
    relevance = {(r["id"], r["round_index"]): r["docid_score"] for r in lines(out / "relevance.jsonl")}
    correctness = {(r["id"], r["round_index"]): r["docid_score"] for r in lines(out / "correctness.jsonl")}
    for record in lines(out / "candidates.jsonl"):
        for search in record["trajectory"]:
            names, context = search["candidate_passage_ids"], search["reasoning_context"]
            assert 0 < len(names) <= 20 and set(names) <= texts.keys()
            assert context.endswith("</search>") and search["sent_query"] == search["current_query"]
            assert context.count("<information>") == search["round_index"] - 1
            key = record["id"], search["round_index"]
            assert list(relevance[key]) == list(correctness[key]) == names


def test_the_retriever_is_sent_what_the_agent_sends_it_and_records_keep_both(tmp_path, tokenizer):
    with scored_world(tmp_path, tokenizer, separator=" [SEP] ") as world:
        args = world.words(tmp_path / "out", *FEW, "--utility", "relevance")
        assert data.main([*args, "rag_r1.retriever.agentic_input=true"]) == 0
    records = lines(tmp_path / "out" / "candidates.jsonl")
    assert records
    for record in records:
        for search in record["trajectory"]:
            assert search["sent_query"] == f"{record['question']} [SEP] {search['current_query']}"
    rows = list(read_records(TrainingRow, tmp_path / "out" / "train.jsonl"))
    assert all("[SEP]" not in row.query_text for row in rows)


def test_a_row_has_the_thought_that_its_query_was_sent_with(tmp_path, tokenizer):
    settings = EncoderSettings(**{**ENCODER, "mode": "reasoning"})
    out = tmp_path / "out"
    with scored_world(tmp_path, tokenizer, separator=settings.separator) as world:
        world.policy.thinks, world.policy.described = True, {"query_mode": "reasoning"}
        words = [*world.words(out, *FEW, "--utility", "relevance"), "rag_r1.retriever.agentic_input=true"]
        assert data.main(words) == 0
        requests = len(world.policy.bodies), len(world.judge.bodies)
        files = {name: (out / name).read_bytes() for name in ("candidates.jsonl", "train.jsonl")}
        for name, whole in files.items():  # as before rows had thoughts
            assert b', "reasoning": "' in whole
            (out / name).write_bytes(re.sub(rb', "reasoning": "[^"]*"', b"", whole))
        assert data.main(words) == 0
        assert files == {name: (out / name).read_bytes() for name in files}, "the same command adds them"
        assert requests == (len(world.policy.bodies), len(world.judge.bodies)), "and asks nothing for it"
    lookups = {question.id: [lookup.entity for lookup in question.lookups] for question in world.questions}
    sent = {}
    for record in lines(out / "candidates.jsonl"):
        for search in record["trajectory"]:
            number = search["round_index"]
            thought = lookups[record["id"]][number - 2] if number > 1 else ""
            assert search["reasoning"] == thought
            sent[record["id"], number] = search["sent_query"]
            assert search["sent_query"] == " [SEP] ".join(filter(None, [thought, search["current_query"]]))
    rows = list(read_records(TrainingRow, out / "train.jsonl"))
    assert {bool(row.reasoning) for row in rows} == {True, False}
    read = load_training_data(
        [out / "train.jsonl"], [out / "passages.jsonl"], settings, negatives=3, progress=False
    )
    assert read.queries == [sent[row.query_id, row.round_index] for row in rows], "a training reads the same"


def test_the_rows_have_what_helps_first_and_nothing_useful_behind(finished):
    world, out = finished
    questions = {question.id: question for question in world.questions}
    rows = list(read_records(TrainingRow, out / "train.jsonl"))
    assert rows
    for row in rows:
        correct = correct_passages(world, questions[row.query_id], row.round_index, row.passage_ids)
        positive, *negatives = row.passage_ids
        assert positive in correct and len(negatives) == 3
        assert [score.em for score in row.scores] == [float(name in correct) for name in row.passage_ids]
        assert row.scores[0].local_utility >= 0.9
        assert not any(score.em and score.local_utility >= 0.6 for score in row.scores[1:])
    summary = json.loads((out / "summary.json").read_text())["selection"]
    assert summary["rows"] == len(rows)


def test_the_judge_sees_the_query_and_its_sub_answer_and_not_the_question(finished):
    world, out = finished
    cases = [case for case in world.judge.cases if "passages" in case]
    assert cases and all(case["answer"] == f"about {case['query']}" for case in cases)
    assert all(len(case["passages"]) <= 10 for case in cases)
    output = json.dumps(cases)
    assert not any(question.text in output for question in world.questions)
    whole = [case for case in world.judge.cases if "searches" in case]
    assert sorted(case["question"] for case in whole) == sorted(q.text for q in world.questions)


def test_where_the_judge_is_not_sure_passages_are_scored_without_a_sub_answer(tmp_path, tokenizer):
    def mood(case, said, attempt):
        return json.dumps(["Not sure.", *json.loads(said)[1:]]) if "searches" in case else said

    with scored_world(tmp_path, tokenizer, mood=mood) as world:
        assert data.main(world.words(tmp_path / "out", *FEW, "--utility", "relevance")) == 0
        cases = [case for case in world.judge.cases if "passages" in case]
    first = {question.lookups[0].entity for question in world.questions}
    assert {case["query"] for case in cases} > first
    assert {case["query"] for case in cases if "answer" not in case} == first


def test_the_cost_is_told_before_anything_is_scored(tmp_path, tokenizer, capsys):
    with scored_world(tmp_path, tokenizer) as world:
        prices = {"price_in": 1, "price_out": 2, "judge_price_in": 3, "judge_price_out": 4}
        args = world.words(tmp_path / "out", *FEW, **prices)
        assert data.main([*args, "--estimate"]) == 0
        output = capsys.readouterr().out
        assert "candidates of" in output and ", cost " in output
        assert not world.judge.cases and not (tmp_path / "out" / "correctness.jsonl").exists()
        requests = len(world.policy.bodies)
        assert data.main(args) == 0
    candidates = [search for r in lines(tmp_path / "out" / "candidates.jsonl") for search in r["trajectory"]]
    count = sum(len(search["candidate_passage_ids"]) for search in candidates)
    assert f"to be scored: {count:,} candidates of {len(candidates):,} searches" in output
    assert f"continuations of the agent: {count:,}," in output
    parts = sum(-(-len(search["candidate_passage_ids"]) // 10) for search in candidates)
    assert f"requests to the judge: {parts + len(world.questions):,}," in output
    assert len(world.judge.cases) == parts + len(world.questions)
    assert len(world.policy.bodies) > requests


@pytest.mark.parametrize(
    ("utility", "missing"), [("correctness", "relevance.jsonl"), ("relevance", "correctness.jsonl")]
)
def test_one_utility_alone_leaves_out_what_the_other_costs(tmp_path, tokenizer, utility, missing):
    with scored_world(tmp_path, tokenizer) as world:
        assert data.main(world.words(tmp_path / "out", *FEW, "--utility", utility)) == 0
        assert bool(world.judge.cases) == (utility == "relevance")
    assert not (tmp_path / "out" / missing).exists()
    rows = list(read_records(TrainingRow, tmp_path / "out" / "train.jsonl"))
    assert rows and all(row.scores[0].em == (utility == "correctness") for row in rows)


def test_the_rule_knows_the_answers_of_steps_that_rows_name_or_that_a_run_has_kept(
    tmp_path, tokenizer, capsys
):
    def relevant(out, answers) -> bool:
        texts, scored = texts_of(out / "passages.jsonl"), lines(out / "relevance.jsonl")
        assert scored
        return all(
            score == 100 * any(answer in texts[name] for answer in answers[record["id"]])
            for record in scored
            for name, score in record["docid_score"].items()
        )

    with scored_world(tmp_path, tokenizer) as world:
        out, more = tmp_path / "out", (*FEW, "--utility", "relevance")
        golds = {question.id: [question.gold] for question in world.questions}
        steps = {q.id: [lookup.value for lookup in q.lookups] for q in world.questions}
        assert any(len(values) > 1 for values in steps.values())
        assert data.main(world.words(out, *more, judged=False)) == 0
        assert relevant(out, golds) and not relevant(out, steps)
        assert "which 0 of 6 questions name" in capsys.readouterr().out
        plain, requests = world.data.read_bytes(), len(world.policy.bodies)

        rows = map(QuestionRow.from_row, read_rows(world.data))
        named = [replace(row, metadata={**row.metadata, "step_answers": steps[row.id]}) for row in rows]
        write_rows(world.data, named)
        assert data.main(world.words(out, *more, judged=False)) == 0
        assert relevant(out, steps) and len(world.policy.bodies) == requests, "nothing is played again"
        assert "which 6 of 6 questions name" in capsys.readouterr().out

        assert command.main([*world.words(tmp_path / "run", judged=False)]) == 0
        world.data.write_bytes(plain)
        args = world.words(tmp_path / "own", *more, judged=False, trajectories=tmp_path / "run")
        assert data.main(args) == 0 and relevant(tmp_path / "own", steps)


def test_several_continuations_are_sampled_and_their_mean_is_the_score(tmp_path, tokenizer):
    with scored_world(tmp_path, tokenizer, count=2) as world:
        args = world.words(tmp_path / "out", *FEW, "--utility", "correctness", samples=2, temperature=1)
        assert data.main(args) == 0
        records = lines(tmp_path / "out" / "steps" / "correctness" / "journal" / "records.ndjson")
        count = sum(len(record["docid_score"]) for record in lines(tmp_path / "out" / "correctness.jsonl"))
        assert len(records) == 2 * count
        sampled = [body for body in world.policy.bodies if body["temperature"] == 1]
    assert len({body["seed"] for body in sampled}) == len(sampled) > count


def test_passages_without_ids_are_refused_with_the_remedy(tmp_path, tokenizer, capsys):
    with scored_world(tmp_path, tokenizer) as world:
        world.policy.passages = [{**passage, "id": ""} for passage in world.policy.passages]
        assert data.main(world.words(tmp_path / "out", *FEW)) == 1
    assert "a passage without an id" in capsys.readouterr().err


def test_a_trajectory_that_is_too_long_for_the_judge_is_scored_without_sub_answers(
    finished, tmp_path, tokenizer
):
    def mood(case, said, attempt):
        return None if "searches" in case and "river" in case["question"] else said

    with scored_world(tmp_path, tokenizer, mood=mood) as world:
        world.judge.failure = 400
        assert data.main(world.words(tmp_path / "out", *FEW)) == 0
        refused = {case["question"] for case in world.judge.cases if "searches" in case} - {
            question.text for question in world.questions if "river" not in question.text
        }
        assert refused and sum("searches" in case for case in world.judge.cases) == len(world.questions)
    scored, every = (
        {(r["id"], r["round_index"]) for r in lines(folder / "relevance.jsonl")}
        for folder in (tmp_path / "out", finished[1])
    )
    assert scored == every
    answered = {record["id"] for record in lines(tmp_path / "out" / "sub_answers.jsonl")}
    assert answered == {question.id for question in world.questions if question.text not in refused}
    searches = {question.text: len(question.lookups) for question in world.questions}
    alone = sum("answer" not in case for case in world.judge.cases if "passages" in case)
    assert alone >= sum(searches[text] for text in refused)


def test_passages_beside_a_candidate_are_of_other_questions_and_say_nothing(finished, tmp_path):
    world, _ = finished
    requests = len(world.policy.bodies)
    args = world.words(tmp_path / "out", *FEW, "--utility", "correctness", "--beside", "2")
    assert data.main(args) == 0
    texts = texts_of(tmp_path / "out" / "passages.jsonl")
    near = {
        record["question"]: {
            name for search in record["trajectory"] for name in search["candidate_passage_ids"]
        }
        for record in lines(tmp_path / "out" / "candidates.jsonl")
    }
    passages_beside: dict[str, set[tuple[str, ...]]] = {question: set() for question in near}
    for body in world.policy.bodies[requests:]:
        prompt = world.policy.tokenizer.decode(body["prompt"])
        question = max((text for text in near if text in prompt), key=len)
        names = tuple(name for name, text in texts.items() if text in prompt.partition("</information>")[0])
        far = tuple(name for name in names if name not in near[question])
        if len(names) == 3 and far:  # the first search of a continuation
            passages_beside[question].add(far)
    golds = {question.text: question.gold for question in world.questions}
    for question, drawn in passages_beside.items():
        assert len(drawn) == 1, "the same for all candidates"
        assert all(len(far) == 2 and golds[question] not in "".join(texts[n] for n in far) for far in drawn)


def test_more_passages_beside_than_there_are_is_told(finished, tmp_path, capsys):
    args = finished[0].words(tmp_path / "out", *FEW, "--utility", "correctness", "--beside", "500")
    assert data.main(args) == 1
    assert "--beside 500: only " in capsys.readouterr().err
