"""scripts/install.sh with the real pip and uv, environments of its own, and indexes with a few small wheels.

The indexes are stubs (stub_index.py), PyTorch's own among them: uv asks for the address that it has built
in, and a proxy answers. Scripts, pip and uv are real.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.scripts.stub_index import StubIndex, wheel

ROOT = Path(__file__).resolve().parents[2]
UV = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))

pytestmark = [
    pytest.mark.slow,  # each test installs a few packages
    pytest.mark.skipif(UV is None, reason="uv is not installed: bash scripts/setup_env.sh --dev"),
]

LARGER = (
    "the CUDA build of the Python Package Index is taken: 3.4 GB to download and 7.5 GB on disk, instead of"
)
METADATA = "Metadata-Version: 2.1\nName: rag-r1\nVersion: 0.1.0\n"
BACKEND = f"""
import zipfile

def build_editable(folder, config_settings=None, metadata_directory=None):
    with zipfile.ZipFile(folder + "/rag_r1-0.1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("rag_r1-0.1.0.dist-info/METADATA", {METADATA!r})
        wheel.writestr("rag_r1-0.1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
        wheel.writestr("rag_r1-0.1.0.dist-info/RECORD", "")
    return "rag_r1-0.1.0-py3-none-any.whl"
"""


class Project:
    """A clone of the scripts with short lists, its environment, and how the machine is configured."""

    def __init__(self, folder: Path, empty_venv: Path, index: StubIndex):
        self.folder, self.venv, self.index = folder / "clone", folder / "venv", index
        shutil.copytree(ROOT / "scripts", self.folder / "scripts")
        self.write("requirements/cpu.lock.txt", "tiny==1.0\ntorch==2.13.0\n")
        self.write("requirements/cpu-cuda-torch.lock.txt", "nvidia-tiny==13.0\n")
        self.write("requirements/dev.lock.txt", "tiny-test==1.0\n")
        self.write("requirements/apart.lock.txt", "tiny-apart==1.0\n")
        shutil.copy(ROOT / "requirements" / "uv.lock.txt", self.folder / "requirements")
        self.uv = (ROOT / "requirements" / "uv.lock.txt").read_text().rpartition("uv==")[2].strip()
        self.write("backend.py", BACKEND)
        self.write(
            "pyproject.toml",
            '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
            '[project]\nname = "rag-r1"\nversion = "0.1.0"\n',
        )
        shutil.copytree(empty_venv, self.venv, symlinks=True)
        self.bin = folder / "bin"
        self.limits = folder / "limits"
        self.program("timeout", f'echo "$1" >> {self.limits}; shift; exec /usr/bin/timeout 3 "$@"')
        self.configuration = {
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_CERT": str(index.authority.file),
            "PIP_NO_CACHE_DIR": "1",
            "UV_CACHE_DIR": str(folder / "cache"),
            "HTTPS_PROXY": index.url,
        }

    def write(self, path: str, text: str) -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(text)

    def program(self, name: str, text: str) -> None:
        self.bin.mkdir(exist_ok=True)
        (self.bin / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.bin / name).chmod(0o755)

    def setup(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(self.folder / "scripts" / "setup_env.sh"), *arguments],
            env={
                "PATH": f"{self.bin}:/usr/bin:/bin",
                "HOME": str(self.folder),
                "VENV": str(self.venv),
                "RAG_R1_PLATFORM": "cpu",
                **self.configuration,
                **variables,
            },
            capture_output=True,
            text=True,
            timeout=120,
        )

    def install(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """`setup`, which must succeed."""
        done = self.setup(*arguments, **variables)
        assert done.returncode == 0, self.said(done)
        return done

    def installed(self) -> dict[str, str]:
        """Distributions of the environment and their versions, without pip and its like."""
        code = "from importlib import metadata as m\nfor d in m.distributions(): print(d.name, d.version)"
        output = subprocess.run(
            [self.venv / "bin" / "python", "-c", code], capture_output=True, text=True
        ).stdout
        versions = dict(line.split() for line in output.splitlines())
        return {
            name: version for name, version in versions.items() if name not in ("pip", "setuptools", "uv")
        }

    def said(self, done: subprocess.CompletedProcess[str]) -> str:
        log = self.venv / "rag-r1-install.log"
        return done.stderr + (log.read_text() if done.returncode and log.exists() else "")


@pytest.fixture(scope="session")
def empty_venv(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("empty") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    return folder


@pytest.fixture
def index(tmp_path: Path):
    """What the Python Package Index has: torch's CUDA build, its libraries, uv (which calls the real one)."""
    server = StubIndex(tmp_path)
    for name, version in (
        ("tiny", "1.0"),
        ("tiny-test", "1.0"),
        ("tiny-apart", "1.0"),
        ("nvidia-tiny", "13.0"),
    ):
        server.add("simple", name, version)
    server.add("simple", "torch", "2.13.0")
    version = (ROOT / "requirements" / "uv.lock.txt").read_text().rpartition("uv==")[2].strip()
    uv = f'#!/bin/sh\nif [ "$1" = --version ]; then echo "uv {version}"; else exec {UV} "$@"; fi\n'
    server.add("simple", "uv", version, files={"bin/uv": uv})
    yield server
    server.stop()


@pytest.fixture
def project(tmp_path: Path, empty_venv: Path, index: StubIndex) -> Project:
    return Project(tmp_path, empty_venv, index)


CPU = {"rag-r1": "0.1.0", "tiny": "1.0", "torch": "2.13.0+cpu"}
CUDA = {**CPU, "torch": "2.13.0", "nvidia-tiny": "13.0"}


def wheels(folder: Path, *wanted: tuple[str, str]) -> Path:
    folder.mkdir()
    for name, version in wanted:
        file, body = wheel(name, version)
        (folder / file).write_bytes(body)
    return folder


def test_a_cpu_build_in_pips_find_links_is_taken_and_no_other_index_is_asked(
    project: Project, tmp_path: Path
):
    links = wheels(tmp_path / "wheels", ("torch", "2.13.0+cpu"))
    done = project.install(PIP_FIND_LINKS=str(links))
    assert project.installed() == CPU and "with uv (torch==2.13.0+cpu" in done.stderr
    assert not any(path.startswith("whl/") for path in project.index.asked)


@pytest.mark.full
def test_a_cpu_build_in_pips_extra_index_is_taken_and_the_rest_comes_from_the_first(project: Project):
    project.index.add("mirror", "torch", "2.13.0+cpu")
    project.index.add("mirror", "tiny", "0.9")
    done = project.install(PIP_EXTRA_INDEX_URL=f"{project.index.url}/mirror")
    assert project.installed() == CPU and "with uv" in done.stderr
    assert not any(path.startswith("whl/") for path in project.index.asked)


@pytest.mark.full
def test_pips_index_replaces_the_default_one(project: Project):
    for name, version in CPU.items():
        project.index.add("own/simple", name, version)
    project.index.add("own/simple", "uv", project.uv, files={"bin/uv": f'#!/bin/sh\nexec {UV} "$@"\n'})
    project.install(PIP_INDEX_URL=f"{project.index.url}/own/simple")
    assert project.installed() == CPU
    assert not any(path.startswith("simple/") for path in project.index.asked)


def test_without_one_uv_finds_pytorchs_own_index_and_takes_torch_alone_from_it(project: Project):
    project.index.add("whl/cpu", "torch", "2.13.0+cpu")
    project.index.add("simple", "torchao", "1.0")  # which uv would look for in PyTorch's index
    project.write("requirements/cpu.lock.txt", "tiny==1.0\ntorch==2.13.0\ntorchao==1.0\n")
    done = project.install()
    assert project.installed() == {**CPU, "torchao": "1.0"}
    assert "with uv (torch==2.13.0+cpu" in done.stderr
    assert {path for path in project.index.asked if path.startswith("whl/")} == {"whl/cpu/torch"}


@pytest.mark.parametrize("silent", [True, pytest.param(False, marks=pytest.mark.full)])
def test_where_that_index_does_not_answer_torch_of_pypi_comes_with_its_libraries_and_its_size_is_said(
    project: Project, silent: bool
):
    if silent:
        project.index.add("whl/cpu", "torch", "2.13.0+cpu")
        project.index.silent.add("whl/cpu")
    done = project.install()
    assert project.installed() == CUDA
    assert LARGER in done.stderr and "with uv" in done.stderr
    assert "whl/cpu/torch" in project.index.asked, "PyTorch's own index comes before"
    assert project.limits.read_text() == "20\n"


@pytest.mark.full
def test_another_local_build_is_no_cpu_build_and_is_not_mixed_with_the_libraries_of_pypis(project: Project):
    project.index.add("mirror", "torch", "2.13.0+cu999")
    done = project.install(PIP_EXTRA_INDEX_URL=f"{project.index.url}/mirror")
    assert project.installed() == CUDA and LARGER in done.stderr


def test_where_there_is_no_uv_pip_finds_the_cpu_build(project: Project, tmp_path: Path):
    del project.index.pages["simple", "uv"]
    links = wheels(tmp_path / "wheels", ("torch", "2.13.0+cpu"))
    done = project.install(PIP_FIND_LINKS=str(links))
    assert project.installed() == CPU and "with pip (torch==2.13.0+cpu" in done.stderr


@pytest.mark.full
def test_where_uv_gets_no_answer_pip_does_the_work(project: Project):
    """As behind a certificate or a login that only pip knows."""
    done = project.install(SSL_CERT_FILE="/dev/null")
    assert project.installed() == CUDA and "with pip" in done.stderr


@pytest.mark.full
def test_pip_alone_on_request(project: Project):
    done = project.install(RAG_R1_INSTALLER="pip")
    assert project.installed() == CUDA and LARGER in done.stderr
    assert "simple/uv" not in project.index.asked and not any("whl/" in path for path in project.index.asked)


def test_another_installer_is_refused(project: Project):
    done = project.setup(RAG_R1_INSTALLER="conda")
    assert done.returncode == 1 and "RAG_R1_INSTALLER is 'conda'" in done.stderr and not project.installed()


@pytest.mark.full
@pytest.mark.parametrize("build", [CPU, CUDA])
def test_an_environment_keeps_its_build_of_torch_when_other_packages_change(
    project: Project, tmp_path: Path, build: dict[str, str]
):
    links = wheels(tmp_path / "wheels", ("torch", "2.13.0+cpu"))
    first, second = (
        ({"PIP_FIND_LINKS": str(links)}, {}) if build is CPU else ({}, {"PIP_FIND_LINKS": str(links)})
    )
    assert project.setup(**first).returncode == 0
    project.index.add("simple", "tiny", "1.1")
    project.write("requirements/cpu.lock.txt", "tiny==1.1\ntorch==2.13.0\n")
    project.index.asked.clear()
    done = project.install(**second)
    assert project.installed() == {**build, "tiny": "1.1"}
    assert LARGER not in done.stderr and "up to date with uv" in done.stderr
    assert "whl/cpu/torch" not in project.index.asked


def test_an_environment_made_by_pip_is_brought_up_to_date_in_place_and_only_once(
    project: Project, tmp_path: Path
):
    links = wheels(tmp_path / "wheels", ("torch", "2.13.0+cpu"), ("tiny", "0.9"))
    python = project.venv / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "--no-index", "-f", links, "tiny", "torch"],
        check=True, capture_output=True, env={"PIP_CONFIG_FILE": "/dev/null"},
    )  # fmt: skip
    (project.venv / ".rag-r1").write_text(f"cpu run 1 1 {project.folder}\n")
    project.install()
    assert project.installed() == CPU
    requests = len(project.index.asked)
    again = project.setup()
    assert again.returncode == 0 and len(project.index.asked) == requests
    assert again.stderr == f"setup: ready: source {project.venv}/bin/activate\n"


