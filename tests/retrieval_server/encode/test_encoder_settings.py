"""Sources of settings that contradict each other are refused, and nothing is guessed."""

from __future__ import annotations

import pytest

from retrieval_server.encode.encoder import Encoder
from retrieval_server.encode.encoder_settings import find_family
from retrieval_server.encode.options import EncoderOptions
from retrieval_server.errors import EncoderError


def test_a_bare_folder_of_no_known_family_asks_for_its_pooling(make_bert):
    with pytest.raises(EncoderError, match="--pooling cls|mean"):
        Encoder.create(str(make_bert("own-model")), EncoderOptions())


@pytest.mark.parametrize(
    "name, folder_pooling, flag",
    [("bge-base-en-v1.5", "mean", None), ("own", "cls", "mean"), ("e5-base", None, "cls")],
)
def test_contradicting_poolings_are_refused_with_both(make_bert, name, folder_pooling, flag):
    with pytest.raises(EncoderError, match="contradictory") as caught:
        Encoder.create(str(make_bert(name, folder_pooling)), EncoderOptions(pooling=flag))
    assert "'cls'" in str(caught.value) and "'mean'" in str(caught.value)


def test_no_normalize_against_a_normalising_folder_is_refused(make_bert):
    with pytest.raises(EncoderError, match="--no-normalize"):
        Encoder.create(str(make_bert("own", "mean")), EncoderOptions(normalize=False))


def test_separator_and_length_come_from_the_training_of_a_retriever_unless_a_flag_says_otherwise(make_bert):
    folder = make_bert("own", "mean")
    (folder / "retriever.json").write_text('{"separator": " | ", "max_length": 24, "mode": "agentic"}')
    section = Encoder.create(str(folder), EncoderOptions()).section
    assert (section.separator, section.max_length, section.query_mode) == (" | ", 24, "agentic")
    flags = EncoderOptions(separator="||", max_length=16)
    section = Encoder.create(str(folder), flags).section
    assert (section.separator, section.max_length) == ("||", 16)


@pytest.mark.parametrize(
    "text", ['{"separator": 3}', '{"max_length": "long"}', '{"max_length": true}', '{"mode": 1}', "no json"]
)
def test_settings_of_a_training_that_cannot_be_read_are_refused(make_bert, text):
    folder = make_bert("own", "mean")
    (folder / "retriever.json").write_text(text)
    with pytest.raises(EncoderError, match="retriever.json"):
        Encoder.create(str(folder), EncoderOptions())


@pytest.mark.parametrize(
    "name, family",
    [
        ("BAAI/bge-large-en-v1.5", "BGE (English)"),
        ("/models/BAAI__bge-large-en-v1.5", "BGE (English)"),
        ("intfloat/e5-base-v2", "E5"),
        ("intfloat/multilingual-e5-large", "E5"),
        ("intfloat/multilingual-e5-large-instruct", None),
        ("BAAI/bge-m3", None),
        ("BAAI/bge-large-zh-v1.5", None),
        ("minilm", None),
        ("/models/e5/checkpoint-9", None),
    ],
)
def test_families_are_known_by_the_last_part_of_the_name(name, family):
    found = find_family(name)
    assert (found.name if found else None) == family
