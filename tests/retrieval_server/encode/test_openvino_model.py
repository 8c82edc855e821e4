"""The encoder in OpenVINO: how near it is to torch, what it does not depend on, and what is kept on disk."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from retrieval_server.determinism import Determinism
from retrieval_server.encode import openvino_model
from retrieval_server.encode.encoder import Encoder
from retrieval_server.encode.options import EncoderOptions, OpenVinoOptions, openvino_options
from retrieval_server.errors import UserError
from retrieval_server.folder.manifest import describe_files
from retrieval_server.indexing.builder import build_index
from retrieval_server.indexing.parts import EncodingPart, encode_part
from retrieval_server.search.index_source import IndexSource
from retrieval_server.search.options import OpenOptions

from ..builders import dense_options, parts_of
from ..running import run_python

TEXTS = ["ulm", "the river carries barges with timber", "trier is a town in the valley of the river mosel"]
OPTIONS = EncoderOptions()


@pytest.fixture(scope="module")
def openvino():
    try:
        return openvino_model._import_openvino()
    except ImportError:
        pytest.skip("left out: needs the extra `openvino`")


@pytest.fixture(scope="module")
def folder(make_bert):
    return make_bert("own-model", "mean")


@pytest.fixture(scope="module")
def cache(openvino, folder, tmp_path_factory):
    """A cache with the conversion of ``folder`` to 8 bits."""
    path = tmp_path_factory.mktemp("cache")
    create(folder, "int8", path)
    return path


@pytest.fixture(scope="module")
def in_8_bits(folder, cache):
    return create(folder, "int8", cache)


def create(folder, dtype, cache):
    return Encoder.create(str(folder), OPTIONS, "cpu", dtype, OpenVinoOptions(cache))


def conversions(cache):
    return sorted(path.name for path in cache.iterdir())


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_float32_gives_the_vectors_of_torch(openvino, make_bert, tmp_path, pooling):
    folder = make_bert("own-model", pooling)
    converted, torchs = create(folder, "float32", tmp_path), Encoder.create(str(folder), OPTIONS, "cpu")
    np.testing.assert_allclose(converted.encode_queries(TEXTS), torchs.encode_queries(TEXTS), atol=1e-5)
    np.testing.assert_allclose(converted.encode_passages(TEXTS), torchs.encode_passages(TEXTS), atol=1e-5)
    assert converted.section == torchs.section, "in floating point, the index does not say what computed it"


ENCODES_AND_IS_TOLD_TO_END = """
import gc, os, signal, sys
from pathlib import Path
from retrieval_server.encode.encoder import Encoder
from retrieval_server.encode.options import EncoderOptions, OpenVinoOptions
def encoder():
    return Encoder.create(sys.argv[1], EncoderOptions(), "cpu", "float32", OpenVinoOptions(Path(sys.argv[2])))
first = encoder()
second = encoder()
del first
gc.collect()
del second
gc.collect()
signal.signal(signal.SIGTERM, lambda *_: print("told"))
os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.slow
def test_a_signal_is_handled_after_encoders_were_given_up(openvino, folder, tmp_path):
    assert run_python(ENCODES_AND_IS_TOLD_TO_END, folder, tmp_path / "cache") == "told\n"


def test_8_bits_give_nearly_the_same_vectors_of_length_1(folder, in_8_bits):
    exact = Encoder.create(str(folder), OPTIONS, "cpu").encode_queries(TEXTS)
    results = in_8_bits.encode_queries(TEXTS)
    cosines = (results * exact).sum(axis=1)
    assert (cosines > 0.98).all() and np.abs(results - exact).max() > 1e-5
    np.testing.assert_allclose(np.linalg.norm(results, axis=1), 1, atol=1e-6)
    assert in_8_bits.section.passage_dtype == "int8"


def test_a_vector_in_8_bits_does_not_depend_on_neighbours_or_padding(in_8_bits):
    encoder = in_8_bits
    alone = np.concatenate([encoder.encode_queries([text]) for text in TEXTS])
    same_length = encoder.encode_queries([TEXTS[0], "kassel", TEXTS[0], *TEXTS])
    padded = encoder.encode_passages(TEXTS)  # to the longest of them
    # A scale over a whole batch would move them by more than 1e-3.
    np.testing.assert_allclose(same_length[3:], alone, atol=1e-5)
    np.testing.assert_allclose(padded, alone, atol=1e-5)
    if encoder.probed.guarantee is Determinism.BITS:
        np.testing.assert_array_equal(same_length[3:], alone)