@pytest.mark.full
def test_dev_adds_its_lists_to_the_same_installation(project: Project, tmp_path: Path):
    links = wheels(tmp_path / "wheels", ("torch", "2.13.0+cpu"))
    project.install("--dev", PIP_FIND_LINKS=str(links))
    assert project.installed() == {**CPU, "tiny-test": "1.0"}
    assert (project.venv / "apart" / "tiny_apart" / "__init__.py").is_file()


@pytest.mark.full
def test_without_the_packages_that_lie_apart_the_rest_is_installed(project: Project):
    del project.index.pages["simple", "tiny-apart"]
    done = project.install("--dev")
    assert "the tests of published chat templates will be left out" in done.stderr
    assert project.installed() == {**CUDA, "tiny-test": "1.0"}


@pytest.mark.full
def test_an_environment_without_pip_gets_it(project: Project):
    shutil.rmtree(project.venv)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(project.venv)], check=True)
    project.install()
    assert project.installed() == CUDA


@pytest.mark.full
@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_a_package_without_a_wheel_for_this_python_is_named(project: Project, installer: str):
    project.index.add("simple", "other-python", "1.0", tag="cp39-cp39-manylinux_2_17_x86_64")
    project.write("requirements/cpu.lock.txt", "other-python==1.0\ntorch==2.13.0\n")
    done = project.setup(RAG_R1_INSTALLER=installer)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert done.returncode == 1 and f"have no other-python==1.0 for Python {version}" in done.stderr
    assert not (project.venv / ".rag-r1").exists()


