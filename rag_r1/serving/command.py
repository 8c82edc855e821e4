"""`rag-r1 serve`: starts the agent and its HTTP server, which run until a signal.

    rag-r1 serve --demo
    rag-r1 serve --model outputs/rag-r1/ppo-mq --retriever-url http://127.0.0.1:8000

After SIGTERM or Ctrl-C the port is closed, and chats that run or wait have `--drain-s` seconds to finish.
Remaining chats are then cancelled: their clients get HTTP 503, or an error at the end of the stream. Finally
the servers that the command started are stopped, and it exits with status 0.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from functools import partial

from rag_r1.http_server.access_token import read_token, take_token, warn_without_token
from rag_r1.http_server.listening import bind_socket, check_port
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
    """Run the command. Returns 0 after an orderly stop, or if all checks have passed with --check-only, and 1
    with a message if the server could not start."""
    args = read_arguments(
        ServeArguments, arguments, prog=COMMAND, description=_DESCRIPTION, epilog=_EPILOG, check=_check_start
    )
    set_up_logs(logging.INFO)
    _check_start(args)
    token = take_token(TOKEN_VARIABLE)
    # Imported here, because these modules need extras, which `--help` does not.
    from rag_r1.serving.http_server import RunningServer, serve
    from rag_r1.serving.launch import launch_agent

    if args.check_only:
        print(f"all checks passed: {args.name} would be served on {args.host}, port {args.port}")
        return 0
    warn_without_token(args.host, token, TOKEN_VARIABLE)

    def on_ready(server: RunningServer) -> None:
        print(f"chat at {server.url}", flush=True)

    with bind_socket(args.host, args.port) as listener, launch_agent(args) as launched:
        serving = serve(
            args, launched, listener, on_ready, allowed=args.allowed_host, token=token, drain_s=args.drain_s
        )
        asyncio.run(serving)
    return 0


def _check_start(args: ServeArguments) -> None:
    """Check arguments, packages, port and token, and if these are right also the servers. Raises StartError
    or RunError with all problems that were found."""
    from rag_r1.serving.launch import check_launch

    port_check = partial(check_port, args.host, args.port)
    token_check = partial(read_token, TOKEN_VARIABLE)
    check_launch(args, [partial(check_extras, COMMAND, args), port_check, token_check])


def check_extras(command: str, args: ChatAgentArguments) -> None:
    """Raise RunError if a package that the arguments need is missing. vLLM comes first, because the message
    names the extra of the first missing package, and the extra with vLLM has the others too."""
    check_packages(command, *(["vllm"] if args.demo or args.base_url is None else []), "fastapi", "uvicorn")


def set_up_logs(level: int) -> None:
    """Log to standard error: messages of the chat server from `level` on, those of libraries from warnings
    on."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("rag_r1.serving").setLevel(level)


if __name__ == "__main__":
    sys.exit(main())
