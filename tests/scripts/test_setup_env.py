"""scripts/setup_env.sh and the scripts that read it, as bash runs them, on a machine made of stubs.

Stubs are uname, nvidia-smi, nvcc, and the environment's Python and uv, which write down what they would
install. test_installing.py runs the real pip and uv.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # each test runs the shell scripts

ROOT = Path(__file__).resolve().parents[2]
TOOLS = (
    "bash sh env cat cksum sed grep awk head sort paste dirname readlink realpath nproc tail timeout uname wc"
).split()
SMI = """case "$*" in
  *driver_version*) [ -n "{driver}" ] && echo "{driver}" ;;
  *compute_cap*) printf '%s\\n' {capabilities} ;;
  *) echo "GPU 0: Stub" ;;
esac"""

# pip cannot get uv here, and finds no version of torch by itself.
PYTHON = """case "$*" in
  -c*) ;;
  *uv_like_pip.py*) shift; exec "$@" ;;
  "-m pip install"*uv.lock.txt) exit 1 ;;
  "-m pip install"*) echo "$@" "cuda=$CUDA_HOME archs=$FLASH_ATTN_CUDA_ARCHS jobs=$MAX_JOBS" >> {log} ;;
  "-m pip"*) ;;
  *) echo "python $* platform=$VERL_PLATFORM" ;;
esac"""
UV = """case "$*" in
  --version) echo "uv {version}" ;;
  "pip compile"*) echo "torch=={torch}" ;;
  *) echo "uv $@" >> {log} ;;
esac"""


class Machine:
    """A copy of the project's scripts, a PATH of stubs and basic tools, and what pip was told to install."""

    def __init__(self, folder: Path):
        self.folder, self.bin, self.venv = folder, folder / "bin", folder / "venv"
        self.log = folder / "pip.log"
        for path in (self.bin, self.venv / "bin", folder / "recipes" / "r1_searcher"):
            path.mkdir(parents=True)
        for name in ("scripts", "requirements"):
            shutil.copytree(ROOT / name, folder / name)
        for name in ("pyproject.toml", "train_grpo.sh", "recipes/r1_searcher/run.sh"):
            shutil.copy(ROOT / name, folder / name)
        for tool in TOOLS:
            if program := shutil.which(tool):
                (self.bin / tool).symlink_to(program)
        self.program("c++", "exit 0")
        self.program("rag-r1", 'echo "rag-r1 $* platform=$VERL_PLATFORM"', self.venv / "bin")
        self.program("python", PYTHON.format(log=self.log), self.venv / "bin")

    def program(self, name: str, text: str, folder: Path | None = None) -> Path:
        path = (folder or self.bin) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # it may be a link to the machine's own program
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    def gpu(self, driver: str = "580.65.06", capabilities: str = "9.0") -> Machine:
        self.program("nvidia-smi", SMI.format(driver=driver, capabilities=capabilities))
        return self

    def nvcc(self, release: str, folder: str = "bin") -> Machine:
        version = f'echo "Cuda compilation tools, release {release}, V{release}.1"'
        self.program("nvcc", version, self.folder / folder)
        return self

    def uv(self, torch: str) -> Machine:
        version = (ROOT / "requirements" / "uv.lock.txt").read_text().rpartition("==")[2].strip()
        self.program("uv", UV.format(version=version, torch=torch, log=self.log), self.venv / "bin")
        return self

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", *command],
            cwd=self.folder,
            env={"PATH": str(self.bin), "HOME": str(self.folder), "VENV": str(self.venv), **variables},
            capture_output=True,
            text=True,
            timeout=60,
        )

    def installed(self) -> list[str]:
        """What pip and uv were told to install so far."""
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def gpu_machine(machine: Machine) -> Machine:
    return machine.gpu().nvcc("13.0")


OWN = {"MODEL": "m", "DATA": "d", "RETRIEVER_URL": "http://10.0.0.1:8000"}