@pytest.mark.full
@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_without_a_network_that_is_said(project: Project, installer: str, tmp_path: Path):
    if installer == "uv":
        (project.venv / "bin" / "uv").symlink_to(UV)
    project.index.stop()
    project.configuration |= {"PIP_RETRIES": "1", "UV_HTTP_RETRIES": "1"}
    done = project.setup(RAG_R1_INSTALLER=installer)
    assert done.returncode == 1 and "the package index cannot be reached" in done.stderr, project.said(done)


@pytest.mark.full
@pytest.mark.parametrize(
    "message", ["OSError: [Errno 28] No space left on device", "cause: write (os error 28)"]
)
def test_a_full_disk_is_named_with_what_is_needed(project: Project, message: str):
    (project.venv / "bin" / "uv").write_text(
        f'#!/bin/sh\ncase "$*" in --version) echo "uv {project.uv}" ;;\n'
        f'"pip compile"*) echo torch==2.13.0+cpu ;;\n'
        f'*) echo "error: {message}"; exit 2 ;; esac\n'
    )
    (project.venv / "bin" / "uv").chmod(0o755)
    done = project.setup()
    assert done.returncode == 1 and "no space is left" in done.stderr and "3.5 GB on disk" in done.stderr
    assert "UV_CACHE_DIR" in done.stderr


