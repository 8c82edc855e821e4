"""The card of a run: what it finds out, what it never keeps, and what differs between two."""

from __future__ import annotations

import json
import subprocess
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rag_r1.agent import Budget, FailurePolicy
from rag_r1.io.bounded_http import SHORT_ANSWER_BYTES
from rag_r1.protocols import load_protocol
from rag_r1.rollouts import provenance_facts
from rag_r1.rollouts.provenance import Provenance, find_differences, make_provenance, protocol_part
from rag_r1.rollouts.provenance_facts import describe_server, without_secrets
from rag_r1.runs.errors import RunError
from rag_r1.tools.retrieval.client import RetrieverConfig
from rag_r1.tools.retrieval.local_server import build_index, retrieval_process
from tests.evaluation.finished_runs import card
from tests.fakes.json_server import JsonStub

PASSING = {"index_version": 2, "paged_in": 1}
READY = {
    "status": "ready",
    "index_version": 1,
    "backend": "dense",
    "passages": 3,
    "corpus_sha256": "c" * 64,
    "encoder": "intfloat/e5-base-v2",
    "separator": None,
    "guarantee": "order",
    "topk": 3,
    "index": "wiki",
    "indexes": {"wiki": {"backend": "dense"}},
}


def server(answers: dict[str, tuple[int, str]]) -> JsonStub:
    """An HTTP server with these answers, by path; 404 for other paths."""
    return JsonStub(lambda request: answers.get(request.path, (404, "{}")))


def made(**changes) -> Provenance:
    """A card of the smallest run."""
    settings = {
        "model": "Qwen/Qwen2.5-7B-Instruct",
        "protocol": load_protocol("rag_r1_mq"),
        "budget": Budget(),
        "sampling": {"temperature": 0.0},
        "engine_mode": "tokens",
    }
    return make_provenance(**{**settings, **changes})


def test_a_card_has_what_was_given_and_what_could_be_found_out(tmp_path):
    now = datetime(2026, 11, 22, 12, 0, 1, 999, tzinfo=timezone(timedelta(hours=2)))
    provenance = made(
        failures=FailurePolicy(mask=("retriever",)), engine={"name": "vllm"}, seed=7, started=now
    ).flat()
    expected = {
        "started": "2026-11-22T10:00:01+00:00",
        "model.name": "Qwen/Qwen2.5-7B-Instruct",
        "model.sha256": None,
        "engine.mode": "tokens",
        "engine.options.name": "vllm",
        "protocol.name": "rag_r1_mq",
        "budget.max_turns": 4,
        "budget.max_response_tokens": 4096,
        "failures.mask": ["retriever"],
        "sampling.temperature": 0.0,
        "seed": 7,
        "normaliser": "squad",
        "retriever": None,
    }
    assert {key: provenance[key] for key in expected} == expected
    assert provenance["versions.numpy"] and provenance["versions.python"] and provenance["machine.cores"] >= 1


def test_a_card_is_read_as_it_was_written(tmp_path):
    first = made(sampling={"temperature": 0.6, "stop": ["</search>", "é"]})
    path = first.write(tmp_path / "run")
    assert path.name == "provenance.json" and Provenance.read(tmp_path / "run") == first
    assert Provenance.read(tmp_path) is None
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["provenance.json"]
    path.rename(path.with_name("card.json"))  # as earlier versions have written it
    assert Provenance.read(tmp_path / "run") == first
    path.write_text('{"settings": {"seed": 9}}')  # of a run that goes on, whose card is not written yet
    assert Provenance.read(tmp_path / "run") == first
    second = made(seed=9)
    second.write(tmp_path / "run")
    assert Provenance.read(tmp_path / "run") == second
    assert json.loads(path.read_text())["settings"] == {"seed": 9}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', "\x00"])
def test_a_file_that_is_no_card_is_refused_by_name(tmp_path, text):
    (tmp_path / "provenance.json").write_text(text)
    with pytest.raises(RunError, match=r"provenance\.json: "):
        Provenance.read(tmp_path)


def test_differences_are_all_values_that_are_not_equal():
    other = card(model={"name": "base", "sha256": None}, seed=1, versions={"torch": "2.13.0"})
    assert find_differences([card(), other, card(started="2027-01-01T00:00:00+00:00")]) == {
        "model.sha256": ["0" * 64, None, "0" * 64],
        "seed": [0, 1, 0],
        "versions.torch": [None, "2.13.0", None],
    }


def test_the_prompts_hash_is_of_the_prompt_alone():
    changed = protocol_part(load_protocol("rag_r1_mq", "Answer: {question}"))
    shipped = protocol_part(load_protocol("rag_r1_mq"))
    assert changed.prompt_sha256 != shipped.prompt_sha256 and changed.sha256 != shipped.sha256
    known = load_protocol("rag_r1_mq").with_special_tokens(["<|im_end|>"])
    assert protocol_part(known) == shipped  # the tokens of a model are no part of the protocol
    assert protocol_part(load_protocol("rag_r1_sq")).sha256 != shipped.sha256