@pytest.mark.parametrize("script", ["train_grpo.sh", "recipes/r1_searcher/run.sh"])
def test_another_first_override_installs_nothing_anew(gpu_machine: Machine, script: str):
    first = gpu_machine.run(script, "a=1", **OWN)
    assert first.returncode == 0, first.stderr
    calls = gpu_machine.installed()
    assert calls and not any("dev.lock" in call for call in calls), "an override asks for no test tools"
    second = gpu_machine.run(script, "b=2", "c=3", **OWN)
    assert second.returncode == 0 and gpu_machine.installed() == calls
    assert "b=2 c=3" in second.stdout


def test_a_script_of_ones_own_that_reads_it_without_arguments_installs_nothing_anew(gpu_machine: Machine):
    script = gpu_machine.folder / "own.sh"
    script.write_text('set -euo pipefail\nsource scripts/setup_env.sh\necho "$@"\n')
    calls = []
    for argument in ("a=1", "b=2"):
        done = gpu_machine.run("own.sh", argument)
        assert done.returncode == 0 and done.stdout == f"{argument}\n"
        calls.append(gpu_machine.installed())
    assert calls[0] == calls[1] != []


def test_dev_adds_the_tools_for_tests_and_serves_runs_as_well(machine: Machine):
    assert machine.run("scripts/setup_env.sh", "--dev").returncode == 0
    calls = machine.installed()
    assert any("dev.lock.txt" in call for call in calls) and any("cpu.lock.txt" in call for call in calls)
    assert machine.run("scripts/setup_env.sh").returncode == 0 and machine.installed() == calls


def test_a_word_that_it_does_not_know_is_refused(machine: Machine):
    done = machine.run("scripts/setup_env.sh", "--devv")
    assert done.returncode == 2 and "--devv" in done.stderr and not machine.installed()


@pytest.mark.parametrize(
    "system", ["Darwin arm64", "Linux aarch64", "MINGW64_NT-10.0 x86_64", "FreeBSD amd64"]
)
def test_another_system_is_refused_in_one_sentence(machine: Machine, system: str):
    machine.program("uname", f'echo "{system}"')
    done = machine.run("scripts/setup_env.sh")
    assert done.returncode == 1 and not machine.installed()
    assert done.stderr == (
        f"setup: error: RAG-R1 installs on Linux x86-64, and this is {system}: use such a machine, a"
        " linux/amd64 container or WSL 2\n"
    )


@pytest.mark.parametrize("libc", ["echo glibc 2.28", "echo undefined", "exit 1"])
def test_a_c_library_without_wheels_is_refused_in_one_sentence(machine: Machine, libc: str):
    machine.program("getconf", libc)
    done = machine.run("scripts/setup_env.sh")
    assert done.returncode == 1 and not machine.installed()
    assert len(done.stderr.splitlines()) == 1 and "need glibc 2.31 or newer" in done.stderr


def test_a_c_library_that_is_new_enough_is_accepted(machine: Machine):
    for libc in ("glibc 2.31", "glibc 2.40", "glibc 3.0"):
        machine.program("getconf", f"echo {libc}")
        assert machine.run("scripts/setup_env.sh").returncode == 0
        (machine.venv / ".rag-r1").unlink()


def python_of(version: str, implementation: str = "cpython") -> str:
    """A program that judges a condition on `sys` as a Python of another version would."""
    code = f"""
import sys, types
fake = types.SimpleNamespace(
    version_info=({version.replace(".", ", ")}, 0, "final", 0),
    implementation=types.SimpleNamespace(name="{implementation}"), exit=sys.exit)
condition = sys.argv[1].removeprefix("import sys; ")
exec(condition, {{"sys": fake}})
"""
    return (
        f'if [ "$1" = --version ]; then echo "Python {version}.0"; exit; fi\n'
        f"exec {sys.executable} -c '{code}' \"$2\""
    )


