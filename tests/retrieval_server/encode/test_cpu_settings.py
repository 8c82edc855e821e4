"""How a process uses the CPU: what is set for libraries that are imported later."""

from __future__ import annotations

import os

import pytest

from retrieval_server.encode.cpu_settings import set_mkl_reproducible, set_passive_wait

VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "MKL_CBWR")


@pytest.fixture
def environment(monkeypatch):
    """Without the variables, which are as before in the end."""
    for variable in VARIABLES:
        monkeypatch.setenv(variable, "so that it is restored")
        monkeypatch.delenv(variable)
    return monkeypatch


def test_idle_threads_sleep_soon_and_products_are_reproducible(environment):
    set_passive_wait()
    set_mkl_reproducible()
    assert os.environ["GOMP_SPINCOUNT"] == "10000"
    assert os.environ["MKL_CBWR"] == "AUTO,STRICT"


@pytest.mark.parametrize("variable", VARIABLES)
def test_what_the_user_has_set_is_kept(environment, variable):
    environment.setenv(variable, "3")
    set_passive_wait()
    set_mkl_reproducible()
    assert os.environ[variable] == "3"
    assert variable != "OMP_WAIT_POLICY" or "GOMP_SPINCOUNT" not in os.environ
