from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from retrieval_server.encode.encoding import Vectors


@given(st.lists(st.integers(0, 5), max_size=5), st.integers(0, 20), st.integers(0, 20))
def test_vectors_of_several_files_are_sliced_as_one_array(tmp_path_factory, sizes, start, stop):
    folder = tmp_path_factory.mktemp("vectors")
    whole = np.random.default_rng(0).standard_normal((sum(sizes), 3)).astype(np.float32)
    files, first = [], 0
    for number, size in enumerate(sizes):
        files.append(folder / f"{number}.f32")
        whole[first : first + size].tofile(files[-1])
        first += size
    vectors = Vectors(files, 3)
    assert len(vectors) == len(whole)
    np.testing.assert_array_equal(vectors[start:stop], whole[start:stop])
    np.testing.assert_array_equal(vectors[:], whole)