def test_the_server_describes_itself(monkeypatch):
    monkeypatch.setenv("RETRIEVAL_TOKEN", "hush")
    with server({"/ready": (200, json.dumps(READY)), "/health": (200, "{}")}) as served:
        provenance = made(retriever=RetrieverConfig(url=f"{served.url}/retrieve", topk=5))
    assert [request.headers["Authorization"] for request in served.asked] == ["Bearer hush"] * 2
    assert "hush" not in provenance.model_dump_json()
    part = provenance.retriever
    assert (part.url, part.wire, part.topk, part.healthy) == (served.url, "retrieve", 5, True)
    assert part.ready == {k: v for k, v in READY.items() if k not in ("status", "topk", "indexes")}
    assert provenance.corpus_sha256 == "c" * 64


@pytest.mark.parametrize(
    ("answers", "healthy"),
    [
        ({}, None),  # Search-R1's server has neither route
        ({"/health": (200, "ok"), "/ready": (200, "no JSON")}, True),
        ({"/health": (200, "ok"), "/ready": (200, "[1]")}, True),
        ({"/health": (500, ""), "/ready": (503, "{}")}, False),
        ({"/health": (200, "ok"), "/ready": (200, '{"x": "' + "y" * SHORT_ANSWER_BYTES + '"}')}, True),
        ({"/health": (200, "ok"), "/ready": (200, "[" * 100_000)}, True),
    ],
)
def test_a_server_that_does_not_describe_itself_leaves_the_card_without(answers, healthy):
    with server(answers) as served:
        provenance = made(retriever=RetrieverConfig(url=served.url)).retriever
    assert provenance.ready is None and provenance.healthy is healthy


def test_no_server_is_an_error_that_shows_no_credentials():
    with pytest.raises(RunError, match=r"no retrieval server answers at http://127\.0\.0\.1:9 ") as caught:
        describe_server("http://user:hush@127.0.0.1:9")
    assert "hush" not in str(caught.value)


def test_a_token_that_cannot_be_sent_is_not_taken_for_a_server_that_is_gone(monkeypatch):
    monkeypatch.setenv("RETRIEVAL_TOKEN", "hush\u00e9")
    with pytest.raises(RunError, match=r"^\$RETRIEVAL_TOKEN has characters") as caught:
        describe_server("http://127.0.0.1:9")
    assert "hush" not in str(caught.value)


def test_nothing_secret_is_kept():
    values = {
        "api_key": "hush",
        "OPENAI_API_KEY": "hush",
        "headers": {"Authorization": "hush", "cookie": "hush"},
        "url": "https://user:hush@host/v1?x=1",
        "list": ["http://hush@host"],
        "token": None,
        "max_tokens": 5,
        "max_turn_tokens": 7,
    }
    provenance = made(sampling=values, engine=values, budget=values).model_dump_json()
    assert "hush" not in provenance
    assert without_secrets(values)["max_tokens"] == 5 and without_secrets(values)["token"] is None
    assert without_secrets(values)["url"] == "https://host/v1"
    assert without_secrets("see ftp://user:hush@host and https://host") == "see ftp://host and https://host"
    assert without_secrets("redis://user:hu@sh@host/1") == "redis://host/1"
    assert without_secrets("HTTPS://host/v1?key=hush") == "https://host/v1"
    assert without_secrets("http://[") == "(removed)"
    assert provenance_facts.public_address("https://user:hush@host:1/v1?key=hush#x") == "https://host:1/v1"
    assert provenance_facts.public_address("http://hush:[") == "(removed)"


def test_what_identifies_an_index_is_the_same_after_a_reload_and_not_for_another_encoder():
    provenance = provenance_facts.index_identity(READY)
    assert provenance == provenance_facts.index_identity({**READY, **PASSING})
    assert provenance != provenance_facts.index_identity({**READY, "encoder_sha256": "d" * 64})
    assert provenance_facts.index_identity(None) is None


def test_an_index_of_another_corpus_than_the_servers_is_refused(tmp_path):
    (tmp_path / "manifest.json").write_text('{"backend": "bm25", "corpus": {"sha256": "other"}, "files": {}}')
    with server({"/ready": (200, json.dumps(READY))}) as served:
        with pytest.raises(RunError, match="serves the corpus ccc.* is of other"):
            made(retriever=RetrieverConfig(url=served.url), index=tmp_path)
    provenance = made(index=tmp_path)
    assert provenance.corpus_sha256 == "other" and set(provenance.index) == {"backend", "corpus", "sha256"}