def test_the_guarantee_is_that_of_openvino(folder, cache, monkeypatch):
    encoder = create(folder, "int8", cache)
    forward, sizes = openvino_model.OpenVinoTransformer.forward, []

    def other_digits_in_a_batch(self, **features):
        sizes.append(len(features["input_ids"]))
        output = forward(self, **features)
        output.last_hidden_state += 1e-3 * (len(features["input_ids"]) > 1)
        return output

    monkeypatch.setattr(openvino_model.OpenVinoTransformer, "forward", other_digits_in_a_batch)
    assert encoder.probed.guarantee is Determinism.NONE
    assert {1, 2} <= set(sizes), "alone and in a batch"


def test_a_conversion_is_made_once_and_then_read(openvino, folder, tmp_path, caplog):
    first = create(folder, "int8", tmp_path).encode_queries(TEXTS)
    assert "converting the encoder" in caplog.text
    (kept,) = conversions(tmp_path)
    written = (tmp_path / kept / "model.xml").stat()
    caplog.clear()
    again = create(folder, "int8", tmp_path)
    assert "converting" not in caplog.text and (tmp_path / kept / "model.xml").stat() == written
    np.testing.assert_array_equal(again.encode_queries(TEXTS), first)


@pytest.mark.slow
def test_another_model_or_type_is_another_conversion_but_bfloat16_shares_that_of_float32(
    openvino, make_bert, folder, tmp_path
):
    firsts, second = folder, make_bert("own-model", "mean", seed=1)
    for folder, dtype in ((firsts, "int8"), (second, "int8"), (firsts, "float32")):
        create(folder, dtype, tmp_path)
    assert len(conversions(tmp_path)) == 3
    with (
        contextlib.nullcontext()
        if "bfloat16" in openvino_model.openvino_dtypes()
        else pytest.raises(UserError, match="this processor has no such products. Take --dtype int8")
    ):
        create(firsts, "bfloat16", tmp_path)
    assert len(conversions(tmp_path)) == 3


def test_several_threads_get_the_vectors_of_their_own_texts(in_8_bits):
    texts = [[text] for text in TEXTS]
    alone = [in_8_bits.encode_queries(text) for text in texts]
    with ThreadPoolExecutor(len(TEXTS)) as threads:
        results = list(threads.map(in_8_bits.encode_queries, texts * 40))
    for vectors, expected in zip(results, alone * 40, strict=True):
        np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_a_conversion_that_openvino_does_not_load_is_named(folder, cache, tmp_path):
    shutil.copytree(cache, tmp_path, dirs_exist_ok=True)
    (kept,) = conversions(tmp_path)
    place = tmp_path / kept
    (place / "model.xml").write_text("no graph")
    (place / "manifest.json").unlink()
    files = {name: entry.model_dump() for name, entry in describe_files(place).items()}
    (place / "manifest.json").write_text(json.dumps({"files": files}))
    with pytest.raises(UserError, match=rf"(?s){kept}: OpenVINO does not load.*--runtime torch"):
        create(folder, "int8", tmp_path)


def test_a_model_without_matrices_is_not_kept_as_one_of_8_bits(openvino):
    from openvino import opset13 as ops

    parameters = ops.parameter([-1, 4])
    with pytest.raises(UserError, match="no matrix"):
        openvino_model._quantise(openvino.Model([ops.relu(parameters)], [parameters]))


def test_the_vocabulary_may_be_nested_and_a_model_without_one_is_refused():
    from transformers import CLIPConfig, PretrainedConfig

    nested = CLIPConfig(text_config={"vocab_size": 77})
    assert not hasattr(nested, "vocab_size") and openvino_model._vocabulary_size(nested) == 77
    with pytest.raises(UserError, match="vocab_size None.*--runtime torch"):
        openvino_model._vocabulary_size(PretrainedConfig())