def configured_uv(project: Project, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "uv_like_pip.py"), *command],
        env={"PATH": os.environ["PATH"], "HOME": str(project.folder), **project.configuration, **variables},
        input="tiny\n",
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_configuration_file_of_pip_reaches_uv_and_variables_go_before_it(project: Project, tmp_path: Path):
    links = wheels(tmp_path / "wheels", ("tiny", "3.0"), ("tiny", "2.0"))
    (tmp_path / "constraints.txt").write_text("tiny<3\n")
    (tmp_path / "pip.conf").write_text(
        textwrap.dedent(f"""
            [global]
            index-url = {project.index.url}/nowhere
            no-index = false
            find-links =
                {tmp_path}
                {links}
            timeout = 7
            trusted-host = 127.0.0.1
                other.invalid
            [install]
            constraint = {tmp_path}/constraints.txt
            [download]
            constraint = {tmp_path}/missing.txt
            """)
    )
    variables = {
        "PIP_CONFIG_FILE": str(tmp_path / "pip.conf"),
        "PIP_INDEX_URL": f"{project.index.url}/simple",
    }
    compile = (UV, "pip", "compile", "-", "--no-deps", "--no-header", "--no-annotate", "--quiet")
    done = configured_uv(project, *compile, **variables)
    assert done.stdout == "tiny==2.0\n", done.stderr
    assert "simple/tiny" in project.index.asked and "nowhere/tiny" not in project.index.asked
    lines = configured_uv(project, "env", **variables).stdout.splitlines()
    assert "UV_HTTP_TIMEOUT=7" in lines and "UV_INSECURE_HOST=127.0.0.1 other.invalid" in lines
    assert (
        f"UV_FIND_LINKS={tmp_path},{links}" in lines
        and f"SSL_CERT_FILE={project.index.authority.file}" in lines
    )
    own = configured_uv(project, "env", **variables, UV_DEFAULT_INDEX="file:///own").stdout.splitlines()
    assert "UV_DEFAULT_INDEX=file:///own" in own, "uv's own variables stay"


def test_no_index_and_a_proxy_are_passed_on(project: Project):
    variables = {"PIP_NO_INDEX": "1", "PIP_PROXY": "proxy.invalid:3128", "HTTPS_PROXY": ""}
    assert configured_uv(project, "echo", "pip", **variables).stdout == "pip --no-index\n"
    variables |= {"PIP_NO_INDEX": "0", "PIP_CERT": "~"}
    lines = configured_uv(project, "env", **variables).stdout.splitlines()
    assert "HTTPS_PROXY=http://proxy.invalid:3128" in lines
    assert f"SSL_CERT_DIR={project.folder}" in lines, "the home folder, which may hold certificates"
