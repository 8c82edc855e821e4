"""Sources of settings that contradict each other are refused, and nothing is guessed."""

from __future__ import annotations

import pytest

from retrieval_server.encode.encoder import Encoder
from retrieval_server.encode.encoder_settings import find_family
from retrieval_server.encode.options import EncoderOptions
from retrieval_server.errors import UserError


def test_a_bare_folder_of_no_known_family_asks_for_its_pooling(make_bert):
    with pytest.raises(UserError, match=r"its pooling is unknown. Give --pooling cls\|mean"):
        Encoder.create(str(make_bert("own-model")), EncoderOptions())


@pytest.mark.parametrize(
    "name, folder_pooling, flag",
    [("bge-base-en-v1.5", "mean", None), ("own", "cls", "mean"), ("e5-base", None, "cls")],
)
def test_contradicting_poolings_are_refused_with_both(make_bert, name, folder_pooling, flag):
    with pytest.raises(UserError, match="contradictory") as caught:
        Encoder.create(str(make_bert(name, folder_pooling)), EncoderOptions(pooling=flag))
    assert "'cls'" in str(caught.value) and "'mean'" in str(caught.value)


def test_no_normalize_against_a_normalising_folder_is_refused(make_bert):
    with pytest.raises(UserError, match="--no-normalize"):
        Encoder.create(str(make_bert("own", "mean")), EncoderOptions(normalize=False))


@pytest.fixture
def trained(make_bert):
    """trained(text): a model's folder in which a training left these settings."""

    def make(text: str):
        folder = make_bert("own", "mean")
        (folder / "retriever.json").write_text(text)
        return folder

    return make


def test_separator_and_length_come_from_the_training_of_a_retriever_unless_a_flag_says_otherwise(trained):
    folder = trained('{"separator": " | ", "max_length": 24, "mode": "agentic"}')
    section = Encoder.create(str(folder), EncoderOptions()).section
    assert (section.separator, section.max_length, section.query_mode) == (" | ", 24, "agentic")
    section = Encoder.create(str(folder), EncoderOptions(separator="||", max_length=16)).section
    assert (section.separator, section.max_length) == ("||", 16)


@pytest.mark.parametrize(
    "text, reason",
    [
        ('{"separator": 3}', "separator: 3 is not a text"),
        ('{"mode": 1}', "mode: 1 is not a text"),
        ('{"max_length": "long"}', "max_length: 'long' is not a whole number"),
        ('{"max_length": true}', "max_length: True is not a whole number"),
        ('{"max_length": 24.0}', "max_length: 24.0 is not a whole number"),
        ('{"max_length": 0}', "max_length: 0 is not a whole number above 0"),
        ('{"max_length": -5}', "max_length: -5 is not a whole number above 0"),
        ('{"max_length": 2}', "max_length: 2 tokens leave none beside the 2"),
        ('{"max_length": 65}', "max_length: 65 tokens are more than the 64 that the model can read"),
        ('[{"max_length": 24}]', "not an object"),
        ('"max_length"', "not an object"),
        ("no json", "fetch it again"),
    ],
)
def test_settings_of_a_training_that_cannot_be_used_are_refused_with_file_and_key(trained, text, reason):
    with pytest.raises(UserError, match=f"retriever.json: .*{reason}"):
        Encoder.create(str(trained(text)), EncoderOptions())


@pytest.mark.parametrize("longest", [3, 64])
def test_the_longest_and_shortest_length_of_a_training_encode_long_and_short_texts(trained, longest):
    encoder = Encoder.create(str(trained(f'{{"max_length": {longest}}}')), EncoderOptions())
    assert encoder.section.max_length == longest
    assert encoder.encode_queries(["Ulm", "a town in a valley " * 99]).shape == (2, 32)


def test_a_flag_takes_the_place_of_a_length_that_the_model_does_not_have(trained):
    folder = trained('{"max_length": 9999}')
    assert Encoder.create(str(folder), EncoderOptions(max_length=32)).section.max_length == 32
    for length, reason in ((65, "65 tokens are more than the 64"), (2, "2 tokens leave none")):
        with pytest.raises(UserError, match=f"--max-length: {reason}"):
            Encoder.create(str(folder), EncoderOptions(max_length=length))


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
    results = find_family(name)
    assert (results.name if results else None) == family