@pytest.mark.parametrize(
    ("version", "implementation"), [("3.10", "cpython"), ("3.13", "cpython"), ("3.11", "pypy")]
)
def test_another_python_is_refused_in_one_sentence(machine: Machine, version: str, implementation: str):
    shutil.rmtree(machine.venv)
    for name in ("python3", "python3.11", "python3.12"):
        machine.program(name, python_of(version, implementation))
    done = machine.run("scripts/setup_env.sh")
    assert done.returncode == 1 and not machine.venv.exists()
    assert done.stderr == (
        "setup: error: RAG-R1 needs Python 3.11 or 3.12, and none was found (tried: python3.11 python3.12"
        " python3): install python3.11 and its venv module, or name one, PYTHON=<path>\n"
    )


@pytest.mark.parametrize("version", ["3.11", "3.12"])
def test_the_first_python_that_fits_makes_the_environment(machine: Machine, version: str):
    shutil.rmtree(machine.venv)
    machine.program("python3.11", "exit 127")  # as a shim of a version that is not chosen
    makes_venv = f'if [ "$1 $2" = "-m venv" ]; then echo "made by {version}"; exit 1; fi\n'
    machine.program("python3.12", makes_venv + python_of("3.12") if version == "3.12" else "exit 127")
    machine.program("python3", makes_venv + python_of(version))
    done = machine.run("scripts/setup_env.sh")
    assert f"made by {version}" in done.stdout and f"with Python {version}.0" in done.stderr
    assert "apt install python3-venv" in done.stderr


def test_an_environment_of_another_python_is_refused_in_one_sentence(machine: Machine):
    machine.program("python", python_of("3.13"), machine.venv / "bin")
    done = machine.run("scripts/setup_env.sh")
    assert done.returncode == 1 and not machine.installed()
    assert done.stderr == (
        f"setup: error: RAG-R1 needs Python 3.11 or 3.12, and the environment {machine.venv} has Python"
        " 3.13.0: remove it, or name another folder, VENV=<folder>\n"
    )


def test_the_gpu_list_is_installed_by_uv_where_it_answers_and_flash_attn_by_pip(gpu_machine: Machine):
    gpu_machine.uv("2.11.0")
    assert gpu_machine.run("scripts/setup_env.sh").returncode == 0
    lock, ours, flash = gpu_machine.installed()
    assert lock.startswith("uv pip install ") and "--no-deps" in lock
    assert "gpu.lock.txt torch==2.11.0" in lock and "cuda-torch" not in lock
    assert ours.startswith("uv pip install ") and f"-e {gpu_machine.folder}" in ours
    assert flash.startswith("-m pip install ") and "flash-attn==2.8.3" in flash


def test_the_demo_on_a_gpu_machine_stays_on_the_cpu(gpu_machine: Machine):
    done = gpu_machine.run("train_grpo.sh", DEMO="1")
    assert done.returncode == 0, done.stderr
    assert "rag_r1.demo.run --recipe grpo platform=cpu" in done.stdout
    assert all("flash-attn" not in call for call in gpu_machine.installed())


def test_a_gpu_training_leaves_the_platform_to_verl(gpu_machine: Machine):
    done = gpu_machine.run("train_grpo.sh", **OWN, VERL_PLATFORM="cpu")
    assert done.stdout.splitlines()[-1].endswith(" platform="), "cpu was left over from a demo in this shell"


def test_flash_attn_is_compiled_last_and_by_itself_for_the_gpus_that_are_there(machine: Machine):
    machine.gpu(capabilities="8.9 9.0 9.0").nvcc("13.1", "toolkit/bin")
    done = machine.run("scripts/setup_env.sh", CUDA_HOME=str(machine.folder / "toolkit"))
    assert done.returncode == 0, done.stderr
    lock, ours, flash = machine.installed()
    assert "--no-deps -r" in lock and "gpu.lock.txt" in lock and "flash-attn" not in lock
    assert f"-e {machine.folder}" in ours
    assert "--no-deps --no-build-isolation flash-attn==2.8.3" in flash
    assert f"cuda={machine.folder}/toolkit archs=80;90 jobs=" in flash
    assert int(flash.rpartition("jobs=")[2]) >= 1


def test_what_is_set_for_compiling_is_kept(gpu_machine: Machine):
    gpu_machine.run("scripts/setup_env.sh", FLASH_ATTN_CUDA_ARCHS="120", MAX_JOBS="3")
    assert "archs=120 jobs=3" in gpu_machine.installed()[-1]


