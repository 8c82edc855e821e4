"""Pooling, prefixes and normalisation against a computation by hand with transformers alone."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer, PreTrainedModel

from retrieval_server.determinism import Determinism
from retrieval_server.encode.encoder import BUCKET, Encoder
from retrieval_server.encode.model_folder import hash_model
from retrieval_server.encode.options import EncoderOptions
from retrieval_server.errors import UserError

TEXTS = ["ulm", "the river carries barges with timber", "trier is a town in the valley of the river mosel"]
BGE = "Represent this sentence for searching relevant passages: "


def by_hand(folder, texts, pooling, normalize=True):
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    rows = []
    for text in texts:  # one by one: no padding, so nothing to mask
        with torch.no_grad():
            states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        rows.append(states[0] if pooling == "cls" else states.mean(dim=0))
    vectors = torch.stack(rows)
    return (torch.nn.functional.normalize(vectors, dim=-1) if normalize else vectors).numpy()


@pytest.mark.parametrize("configured", [False, True], ids=["bare folder", "sentence-transformers folder"])
@pytest.mark.parametrize(
    "name, pooling, query_prefix, passage_prefix",
    [("bge-small-en-v1.5", "cls", BGE, ""), ("e5-small-v2", "mean", "query: ", "passage: ")],
)
def test_families_are_pooled_and_prefixed_as_published(
    make_bert, configured, name, pooling, query_prefix, passage_prefix
):
    folder = make_bert(name, pooling if configured else None)
    encoder = Encoder.create(str(folder), EncoderOptions(), device="cpu")
    section = encoder.section
    assert section.pooling == pooling and section.normalize and section.dimension == 32
    queries = by_hand(folder, [query_prefix + text for text in TEXTS], pooling)
    passages = by_hand(folder, [passage_prefix + text for text in TEXTS], pooling)
    np.testing.assert_allclose(encoder.encode_queries(TEXTS), queries, atol=1e-5)
    np.testing.assert_allclose(encoder.encode_passages(TEXTS), passages, atol=1e-5)
    other = by_hand(folder, [query_prefix + text for text in TEXTS], "mean" if pooling == "cls" else "cls")
    assert np.abs(queries - other).max() > 0.05  # the check above can tell the two apart


def test_a_generic_folder_uses_its_own_pooling_and_no_prefix(make_bert):
    folder = make_bert("own-model", "cls")
    encoder = Encoder.create(str(folder), EncoderOptions(), device="cpu")
    np.testing.assert_allclose(encoder.encode_queries(TEXTS), by_hand(folder, TEXTS, "cls"), atol=1e-5)
    np.testing.assert_allclose(encoder.encode_queries(TEXTS), encoder.encode_passages(TEXTS), atol=1e-6)


def test_prompts_in_a_folder_are_its_prefixes_and_are_applied_once(make_bert):
    folder = make_bert("own-model", "mean")
    prompts = {"query": "query: ", "document": "passage: "}
    (folder / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": prompts, "default_prompt_name": "document"})
    )
    encoder = Encoder.create(str(folder), EncoderOptions(), device="cpu")
    expected = by_hand(folder, ["query: " + text for text in TEXTS], "mean")
    np.testing.assert_allclose(encoder.encode_queries(TEXTS), expected, atol=1e-5)


@pytest.mark.parametrize("query, passage", [("q: ", "p: "), ("", "")])
def test_prefixes_of_a_trained_retriever_are_those_of_its_training_whatever_its_name(
    make_bert, query, passage
):
    folder = make_bert("e5-base-v2-mine", "mean")
    prompts = {"prompts": {"query": query, "document": passage}}  # as sentence-transformers saves them
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    (folder / "retriever.json").write_text('{"mode": "agentic"}')
    section = Encoder.create(str(folder), EncoderOptions(), device="cpu").section
    assert (section.query_prefix, section.passage_prefix) == (query, passage)


def test_prompts_in_the_folder_of_a_family_take_the_place_of_the_familys_prefixes(make_bert):
    folder = make_bert("e5-base-v2-mine", "mean")
    prompts = {"prompts": {"query": "q: ", "document": ""}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    section = Encoder.create(str(folder), EncoderOptions(), device="cpu").section
    assert (section.query_prefix, section.passage_prefix) == ("q: ", "")


def test_flags_settle_a_bare_folder(make_bert):
    folder = make_bert("own-model")
    options = EncoderOptions(
        pooling="mean", query_prefix="q ", passage_prefix="p ", normalize=False, separator=" | ", max_length=8
    )
    encoder = Encoder.create(str(folder), options, device="cpu")
    np.testing.assert_allclose(
        encoder.encode_queries(["ulm"]), by_hand(folder, ["q ulm"], "mean", normalize=False), atol=1e-5
    )
    assert (encoder.section.separator, encoder.section.max_length) == (" | ", 8)
    long = "river " * 30
    np.testing.assert_allclose(
        encoder.encode_passages([long]), encoder.encode_passages([long + "town"]), atol=1e-6
    )


def test_another_model_than_the_indexs_is_refused_with_both_hashes(make_bert):
    built, other = make_bert("own", "cls"), make_bert("own", "cls", seed=1)
    section = Encoder.create(str(built), EncoderOptions(), device="cpu").section
    with pytest.raises(UserError, match="--encoder") as caught:
        Encoder.open(section, override=str(other))
    assert hash_model(built) in str(caught.value) and hash_model(other) in str(caught.value)


def test_a_query_is_padded_by_its_own_length_and_not_by_its_neighbours(tiny_bge, monkeypatch):
    encoder = Encoder.create(str(tiny_bge), EncoderOptions(), device="cpu")
    texts = ["ulm", "ulm " * 30, "the river", "ulm " * 200, "celle"]
    shapes, forward = [], encoder._model.forward

    def noted(features, **options):
        shapes.append(tuple(features["input_ids"].shape))
        return forward(features, **options)

    monkeypatch.setattr(encoder._model, "forward", noted)
    together = encoder.encode_queries(texts)
    assert all(length % BUCKET == 0 for _, length in shapes) and sum(rows for rows, _ in shapes) == 5
    assert len(shapes) == 3 and max(length for _, length in shapes) == encoder.section.max_length
    shapes.clear()
    alone = np.concatenate([encoder.encode_queries([text]) for text in texts])
    np.testing.assert_allclose(together, alone, atol=1e-6)
    if encoder.probed.guarantee is Determinism.BITS:
        assert np.array_equal(together, alone)
    np.testing.assert_allclose(
        together, encoder.encode_passages([encoder.section.query_prefix + text for text in texts]), atol=1e-6
    )
    assert encoder.encode_queries([]).shape == (0, encoder.section.dimension)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bit_models_give_normalised_float32_vectors_near_those_of_32_bits(make_bert, dtype):
    folder = str(make_bert("own", "mean"))
    exact, rough = (Encoder.create(folder, EncoderOptions(), "cpu", d) for d in ("float32", dtype))
    for expected_vectors, other in (
        (exact.encode_queries(TEXTS), rough.encode_queries(TEXTS)),
        (exact.encode_passages(TEXTS), rough.encode_passages(TEXTS)),
    ):
        assert other.dtype == np.float32 and 1e-6 < np.abs(expected_vectors - other).max()
        np.testing.assert_allclose(expected_vectors, other, atol=0.03)
        np.testing.assert_allclose(np.linalg.norm(other, axis=1), 1, atol=1e-6)
    assert rough.section == exact.section, "an index of either answers to both"


@pytest.mark.slow
def test_models_that_threads_load_at_once_leave_the_library_as_it_was(make_bert, monkeypatch):
    """transformers replaces a method while it loads; two loads in turn put back each other's replacement."""
    folder = make_bert("own-model", "mean")
    Encoder.create(str(folder), EncoderOptions(), "cpu")  # the libraries are imported
    tie, initialise = PreTrainedModel.tie_weights, PreTrainedModel.__init__
    both = threading.Barrier(2)

    def waiting(self, *args, **kwargs):
        try:
            both.wait(timeout=1)  # passed only if another thread is as far: both have then replaced it
        except threading.BrokenBarrierError:
            pass
        initialise(self, *args, **kwargs)

    monkeypatch.setattr(PreTrainedModel, "__init__", waiting)
    try:
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(lambda _: Encoder.create(str(folder), EncoderOptions(), "cpu"), range(2)))
        assert PreTrainedModel.tie_weights is tie
    finally:
        PreTrainedModel.tie_weights = tie
