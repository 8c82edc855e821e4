"""An index folder and the model that it names are data: whatever they hold, none of it is run."""

from __future__ import annotations

import json
import os
import pickle
import shutil

import pytest

from retrieval_server.encode.encoder import Encoder
from retrieval_server.encode.model_folder import hash_model
from retrieval_server.encode.options import EncoderOptions
from retrieval_server.errors import UserError
from retrieval_server.search.index_source import IndexSource

from ..builders import edit_json


class Canary:
    """An object whose unpickling leaves a file behind."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.fixture
def canary(tmp_path):
    """A path that nothing may make; the last look at it is after the test."""
    path = tmp_path / "canary"
    yield path
    assert not path.exists(), "something was run"


def plant(folder, canary):
    """Code wherever some version of some library would look for it."""
    code = f"import os\nos.mkdir({str(canary)!r})\nclass Own: pass\n"
    for name in ("evil", "modeling_evil", "tokenization_evil", "configuration_evil", "__init__", "setup"):
        (folder / f"{name}.py").write_text(code)


def own_class(folder, canary):
    edit_json(folder / "modules.json", lambda modules: modules[0].update(type="evil.Own"))


def installed_class(folder, canary):
    """A class of a package that happens to be there: importing it runs its module."""
    edit_json(folder / "modules.json", lambda modules: modules[0].update(type="antigravity.Own"))


def module_elsewhere(folder, canary):
    edit_json(folder / "modules.json", lambda modules: modules[1].update(path="../elsewhere"))


def modules_of_another_shape(folder, canary):
    (folder / "modules.json").write_text('{"type": "evil.Own"}')


def auto_map(folder, canary):
    names = {"AutoConfig": "configuration_evil.Own", "AutoModel": "modeling_evil.Own"}
    edit_json(folder / "config.json", lambda config: config.update(auto_map=names, model_type="evil"))
    tokenizer = {"auto_map": {"AutoTokenizer": ["tokenization_evil.Own", None]}}
    edit_json(folder / "tokenizer_config.json", lambda config: config.update(tokenizer))


def asks_for_trust(folder, canary):
    auto_map(folder, canary)
    trust = {"trust_remote_code": True}
    settings = {"model_args": trust, "config_args": trust, "tokenizer_args": trust, "model_kwargs": trust}
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings))


def pickled_weights(folder, canary):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Canary(canary)))


SENTENCE_TRANSFORMERS = [own_class, installed_class, module_elsewhere, modules_of_another_shape]
ANY = [auto_map, asks_for_trust, pickled_weights]


@pytest.fixture
def hostile(tmp_path, make_bert, canary):
    """hostile(way, pooling): a model's folder that was spoilt that way."""

    def make(way, pooling):
        folder = shutil.copytree(make_bert("bge-small-en-v1.5", pooling), tmp_path / "bge-small-en-v1.5")
        plant(folder, canary)
        way(folder, canary)
        return folder

    return make


@pytest.mark.parametrize(
    "way, pooling", [(way, "cls") for way in SENTENCE_TRANSFORMERS + ANY] + [(way, None) for way in ANY]
)
def test_a_model_that_brings_code_is_refused_and_none_of_it_runs(hostile, way, pooling, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # whoever is asked on the terminal says yes
    folder = hostile(way, pooling)
    with pytest.raises(UserError):
        Encoder.create(str(folder), EncoderOptions(), "cpu")


@pytest.mark.parametrize("way, message", [
    (own_class, "names the class 'evil.Own'"),
    (installed_class, "names the class 'antigravity.Own'"),
    (module_elsewhere, "lies outside the model's folder"),
    (modules_of_another_shape, "not a list of modules"),
])  # fmt: skip
def test_a_model_is_refused_before_a_library_has_seen_it(hostile, way, message, monkeypatch):
    monkeypatch.setattr("retrieval_server.encode.encoder._load", lambda *_, **__: pytest.fail("loaded"))
    with pytest.raises(UserError, match=message):
        Encoder.create(str(hostile(way, "cls")), EncoderOptions(), "cpu")


@pytest.mark.parametrize("way", [own_class, asks_for_trust, pickled_weights])
def test_an_index_that_names_such_a_model_is_refused_and_nothing_runs(
    dense_index, hostile, tmp_path, way, canary, monkeypatch
):
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    index, model = shutil.copytree(dense_index, tmp_path / "index"), hostile(way, "cls")
    plant(index, canary)
    identity = {"name": str(model), "sha256": hash_model(model)}  # the folder says that this is right
    edit_json(index / "manifest.json", lambda data: data["dense"]["encoder"].update(identity))
    with pytest.raises(UserError):
        IndexSource.open(index, device="cpu")


def test_pickled_arrays_in_an_index_are_not_unpickled(bm25_index, tmp_path, canary):
    index = shutil.copytree(bm25_index, tmp_path / "index")
    plant(index, canary)
    files = sorted((index / "bm25").glob("*.npy"))
    assert files
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
    header += b" " * (63 - (10 + len(header)) % 64) + b"\n"
    for path in files:
        pickled = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
        path.write_bytes(pickled + pickle.dumps([Canary(canary)]))
    with pytest.raises(UserError):
        IndexSource.open(index, verify=False)


@pytest.mark.slow
def test_the_server_says_which_encoder_it_is_about_to_load(dense_index, tiny_bge, start_server, capfd):
    with start_server("--index", dense_index, "--device", "cpu"):
        pass
    written = capfd.readouterr().out
    line = f"20 passages, dense, encoder {tiny_bge}\n"
    assert line in written and written.index(line) < written.index("serving on")
