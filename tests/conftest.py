"""Before any test imports torch: the matrix library as the retrieval server and its builds set it.

Property tests try as many examples as they say, or hypothesis' 100, however long one takes: a busy machine
is no failure. `HYPOTHESIS_PROFILE=full`, which `tests/run.sh full` sets, makes that 1,000 for those that
name no number.
"""

import os

from hypothesis import settings

from retrieval_server.processor import prefer_reproducible_products

prefer_reproducible_products()
settings.register_profile("unhurried", deadline=None)
settings.register_profile("full", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "unhurried"))
