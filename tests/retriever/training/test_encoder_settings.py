"""Where an encoder's settings come from, and what contradicts what."""

from __future__ import annotations

import json
import re

import pytest

from rag_r1.retriever.training.encoder_settings import (
    EncoderSettings,
    choose_settings,
    read_settings,
    settings_of_index,
)
from rag_r1.runs.errors import RunError
from tests.retriever.small_training import ENCODER as OWN

INDEX = {**OWN, "query_prefix": "query: ", "passage_prefix": "passage: ", "max_length": 256}
del INDEX["mode"]


def index(folder, **changed):
    section = {"name": "e5", "sha256": "0" * 64, "dimension": 768, **INDEX, **changed}
    (folder / "manifest.json").write_text(json.dumps({"backend": "dense", "dense": {"encoder": section}}))
    return folder


def test_options_come_before_the_index_and_that_before_the_model():
    chosen = choose_settings({"mode": "plain"}, INDEX, {}, {**OWN, "query_prefix": "own: "})
    assert (chosen.query_prefix, chosen.max_length, chosen.mode) == ("query: ", 256, "plain")
    saved = choose_settings({}, {}, {**OWN, "separator": " | ", "mode": "history"}, OWN)
    assert (saved.separator, saved.mode, saved.max_length) == (" | ", "history", 512)
    assert choose_settings({"separator": "||"}, {}, {}, OWN).separator == "||"


@pytest.mark.parametrize(
    ("options", "index_settings", "words"),
    [
        (
            {"max_length": 64, "pooling": "cls"},
            {"max_length": 256},
            "max_length is 64 .*; pooling is to be 'cls'",
        ),
        ({"query_prefix": "q: "}, INDEX, "query_prefix is 'q: ' in the options and 'query: ' in the"),
        ({"pooling": "cls"}, {}, "pooling is to be 'cls', but the model has 'mean'"),
        ({}, {**INDEX, "pooling": "cls"}, "pooling is to be 'cls', but the model has 'mean'"),
        ({}, {**INDEX, "normalize": False}, "not normalised, but a retriever is trained on cosines"),
        ({"separator": ""}, {}, "separator: String should have at least 1 character"),
    ],
)
def test_contradictions_are_refused_with_both_values(options, index_settings, words):
    with pytest.raises(RunError, match=words):
        choose_settings(options, index_settings, {}, OWN)


def test_a_refusal_says_whose_vectors_are_not_normalised():
    with pytest.raises(RunError, match=r"vectors of retriever\.json are not normalised"):
        choose_settings({}, {}, {**OWN, "normalize": False}, OWN)


@pytest.mark.parametrize("name", ["query_prefix", "separator", "mode"])
def test_a_trained_model_and_an_index_that_differ_need_an_option(name):
    saved = {**OWN, **INDEX}
    index_settings = {**saved, name: "history"}
    both = f"{name} is {saved[name]!r} in retriever.json of the model and 'history' in the index's"
    with pytest.raises(RunError, match=re.escape(both)):
        choose_settings({}, index_settings, saved, OWN)
    assert getattr(choose_settings({name: "history"}, index_settings, saved, OWN), name) == "history"
    assert getattr(choose_settings({}, index_settings, {**saved, name: "history"}, OWN), name) == "history"


def test_a_model_of_unknown_pooling_needs_an_option():
    with pytest.raises(RunError, match="give --pooling"):
        choose_settings({}, {}, {}, {**OWN, "pooling": None})


def test_the_settings_of_an_index_are_those_of_its_encoder(tmp_path):
    assert settings_of_index(index(tmp_path)) == INDEX
    assert settings_of_index(index(tmp_path, query_mode="history")) == {**INDEX, "mode": "history"}


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        ('{"backend": "bm25"}', "is not an index with an encoder: give a dense index"),
        ('{"dense": {"encoder": {}}}', "not an index with an encoder"),
        ("[]", "not an index with an encoder"),
        ("no json", "manifest.json cannot be read"),
        (None, "manifest.json cannot be read"),
    ],
)
def test_a_folder_without_an_encoder_or_a_readable_manifest_is_refused(tmp_path, manifest, words):
    if manifest is not None:
        (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(RunError, match=words):
        settings_of_index(tmp_path)


def test_the_file_beside_the_model_is_read_as_it_was_written(tmp_path):
    assert read_settings(tmp_path) is None
    settings = EncoderSettings(**OWN, trained={"rows": 3})
    settings.write(tmp_path)
    assert read_settings(tmp_path) == settings
    (tmp_path / "retriever.json").write_text('{"pooling": 3}')
    with pytest.raises(RunError, match="retriever.json cannot be read"):
        read_settings(tmp_path)
