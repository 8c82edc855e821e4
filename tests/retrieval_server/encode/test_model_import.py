from __future__ import annotations

import gc

import pytest

from retrieval_server.encode.model_import import pause_collector


@pytest.fixture(autouse=True)
def _as_it_was():
    frozen = gc.get_freeze_count()
    yield
    if not frozen:
        gc.unfreeze()


def test_the_collector_waits_during_the_first_import_of_a_library_even_if_it_fails():
    with pytest.raises(ImportError), pause_collector("no_such_library"):
        assert not gc.isenabled()
        import no_such_library  # noqa: F401
    assert gc.isenabled() and gc.get_freeze_count()


def test_a_library_that_is_there_changes_nothing():
    # Not by the number of frozen objects, which falls when one of them is freed.
    kept: list[list] = [[]]
    with pause_collector("gc"):
        assert gc.isenabled()
    assert any(item is kept for item in gc.get_objects()), "what is frozen is not listed"


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    try:
        with pause_collector("no_such_library"):
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
