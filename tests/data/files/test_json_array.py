"""An array read element by element is what `json.loads` reads at once, wherever the windows end."""

from __future__ import annotations

import io
import json
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_r1.data.files import json_array
from rag_r1.data.files.json_array import elements

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@contextmanager
def window(size: int):
    """Sets the size of the window for the time of a block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_array, "CHUNK", size)
        yield


@settings(max_examples=40)
@given(st.lists(values, max_size=6), st.integers(1, 40), st.sampled_from([None, 1]), st.booleans())
def test_every_array_is_read_as_json_reads_it(array, size, indent, ascii_only):
    text = json.dumps(array, indent=indent, ensure_ascii=ascii_only) + " \n"
    with window(size):
        assert list(elements(io.StringIO(text))) == json.loads(text)


@settings(max_examples=40)
@given(st.lists(values, max_size=4), st.integers(1, 40), st.data())
def test_a_text_that_json_refuses_is_refused_after_the_elements_before_the_fault(array, size, data):
    text = json.dumps(array)
    place = data.draw(st.integers(1, len(text) - 1))
    broken = (
        text[:place]
        + data.draw(st.sampled_from(["", "]", "}", ",", "x", '"', "[1"]))
        + (text[place + 1 :] if data.draw(st.booleans()) else "")
    )
    try:
        expected = json.loads(broken)
    except ValueError:
        expected = None
    read = []
    with window(size):
        try:
            read += elements(io.StringIO(broken))
        except ValueError as error:
            assert expected is None and str(error)
            return
    assert read == expected


@pytest.mark.parametrize(
    ("text", "read", "message"),
    [
        ('[{"a": 1}, {"a', [{"a": 1}], "Unterminated string after element 1"),
        ("[1, 2", [1, 2], "it ends after element 2"),
        ("[1 2]", [1], "expecting a comma or the end, not '2' after element 1"),
        ("[1,]", [1], "Expecting value after element 1"),
        ("[", [], "Expecting value at its beginning"),
        ("[1] [2]", [1], "there is more text after its end after element 1"),
    ],
)
def test_what_is_wrong_is_said_with_the_last_element_that_could_be_read(text, read, message):
    values = []
    with pytest.raises(ValueError) as raised:
        for value in elements(io.StringIO(text)):
            values.append(value)
    assert (values, str(raised.value)) == (read, message)


def test_numbers_that_json_writes_beyond_its_standard_and_half_characters_are_kept():
    assert str(
        list(elements(io.StringIO('[NaN, -Infinity, "\\ud800", 1e400, 123456789012345678901234567890]')))
    ) == str([float("nan"), float("-inf"), "\ud800", float("inf"), 123456789012345678901234567890])


def test_an_array_in_an_object_ends_where_it_ends():
    text = '{"Data": [1, 2], "Version": 1}'
    assert list(elements(io.StringIO(text), text.index("[") + 1, ends_text=False)) == [1, 2]


def test_a_file_of_brackets_takes_neither_the_memory_nor_the_process():
    with pytest.raises(RecursionError):
        list(elements(io.StringIO("[" * 200_000)))


def test_what_has_been_read_is_dropped_and_an_element_without_end_is_refused(monkeypatch):
    class Endless(io.StringIO):
        """A text without an end; counts what is asked for."""

        characters = 0

        def read(self, size=-1):
            self.characters += size
            return "x" * size if self.characters > size else '["' + "x" * (size - 2)

    monkeypatch.setattr(json_array, "LONGEST", 1 << 12)
    monkeypatch.setattr(json_array, "CHUNK", 1 << 8)
    text = Endless()
    with pytest.raises(ValueError, match="an element of more than 4,096 characters"):
        list(elements(text))
    assert text.characters < 1 << 15
    text_window = json_array._TextWindow(io.StringIO("[" + "1, " * 10_000 + "1]"), 1)
    for _ in range(9_000):
        assert text_window.read_value() == 1 and text_window.next_character() == ","
        text_window.position += 1
        assert len(text_window.buffer) <= 2 << 8


def test_a_long_element_of_millions_of_lists_is_refused_before_it_is_decoded_whole():
    text = io.StringIO("[1, [" + "[]," * 3_000_000 + "[]]]")
    read = elements(text)
    assert next(read) == 1
    with pytest.raises(ValueError, match="more than 500,000 values after element 1"):
        next(read)
    assert text.tell() < 3_000_000  # characters of nine million
