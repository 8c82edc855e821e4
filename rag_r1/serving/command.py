"""`rag-r1 serve`: launches the agent and the HTTP server, until a signal.

    rag-r1 serve --demo
    rag-r1 serve --model outputs/rag-r1/ppo-mq --retriever-url http://127.0.0.1:8000

On SIGTERM or Ctrl-C the port is closed, and chats that have begun or wait are finished within `--drain-s`.
Chats that still run are then ended, and their clients get 503, or an error at the end of the stream; at last
the model's and the retrieval server are ended. The status is 0 after such a stop.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from functools import partial

from rag_r1.http_server.listening import bind_socket, check_port, take_token_of, warn_without_token
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import read_arguments
from rag_r1.runs.errors import RunError
from rag_r1.runs.start_checks import check_packages
from rag_r1.serving.arguments import ChatAgentArguments, ServeArguments

COMMAND = "rag-r1 serve"
_DESCRIPTION = """\
Chat with a search agent: an OpenAI-compatible server, with a page in the browser that shows each search, its
passages, and which of them contain the answer. A question is played as `rag-r1 eval` plays it: by the same
agent, with the same limits and arguments, on one path (rag_r1.agent.paths above 1 is refused).

examples:
  rag-r1 serve --demo                                    everything included; then open http://127.0.0.1:8080
  rag-r1 serve --model outputs/rag-r1/ppo-mq --retriever-url http://127.0.0.1:8000
  rag-r1 serve --model Qwen/Qwen2.5-7B-Instruct --base-url http://127.0.0.1:8001/v1 --documents ~/papers
"""
_EPILOG = """\
environment: CHAT_TOKEN, if set, is required of clients as 'Authorization: Bearer'. RETRIEVAL_TOKEN is sent to
the retrieval server, and the variable of --api-key-env to the model's server.
"""
#: The environment variable with the token that clients must send.
TOKEN_VARIABLE = "CHAT_TOKEN"


@command_main(RunError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 after an orderly stop, 1 with a message if the server could not start."""
    args = read_arguments(
        ServeArguments, arguments, prog=COMMAND, description=_DESCRIPTION, epilog=_EPILOG, check=_check_start
    )
    set_up_logs(logging.INFO)
    token = take_token_of(TOKEN_VARIABLE)
    _check_start(args)
    # Here, because these need what belongs to extras, and `--help` does not.
    from rag_r1.serving.http_server import RunningServer, serve
    from rag_r1.serving.launch import launch_agent

    if args.check_only:
        print(f"all checks passed: {args.name} would be served on {args.host}, port {args.port}")
        return 0
    warn_without_token(args.host, token, TOKEN_VARIABLE)

    def on_ready(running: RunningServer) -> None:
        print(f"chat at {running.url}", flush=True)

    with bind_socket(args.host, args.port) as listener, launch_agent(args) as launched:
        running = serve(
            args, launched, listener, on_ready, allowed=args.allowed_host, token=token, drain_s=args.drain_s
        )
        asyncio.run(running)
    return 0


def _check_start(args: ServeArguments) -> None:
    from rag_r1.serving.launch import check_launch

    check_launch(args, [partial(check_parts, COMMAND, args), partial(check_port, args.host, args.port)])


def check_parts(command: str, args: ChatAgentArguments) -> None:
    """Raises RunError if a package is missing that the arguments need. vLLM is checked first, because the
    message names the extra to install, and a smaller one would not have it."""
    check_packages(command, *(["vllm"] if args.demo or args.base_url is None else []), "fastapi", "uvicorn")


def set_up_logs(level: int) -> None:
    """Log our own lines from `level` on, and those of libraries from warnings on, to standard error."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("rag_r1.serving").setLevel(level)


if __name__ == "__main__":
    sys.exit(main())
