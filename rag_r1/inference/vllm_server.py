"""Runs vLLM's OpenAI-compatible server for a model folder, as a context manager.

The server is a process group of its own on a free loopback port. It ends with the block and with this process
(rag_r1/system/child_processes.py), and gets the environment without keys and tokens, except the Hub's.

    with vllm_server(Path("outputs/sft/model"), Path("run/vllm.log")) as url:
        ...  # url is "http://127.0.0.1:<port>/v1", and the model's name there is "policy"

The build of vLLM decides where the model runs. That for CPUs gets the settings of recipes/platform/cpu.yaml,
which gives the reasons, and threads by the size of the model; variables of the environment take precedence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import httpx

from rag_r1.io.bounded_http import bounded_http_client
from rag_r1.runs.errors import RunError
from rag_r1.system.child_processes import (
    NotReadyError,
    child_process,
    environment_without_secrets,
    free_port,
    wait_until_ready,
)
from rag_r1.system.cores import cpu_threads
from rag_r1.system.installation import setup_command

_MODULE = "vllm.entrypoints.openai.api_server"
#: Environment and flags of a vLLM that is built for CPUs.
_CPU_ENV = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
_CPU_OPTIONS = ("--dtype", "float32", "--enforce-eager")
#: Secrets that vLLM may need: a model or its tokenizer on the Hub.
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
    """Serve a Hugging Face folder as `name`; yields the address, with /v1.

    `log`: what the server prints. `options`: further flags of `vllm serve`; they take precedence over ours.
    `start_timeout_s`: seconds until it must be ready; `hidden_variables`: those of the environment that it
    does not get.

    Raises RunError, with the end of the log, if it does not start. Call it from the main thread: otherwise
    SIGTERM of this process is not handled here, and the server ends with the thread.
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


def _is_cpu_build() -> bool:
    """Whether the installed vLLM is a build for CPUs, by vLLM's own rule. Raises RunError without vLLM."""
    try:
        return "cpu" in metadata.version("vllm")
    except metadata.PackageNotFoundError:
        pass
    try:
        metadata.version("vllm-cpu")
    except metadata.PackageNotFoundError:
        raise RunError(
            f"vLLM is not installed here: {setup_command()}; or serve the model elsewhere "
            "and give the server's address with --base-url"
        ) from None
    return True
