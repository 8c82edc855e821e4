from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from retrieval_server.engine.cache import LRUCache


def test_the_least_recently_used_goes_first_and_hits_are_counted():
    cache = LRUCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert (cache.get("b"), cache.get("a"), cache.get("c")) == (None, 1, 3)
    assert (cache.hits, cache.misses, len(cache)) == (3, 1, 2)


def test_a_cache_of_size_0_remembers_nothing():
    cache = LRUCache(0)
    cache.put("a", 1)
    assert cache.get("a") is None and len(cache) == 0


@given(size=st.integers(0, 4), keys=st.lists(st.integers(0, 6), max_size=40))
def test_it_holds_the_last_distinct_keys(size, keys):
    cache = LRUCache(size)
    for key in keys:
        cache.put(key, str(key))
    last = list(dict.fromkeys(reversed(keys)))[:size]
    assert {key for key in range(7) if cache.get(key) == str(key)} == set(last)