def test_a_corpus_that_is_not_named_by_a_text_is_not_known(tmp_path):
    (tmp_path / "manifest.json").write_text('{"corpus": {"sha256": [1]}}')
    with server({"/ready": (200, json.dumps({**READY, "corpus_sha256": 5}))}) as served:
        card = made(retriever=RetrieverConfig(url=served.url), index=tmp_path)
    assert card.corpus_sha256 is None


@pytest.mark.parametrize("text", [None, "{", "[]", '{"corpus": 1}', '{"corpus": {}}\u2200'])
def test_a_folder_that_is_no_index_is_refused(tmp_path, text):
    if text is not None:
        encoding = "utf-8" if text.isascii() else "utf-16"  # in which the values are not counted
        (tmp_path / "manifest.json").write_text(text.rstrip("\u2200"), encoding=encoding)
    with pytest.raises(RunError, match="give the folder of a finished index"):
        made(index=tmp_path)


def test_a_models_hash_is_of_its_files_names_and_contents(tmp_path):
    def model(name: str, files: dict[str, str]) -> dict:
        for path, text in files.items():
            (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / path).write_text(text)
        return provenance_facts.model_facts(tmp_path / name)

    files = {"config.json": "{}", "sub/model.safetensors": "weights"}
    first = model("one", files)
    assert first["name"] == "one" and first["sha256"] == model("copy", files)["sha256"]
    assert model("hidden", {**files, ".cache/x": "y"})["sha256"] == first["sha256"]
    variants = [{**files, "config.json": "{ }"}, {"config.json": "{}", "model.safetensors": "weights"}]
    hashes = {model(f"other {i}", values)["sha256"] for i, values in enumerate(variants)}
    assert len(hashes | {first["sha256"]}) == 3


def test_files_of_questions_have_hashes_and_counts(tmp_path):
    pq.write_table(pa.table({"x": [1, 2, 3]}), tmp_path / "test.parquet")
    (tmp_path / "own.jsonl").write_text('{"a": 1}\n\n{"a": 2}')
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "OTHER.JSONL").write_text('{"a": 1}')
    names = ("test.parquet", "own.jsonl", "list.json", "OTHER.JSONL")
    provenance = made(data=[tmp_path / name for name in names])
    assert {name: part.rows for name, part in provenance.data.items()} == {
        "test.parquet": 3,
        "own.jsonl": 2,
        "list.json": None,
        "OTHER.JSONL": 1,
    }
    assert provenance.rows is None and made(data=[tmp_path / "test.parquet"]).rows == 3
    assert len({part.sha256 for part in provenance.data.values()}) == 4
    (tmp_path / "bad.parquet").write_text("no parquet")
    for name, problem in (("bad.parquet", "is not a parquet file"), ("nowhere.jsonl", "cannot read")):
        with pytest.raises(RunError, match=problem):
            made(data=[tmp_path / name])


def test_files_of_the_same_name_are_told_apart(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "test.jsonl").write_text(f'{{"of": "{name}"}}\n')
    provenance = made(data=[tmp_path / name / "test.jsonl" for name in ("a", "b")])
    assert list(provenance.data) == ["a/test.jsonl", "b/test.jsonl"] and provenance.rows == 2


def test_the_commit_is_that_of_this_code_or_not_known():
    """Not known where the tests run from an installed package, or where there is no git."""
    provenance = provenance_facts.commit_facts()
    root = Path(provenance_facts.__file__).parents[2]
    head = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True)
    if head.returncode or not (root / ".git").exists():
        assert provenance is None
    else:
        assert provenance is not None and provenance["sha"] == head.stdout.strip()


def test_a_tree_of_which_git_does_not_say_whether_it_has_changed_does_not_count_as_unchanged(monkeypatch):
    answers = {"rev-parse": "a" * 40, "ls-files": "__init__.py", "status": None}
    monkeypatch.setattr(provenance_facts, "_git", lambda folder, *words: answers[words[0]])
    assert made().flat()["commit.changed"] is None
    answers["status"] = ""
    assert made().flat()["commit.changed"] is False


@pytest.mark.slow
def test_the_card_of_a_real_index_and_server(tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    rows = [{"id": str(i), "contents": f'"Title {i}"\nText number {i}.'} for i in range(3)]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    index = build_index(corpus, tmp_path / "index", "--backend", "bm25")
    with retrieval_process(index, tmp_path / "server.log") as url:
        provenance = made(retriever=RetrieverConfig(url=url), index=index)
    manifest = json.loads((index / "manifest.json").read_text())
    assert (
        provenance.corpus_sha256
        == manifest["corpus"]["sha256"]
        == provenance.retriever.ready["corpus_sha256"]
    )
    assert provenance.retriever.healthy and provenance.retriever.ready["guarantee"] == "bits"
    assert provenance.retriever.ready["passages"] == provenance.index["count"] == 3
    assert provenance.index["bm25"] == manifest["bm25"] and "files" not in provenance.index
