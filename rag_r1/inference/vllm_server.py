"""Runs vLLM's OpenAI-compatible server for a model folder, as a context manager.

The server runs in a process group of its own on a free port of the loopback interface. It stops at the end of
the block, or when this process ends (rag_r1/system/child_processes.py). Its environment contains no keys or
tokens except those of the Hugging Face Hub.

    with vllm_server(Path("outputs/sft/model"), Path("run/vllm.log")) as url:
        ...  # url is "http://127.0.0.1:<port>/v1", and the model is served there as "policy"

Whether the model runs on a GPU or on the CPU depends on the installed build of vLLM. The CPU build is started
with the settings of recipes/platform/cpu.yaml, which explains them, and with a number of threads that fits
the size of the model. Environment variables that are already set take precedence.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import httpx

from rag_r1.io.bounded_http import bounded_http_client
from rag_r1.runs.errors import RunError
from rag_r1.system.child_environments import environment_without_secrets
from rag_r1.system.child_processes import NotReadyError, child_process, free_port, wait_until_ready
from rag_r1.system.cores import cpu_threads
from rag_r1.system.installation import setup_command

_MODULE = "vllm.entrypoints.openai.api_server"
#: A program that parses its arguments as the server does.
_PARSE_OPTIONS = """\
import sys
from vllm.entrypoints.openai.cli_args import FlexibleArgumentParser, make_arg_parser
make_arg_parser(FlexibleArgumentParser()).parse_args(sys.argv[1:])
"""
#: Environment variables and flags for the CPU build of vLLM.
_CPU_ENV = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
_CPU_OPTIONS = ("--dtype", "float32", "--enforce-eager")
#: Secrets that vLLM may need to download a model or its tokenizer from the Hub.
_HUB_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


@contextmanager
def vllm_server(
    model: Path,
    log: Path,
    *,
    name: str = "policy",
    options: Sequence[str] = (),
    start_timeout_s: float = 600,
    hidden_variables: Collection[str] = (),
) -> Iterator[str]:
    """Serve the model in a Hugging Face folder as `name`; yields the server's address, which ends in /v1.

    - `log`: the file that receives the server's output
    - `options`: further flags of `vllm serve`, which take precedence over the flags set here
    - `start_timeout_s`: seconds within which the server must be ready
    - `hidden_variables`: environment variables that are not passed on to the server

    Raises RunError if vLLM is not installed or, with the end of the log, if the server does not start, and
    OSError if the log cannot be written. Call this from the main thread: in any other thread SIGTERM of
    this process is not handled, and the server ends with that thread.
    """
    on_cpu = _is_cpu_build()
    port = free_port()
    arguments = ["-m", _MODULE, "--model", str(model), "--served-model-name", name]
    arguments += ["--host", "127.0.0.1", "--port", str(port), *(_CPU_OPTIONS if on_cpu else ()), *options]
    defaults = {**_CPU_ENV, "OMP_NUM_THREADS": str(cpu_threads(model))} if on_cpu else {}
    environment = {**defaults, **environment_without_secrets(_HUB_VARIABLES, hidden_variables)}
    with child_process(arguments, environment, log) as process:
        with bounded_http_client(2.0) as client:

            def is_healthy() -> bool:
                try:
                    return client.get(f"http://127.0.0.1:{port}/health").status_code == 200
                except httpx.HTTPError:
                    return False

            try:
                wait_until_ready(process, is_healthy, start_timeout_s, name="vLLM", log=log, every_s=0.5)
            except NotReadyError as error:
                raise RunError(str(error)) from error
        yield f"http://127.0.0.1:{port}/v1"


@cache
def check_options(options: tuple[str, ...]) -> None:
    """Raise ValueError if vLLM's server does not accept these flags or their values. A separate process
    imports vLLM and parses them, which takes about ten seconds. Does nothing if there are no flags, or if
    vLLM is not installed, which other checks report."""
    if not options or find_spec("vllm") is None:
        return
    command = [sys.executable, "-c", _PARSE_OPTIONS, *options]
    environment = environment_without_secrets(())
    process = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace")
    if process.returncode == 2:  # argparse's status for wrong arguments; other failures are not about them
        fault = process.stderr.rpartition("error: ")[2].strip()
        raise ValueError(f"{fault}: correct the flags, which `vllm serve --help=all` lists")


def _is_cpu_build() -> bool:
    """Return whether the installed vLLM is a CPU build, by the rule that vLLM itself uses. Raises RunError
    if vLLM is not installed."""
    with suppress(metadata.PackageNotFoundError):
        return "cpu" in metadata.version("vllm")
    try:
        metadata.version("vllm-cpu")
    except metadata.PackageNotFoundError:
        raise RunError(
            f"vLLM is not installed here: {setup_command()}; or serve the model elsewhere "
            "and give the server's address with --base-url"
        ) from None
    return True
