"""A model's folder is data: no code of it is run, and nobody is asked whether it may be."""

from __future__ import annotations

import ast
import json
import re
import shutil
from functools import cache
from pathlib import Path

import pytest

from rag_r1.demo.policy import policy_path
from rag_r1.rollouts.engine_factory import TokenUnit
from rag_r1.runs.errors import RunError

ROOT = Path(__file__).parents[2]
#: Calls that load a model or a part of one, and by which keyword they say that they run nothing of it.
LOADS = {
    "from_pretrained": "trust_remote_code",
    "SentenceTransformer": "trust_remote_code",
    "CrossEncoder": "trust_remote_code",
    "hf_tokenizer": "trust_remote_code",
    "hf_processor": "trust_remote_code",
}
#: Only modules with one of these words are parsed: `LOADS`, and the calls that may unpickle.
WORDS = re.compile("|".join((*LOADS, r"\bloads?\b")))
#: Keywords that are passed on as a mapping.
MAPPINGS = ("_ONLY_DATA", "only_data")


@cache
def loads(folder: str) -> list[tuple[str, ast.Call, str]]:
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if WORDS.search(text) else ():
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                found.append((f"{path.relative_to(ROOT)}:{node.lineno}", node, name))
    return found


def is_said(call: ast.Call, keyword: str) -> bool:
    if not call.args:  # the options of something of ours
        return True
    return any(
        word.arg == keyword or (word.arg is None and getattr(word.value, "id", "") in MAPPINGS)
        for word in call.keywords
    )


@pytest.mark.parametrize("folder", ["rag_r1", "retrieval_server", "data_process"])
def test_every_load_of_a_model_says_that_it_runs_nothing_of_it(folder):
    silent = [
        place for place, call, name in loads(folder) if name in LOADS and not is_said(call, LOADS[name])
    ]
    assert silent == []


@pytest.mark.parametrize("folder", ["rag_r1", "retrieval_server", "data_process"])
def test_nothing_is_unpickled_but_tensors(folder):
    wrong = []
    for place, call, name in loads(folder):
        module = getattr(getattr(call.func, "value", None), "id", "")
        given = {word.arg: getattr(word.value, "value", None) for word in call.keywords}
        if module == "torch" and name == "load" and given.get("weights_only") is not True:
            wrong.append(place)
        if module in ("pickle", "joblib", "dill", "cloudpickle") and name in ("load", "loads"):
            wrong.append(place)
        if module in ("np", "numpy") and name == "load" and given.get("allow_pickle") is not False:
            wrong.append(place)
    assert wrong == []


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A model's folder with code beside it; whoever is asked says yes, and nobody is asked."""
    folder = tmp_path / "model"
    shutil.copytree(policy_path("rag_r1_mq"), folder)
    mine = "from pathlib import Path\nPath(__file__).with_name('was here').touch()\n"
    (folder / "mine.py").write_text(f"{mine}class Mine: pass\n")
    asked: list[object] = []
    monkeypatch.setattr("builtins.input", lambda *words: asked.append(words) or "y")
    yield folder
    assert not asked and not list(tmp_path.rglob("was here"))


def tell(path: Path, **more: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **more}))


@pytest.mark.slow  # imports transformers
def test_a_tokenizer_with_code_of_its_own_is_refused(folder):
    tell(
        folder / "tokenizer_config.json",
        tokenizer_class="Mine",
        auto_map={"AutoTokenizer": ["mine.Mine", None]},
    )
    with pytest.raises(RunError, match="cannot be loaded: ValueError: it needs code of its own"):
        TokenUnit.of(str(folder))


@pytest.mark.slow
def test_code_of_a_model_is_not_run_for_its_tokenizer(folder):
    tell(
        folder / "config.json",
        model_type="mine",
        auto_map={"AutoConfig": "mine.Mine", "AutoTokenizer": "mine.Mine"},
    )
    (folder / "tokenizer_config.json").unlink()
    TokenUnit.of(str(folder))
