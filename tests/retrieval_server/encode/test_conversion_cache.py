"""A conversion is made once, used only if its files are those that were written, and published whole."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from retrieval_server.encode import conversion_cache
from retrieval_server.encode.conversion_cache import cached_conversion
from retrieval_server.errors import UserError

FILES = {"model.xml": b"a graph", "model.bin": b"numbers"}


class Convert:
    """Writes ``FILES`` and counts how often it was asked to."""

    def __init__(self, meanwhile=lambda: None):
        self.calls, self._meanwhile = 0, meanwhile

    def __call__(self, work):
        self.calls += 1
        for name, content in FILES.items():
            (work / name).write_bytes(content)
        self._meanwhile()


def refuse(work):
    pytest.fail("it is there already")


def contents(place):
    return {path.name: path.read_bytes() for path in place.iterdir() if path.name != "manifest.json"}


@pytest.fixture
def place(tmp_path):
    return tmp_path / "cache" / "a-model"


def test_it_is_made_once_and_then_used(place, caplog):
    assert cached_conversion(place, Convert()) == place
    assert contents(place) == FILES and str(place) in caplog.text
    caplog.clear()
    assert cached_conversion(place, refuse) == place
    assert caplog.text == ""


def test_others_may_read_it(place):
    assert cached_conversion(place, Convert()).stat().st_mode & 0o777 == 0o755


DAMAGES = {
    "other bytes": lambda place: (place / "model.bin").write_bytes(b"numbers"[::-1]),
    "a file gone": lambda place: (place / "model.xml").unlink(),
    "a file more": lambda place: (place / "other.xml").write_bytes(b"a graph"),
    "no manifest": lambda place: (place / "manifest.json").unlink(),
    "no json": lambda place: (place / "manifest.json").write_bytes(b"\0" * 100),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_one_that_is_damaged_is_made_again(place, caplog, damage):
    cached_conversion(place, Convert())
    DAMAGES[damage](place)
    again = Convert()
    cached_conversion(place, again)
    assert again.calls == 1 and "damaged" in caplog.text
    assert contents(place) == FILES and list(place.parent.iterdir()) == [place]
    cached_conversion(place, refuse)


def test_of_several_at_once_one_is_kept(place):
    together = Barrier(4)
    converts = [Convert(lambda: together.wait(timeout=60)) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(lambda convert: cached_conversion(place, convert), converts)) == {place}
    assert contents(place) == FILES and list(place.parent.iterdir()) == [place]
    cached_conversion(place, refuse)


def test_a_good_one_that_another_process_puts_there_meanwhile_is_used(place, tmp_path, monkeypatch):
    cached_conversion(place, Convert())
    (place / "model.bin").write_bytes(b"damaged")
    others = cached_conversion(tmp_path / "other" / "a-model", Convert())
    written = (others / "model.bin").stat().st_ino
    rename = conversion_cache.os.rename

    def another_is_faster(source, target):
        rename(source, target)
        if source == place:
            rename(others, place)

    monkeypatch.setattr(conversion_cache.os, "rename", another_is_faster)
    cached_conversion(place, Convert())
    assert (place / "model.bin").stat().st_ino == written
    assert contents(place) == FILES and list(place.parent.iterdir()) == [place]


@pytest.mark.parametrize(
    "error, reason",
    [
        (UserError("this model does not convert"), "this model does not convert"),
        (OSError(28, "No space left on device"), "a-model: .*No space left.*--encoder-cache"),
    ],
)
def test_a_conversion_that_fails_leaves_nothing(place, error, reason):
    def fail():
        raise error

    with pytest.raises(UserError, match=reason):
        cached_conversion(place, Convert(fail))
    assert list(place.parent.iterdir()) == []


def test_the_manifest_names_every_file_with_its_hash(place):
    manifest = json.loads((cached_conversion(place, Convert()) / "manifest.json").read_text())
    assert set(manifest["files"]) == set(FILES)
    assert all(set(entry) == {"bytes", "sha256"} for entry in manifest["files"].values())
