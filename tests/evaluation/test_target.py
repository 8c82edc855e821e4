"""Where the model runs: what is filled in for a folder, and what is left as it is for a server."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rag_r1.demo.policy import policy_path
from rag_r1.evaluation.eval_arguments import EvalArguments
from rag_r1.evaluation.judge import check_judge
from rag_r1.evaluation.provenance import vllm_version
from rag_r1.evaluation.target import check_tokens, resolve_model, serve_model
from rag_r1.inference.vllm_server import check_options
from rag_r1.rollouts.engine_factory import TokenUnit
from rag_r1.runs.errors import RunError
from tests.fakes.json_server import JsonStub
from tests.fakes.scripted_vllm import Policy
from tests.fakes.weights import NO_TENSORS


def arguments(**changes) -> EvalArguments:
    return EvalArguments(**{"questions": [Path("q.parquet")], "out": Path("out"), "model": "m", **changes})


def folder_with(path: Path, config: str) -> Path:
    path.mkdir()
    (path / "config.json").write_text(config)
    (path / "model.safetensors").write_bytes(NO_TENSORS)
    return path


def test_the_tokenizer_of_a_served_model_is_its_own_unless_another_is_given():
    with Policy(None, {}, lambda *unused: True) as server:
        url = {"base_url": f"{server.url}/v1"}
        assert resolve_model(arguments(**url)).tokenizer == "m"
        assert resolve_model(arguments(**url, tokenizer="t")).tokenizer == "t"
        assert resolve_model(arguments(**url, engine="chat")).tokenizer is None
        with serve_model(arguments(**url)) as given:
            assert given.base_url == url["base_url"]


@pytest.mark.parametrize("engine", ["chat", "completions"])
def test_a_dead_server_is_named_with_its_address_and_the_command_that_starts_one(engine):
    with pytest.raises(RunError, match=r"no model server answers at http://127.0.0.1:9/v1.*vllm serve"):
        resolve_model(arguments(base_url="http://127.0.0.1:9/v1", engine=engine))


@pytest.mark.parametrize(
    ("longest", "limit", "context"),
    [(2048, None, 2048), (100_000, None, 12_288), (None, None, 12_288), (2048, 512, 512), (2048, 4096, 2048)],
)
def test_a_folders_context_is_as_long_as_the_episode_needs_and_the_model_can(
    tmp_path, longest, limit, context
):
    folder = folder_with(tmp_path / "model", json.dumps({"max_position_embeddings": longest}))
    args = resolve_model(arguments(model=str(folder), max_context_tokens=limit))
    assert (args.max_context_tokens, args.model, args.tokenizer) == (context, str(folder), str(folder))
    assert args.max_prompt_tokens == min(4096, context - 1)


def test_a_server_says_how_long_its_context_is_and_whether_it_has_the_model():
    with Policy(None, {}, lambda *unused: True, context=512) as server:
        args = resolve_model(arguments(model="policy", base_url=server.url))
        assert (args.max_context_tokens, args.max_prompt_tokens) == (512, 511)
        with pytest.raises(RunError, match="has no model 'other', but policy"):
            resolve_model(arguments(model="other", base_url=server.url))
        assert vllm_version(server.url, "NO_KEY") == "0.1"
        server.context = None
        assert vllm_version(server.url, "NO_KEY") is None
        assert resolve_model(arguments(model="other", base_url=server.url)).max_context_tokens == 12_288


def test_a_demo_policy_is_resolved():
    args = resolve_model(arguments(model=str(policy_path("rag_r1_mq"))))
    assert args.max_context_tokens == 2048 and args.base_url is None


@pytest.mark.parametrize("config", ["{", "[]"])
def test_a_configuration_that_cannot_be_read_is_named(tmp_path, config):
    folder = folder_with(tmp_path / "model", config)
    with pytest.raises(RunError, match="config.json cannot be read"):
        resolve_model(arguments(model=str(folder)))


def test_flags_for_the_server_that_cannot_be_split_are_named(tmp_path):
    args = arguments(model=str(policy_path("rag_r1_mq")), vllm_options="--seed '1")
    with pytest.raises(RunError, match="--vllm-options"), serve_model(resolve_model(args)):
        pass


def test_flags_that_vllm_does_not_take_are_named_beside_a_wrong_model(tmp_path, monkeypatch):
    package = tmp_path / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    (tmp_path / "vllm" / "__init__.py").touch()
    (package / "cli_args.py").write_text(
        "from argparse import ArgumentParser as FlexibleArgumentParser\n"
        "def make_arg_parser(parser):\n    parser.add_argument('--seed', type=int)\n    return parser\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    for options, fault in (("--nonsense 1", "--nonsense"), ("--seed x", "invalid int"), ("--seed 1", "")):
        with pytest.raises(RunError) as error:
            resolve_model(arguments(model=str(tmp_path / "none"), vllm_options=options))
        problems = getattr(error.value, "problems", [""])
        assert fault in problems[0] and "none" in str(error.value) and len(problems) == (2 if fault else 1)


@pytest.mark.full
def test_vllm_reads_its_flags():
    check_options(("--max-model-len", "1k", "--enforce-eager"))
    with pytest.raises(ValueError, match="unrecognized arguments: --nonsense"):
        check_options(("--nonsense", "1"))


def test_a_judge_that_its_server_does_not_have_is_named():
    with JsonStub(lambda asked: {"data": [{"id": "m"}]}) as stub:
        judge = {"judge_url": f"{stub.url}/v1", "judge_model": "j"}
        with pytest.raises(RunError, match="has no model 'j', but m: correct --judge-model"):
            check_judge(arguments(**judge))


@pytest.mark.parametrize("engine", ["chat", "completions"])
def test_servers_behind_a_proxy_are_not_asked_without_it(engine):
    """Behind a proxy a direct request fails, although the run itself would work."""
    url = "http://127.0.0.1:9/v1"
    args = arguments(base_url=url, engine=engine, judge_url=url, judge_model="j", trust_env=True)
    check_judge(args)
    assert resolve_model(args).tokenizer == (None if engine == "chat" else "m")


def test_a_model_that_is_served_here_needs_an_embedding_for_each_token(tmp_path):
    folder = shutil.copytree(policy_path("rag_r1_mq"), tmp_path / "m")
    tokens = TokenUnit.of(str(folder))
    (folder / "config.json").write_text('{"vocab_size": 7}')
    check_tokens(arguments(model=str(folder), base_url="http://127.0.0.1:9/v1"), tokens)
    with pytest.raises(RunError, match="vocab_size of 7"):
        check_tokens(arguments(model=str(folder)), tokens)