def test_a_conversion_that_computes_something_else_is_refused_and_not_kept(
    openvino, folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(openvino_model, "_MIN_COSINE", {"int8": 1.1})
    with pytest.raises(UserError, match=r"other vectors than torch.*--runtime torch"):
        create(folder, "int8", tmp_path)
    assert conversions(tmp_path) == []


def test_an_index_says_what_passages_and_queries_were_encoded_in(folder, cache, corpus, tmp_path):
    in_8_bits = dense_options(corpus, folder, tmp_path / "int8", dtype="int8", encoder_cache=cache)
    assert "openvino" in build_index(in_8_bits).built_with
    in_32_bits = dense_options(corpus, folder, tmp_path / "float32")
    assert "openvino" not in build_index(in_32_bits).built_with
    eight, float32 = OpenOptions(device="cpu", dtype="int8", encoder_cache=cache), OpenOptions(device="cpu")
    text = json.loads(corpus.read_text(encoding="utf-8").splitlines()[0])["contents"]
    for index, options in (("int8", eight), ("int8", float32), ("float32", eight), ("float32", float32)):
        source = IndexSource.open(tmp_path / index, options=options)
        described = source.description
        assert described.passage_dtype == ("int8" if index == "int8" else None)
        assert described.query_dtype == options.dtype
        assert source.search([text], 1)[0][0].passage.contents == text


def test_without_the_extra_the_error_says_what_to_install(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(UserError, match=r'pip install "rag-r1\[openvino\]"'):
        create(folder, "int8", tmp_path)


def test_parts_in_8_bits_and_in_floating_point_are_not_mixed(folder, corpus, tmp_path):
    encoder = Encoder.create(str(folder), OPTIONS, "cpu")
    parts_of(corpus, tmp_path / "parts", encoder)
    encoder.section = encoder.section.model_copy(update={"passage_dtype": "int8"})
    with pytest.raises(UserError, match="passage_dtype None instead of 'int8'"):
        encode_part(tmp_path / "parts", EncodingPart(1, 1), encoder, progress=False)


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"dtype": "int8", "runtime": "torch"}, "drop --runtime torch"),
        ({"dtype": "float16", "runtime": "openvino"}, "not in float16"),
        ({"dtype": "int8", "device": "cuda"}, "is for the CPU"),
        ({"encoder_cache": "cache"}, "--encoder-cache is for OpenVINO"),
        ({"runtime": "openvino", "encode_threads_alone": 1}, "give --encode-threads"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, reason):
    with pytest.raises(ValueError, match=reason):
        OpenOptions(**options)


def test_8_bits_are_computed_by_openvino_and_everything_else_by_torch_unless_told_otherwise(tmp_path):
    assert openvino_options("int8", None, None, tmp_path, 3) == OpenVinoOptions(tmp_path, 3)
    assert openvino_options("float32", "openvino", "cpu", tmp_path) == OpenVinoOptions(tmp_path)
    assert all(openvino_options(dtype, None, "cuda") is None for dtype in ("float32", "bfloat16", "float16"))


def test_a_relative_cache_is_the_same_folder_in_a_process_that_runs_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = OpenOptions(dtype="int8", encoder_cache="cache")
    monkeypatch.chdir("/")
    assert options.openvino.folder == tmp_path / "cache"


def test_the_usual_cache_is_that_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert OpenVinoOptions().folder == tmp_path / "rag-r1" / "encoders"


REPORTS = """
backend_ga4 = None

class Telemetry:
    def __init__(self, **told):
        pass

    start_session = send_event = stop_session = force_shutdown = lambda self, *told: None
"""


@pytest.mark.slow
@pytest.mark.parametrize("imports, reports_by", [
    ("import openvino", "openvino_telemetry"),  # what is guarded against
    ("from retrieval_server.encode import openvino_model as m; m._import_openvino()", "telemetry_stub"),
])  # fmt: skip
def test_conversions_are_not_reported_to_anybody(openvino, tmp_path, imports, reports_by):
    package = tmp_path / "openvino_telemetry" / "backend"
    package.mkdir(parents=True)
    for place in (package.parent, package):
        (place / "__init__.py").write_text(REPORTS)
    code = f"{imports}\nfrom openvino.tools.ovc import telemetry_utils\nprint(telemetry_utils.tm.__name__)"
    written = run_python(code, PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]))
    assert written.split()[-1].rpartition(".")[2] == reports_by