def test_a_wheel_made_elsewhere_needs_no_compiler(machine: Machine):
    machine.gpu()
    done = machine.run("scripts/setup_env.sh", FLASH_ATTN_WHEEL="/wheels/flash_attn.whl")
    assert done.returncode == 0, done.stderr
    assert "--no-deps /wheels/flash_attn.whl" in machine.installed()[-1]


def test_a_gpu_environment_may_do_without_flash_attn(machine: Machine):
    machine.gpu()
    done = machine.run("scripts/setup_env.sh", FLASH_ATTN_WHEEL="none")
    assert done.returncode == 0 and "platform=gpu_sdpa" in done.stderr, done.stderr
    calls = machine.installed()
    assert len(calls) == 2 and all("flash-attn" not in call for call in calls)


@pytest.mark.parametrize(
    ("driver", "release", "said", "remedy"),
    [
        ("570.86.10", "13.0", "the NVIDIA driver is 570.86.10, but CUDA 13", "install a newer driver"),
        ("580.65.06", None, "no nvcc was found", "FLASH_ATTN_WHEEL="),
        ("580.65.06", "12.8", "is of CUDA 12.8", "set CUDA_HOME"),
    ],
)
def test_a_machine_that_cannot_do_it_is_told_so_before_anything_is_downloaded(
    machine: Machine, driver: str, release: str | None, said: str, remedy: str
):
    machine.gpu(driver)
    if release:
        machine.nvcc(release)
    done = machine.run("scripts/setup_env.sh", CUDA_HOME="" if release else "/nowhere")
    assert done.returncode == 1 and said in done.stderr and remedy in done.stderr
    assert not machine.installed() and not (machine.venv / ".rag-r1").exists()


def test_an_old_driver_with_nvidias_compatibility_package_may_be_let_pass(machine: Machine):
    machine.gpu("550.54.15").nvcc("13.0")
    assert machine.run("scripts/setup_env.sh", RAG_R1_OLD_DRIVER="1").returncode == 0


def test_gpus_before_ampere_are_refused_before_anything_is_downloaded(machine: Machine):
    machine.gpu(capabilities="7.5").nvcc("13.0")
    done = machine.run("scripts/setup_env.sh")
    assert done.returncode == 1 and "Ampere" in done.stderr and not machine.installed()


def test_a_failure_of_flash_attn_leaves_what_came_before_and_is_tried_again(gpu_machine: Machine):
    python = gpu_machine.venv / "bin" / "python"
    whole = python.read_text()
    python.write_text(whole + 'case "$*" in *flash-attn*) echo "ERROR: nvcc failed"; exit 1 ;; esac\n')
    done = gpu_machine.run("scripts/setup_env.sh")
    assert done.returncode == 1 and "ERROR: nvcc failed" in done.stderr
    assert len(gpu_machine.installed()) == 3
    python.write_text(whole)
    assert gpu_machine.run("scripts/setup_env.sh").returncode == 0
    assert "flash-attn" in gpu_machine.installed()[-1]


def test_after_a_failed_change_the_former_environment_is_installed_anew(machine: Machine):
    assert machine.run("scripts/setup_env.sh").returncode == 0
    python = machine.venv / "bin" / "python"
    whole = python.read_text()
    python.write_text(whole + 'case "$*" in *"-e "*) exit 1 ;; esac\n')
    assert machine.run("scripts/setup_env.sh", "--dev").returncode == 1
    python.write_text(whole)
    calls = machine.installed()
    assert machine.run("scripts/setup_env.sh").returncode == 0 and len(machine.installed()) > len(calls)


SCRIPTS = sorted(ROOT.glob("*.sh"))
for name in ("docs", "recipes", "scripts", "tests"):
    SCRIPTS += sorted((ROOT / name).rglob("*.sh"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_bash_reads_every_script(script: Path):
    assert subprocess.run(["bash", "-n", str(script)], env=dict(os.environ)).returncode == 0
