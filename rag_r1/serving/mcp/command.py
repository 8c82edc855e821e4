"""`rag-r1 mcp`: serves the search and the agent to MCP clients; with --tools, shows another server's tools.

server.py implements the server, and listing.py --tools. Over stdio, stdout belongs to the protocol, so all
messages go to stderr.
"""

from __future__ import annotations

import asyncio
import io
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, redirect_stderr, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, model_validator

from rag_r1.options.command_exit import CommandError, command_main
from rag_r1.options.command_line import Arguments, Filled, Positive, argument, read_arguments
from rag_r1.options.server_address import Address
from rag_r1.options.types import Constraint
from rag_r1.rollouts.agent_arguments import AgentSelection, shared_arguments
from rag_r1.runs.errors import OtherServerError, RunError
from rag_r1.runs.start_checks import CHECK_ONLY, StartChecks
from rag_r1.serving.mcp.listing import print_tools
from rag_r1.system.installation import pip_command
from rag_r1.tools.mcp.tool import has_mcp

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

    from rag_r1.evaluation.eval_arguments import EvalArguments

#: The environment variable with the bearer token that `--http` requires.
TOKEN_VARIABLE = "RAG_R1_MCP_TOKEN"
_DESCRIPTION = f"""\
Offer the search, and a trained agent, to MCP clients (desktop assistants, editors, other agents): the tool
`search`, and with --base-url the tool `ask`, which plays a question as `rag-r1 eval` does, on one path
(rag_r1.agent.paths above 1 is refused). Over stdin and stdout, as clients start their servers, or with --http
over streamable HTTP on this machine, at http://127.0.0.1:PORT/mcp; requests then need the bearer token in the
environment variable {TOKEN_VARIABLE}, if it is set.

example, in the configuration of a client:
  {{"mcpServers": {{"rag-r1": {{"command": "rag-r1", "args": ["mcp", "--retriever-url", "http://127.0.0.1:8000",
      "--base-url", "http://127.0.0.1:8001/v1", "--model", "exported/ppo-mq"]}}}}}}

also: rag-r1 mcp --tools https://mcp.example.org/mcp
      rag-r1 mcp --tools --token-env MY_TOKEN https://mcp.example.org/mcp
      rag-r1 mcp --tools npx -y some-server --its-option
      print what an MCP server says about its tools, as entries of rag_r1.tools; MY_TOKEN is an environment
      variable with the bearer token that the address wants
"""
#: Seconds for running requests to finish after a stop. The streams of clients never end by themselves.
_STOP_S = 10
_Port = Annotated[int, Field(ge=1, le=65535), Constraint("a port, 1 to 65535")]


class _ModelArguments(Arguments):
    """The model of the agent."""

    base_url: Address | None = argument(
        "address of the agent's model, up to and including /v1; without it only the search is offered",
        "URL",
        default=None,
    )
    model: Filled | None = argument("name of the model at --base-url", "MODEL", default=None)


class McpArguments(AgentSelection, _ModelArguments):
    """The tools to offer, and where to offer them."""

    in_flight: Positive = argument(
        "most questions answered at a time; as many more wait", "N", default=8, old="concurrency"
    )
    http: _Port | None = argument("port for streamable HTTP instead of stdio", "PORT", default=None)
    check_only: bool = argument(CHECK_ONLY, default=False)

    @model_validator(mode="after")
    def _model_is_named(self) -> McpArguments:
        if (self.base_url is None) != (self.model is None):
            raise ValueError("--base-url and --model belong together: the tool `ask` needs both")
        return self

    @model_validator(mode="after")
    def _flags_fit_search(self) -> McpArguments:
        if self.base_url is None:
            names = ("prompt", "engine", "tokenizer", "api_key_env")
            self.refuse_unused(names, "without --base-url, only the search is offered")
        return self


@command_main(RunError, ValueError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0 after Ctrl-C or the end of stdin, or 1 with a message if the server could
    not start. SIGTERM ends the process with the signal's status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments[:1] == ["--tools"]:
        return print_tools(arguments[1:])
    args = read_arguments(
        McpArguments, arguments, prog="rag-r1 mcp", description=_DESCRIPTION, check=_check_quietly
    )
    if not has_mcp():
        raise CommandError(f"rag-r1 mcp needs the package mcp, 2.0 or later: {pip_command('mcp')}")
    check_start(args)
    if args.check_only:
        tools = "search" if args.base_url is None else "search and ask"
        transport = "stdio" if args.http is None else f"http://127.0.0.1:{args.http}/mcp"
        print(f"all checks passed: {tools} would be offered over {transport}")
        return 0
    if args.http is None:  # an exception would have to wait for the thread that reads stdin
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(args))
    return 0


def check_start(args: McpArguments) -> None:
    """Check the arguments, the port and the token of --http, and the servers. Raises StartError with all
    problems.

    A retrieval server that does not answer yet only causes a warning, since each search reports it later. It
    is an error if there is a model, which needs the search from the start, or with --check-only. Another
    server at its address is always an error."""
    from rag_r1.http_server.access_token import read_token
    from rag_r1.http_server.listening import check_port
    from rag_r1.rollouts.server_check import ModelServer, check_endpoint
    from rag_r1.serving.agent import check_agent, try_agent_servers

    checks: list[Callable[[], Any]] = []
    if args.http is not None:
        checks = [partial(check_port, "127.0.0.1", args.http, "--http"), partial(read_token, TOKEN_VARIABLE)]
    evaluation = _eval_arguments(args)
    with StartChecks() as start_checks:
        start_checks.run(check_agent, evaluation, checks)
        if args.base_url is not None and args.model is None:  # only the address can be checked
            start_checks.run(check_endpoint, ModelServer(args.base_url, args.api_key_env))
            evaluation = evaluation.model_copy(update={"base_url": None})
        try:
            try_agent_servers(evaluation)
        except RunError as error:
            if args.base_url is not None or args.check_only or isinstance(error, OtherServerError):
                start_checks.add(error)
            else:
                print(f"warning: {error}", file=sys.stderr)


def _check_quietly(args: McpArguments) -> None:
    """Call `check_start` without printing its warning, to complete a message about wrong arguments."""
    with redirect_stderr(io.StringIO()):
        check_start(args)


async def serve(args: McpArguments) -> None:
    """Serve until stdin is closed or a signal ends the process. Raises RunError, ValueError or OSError if the
    server cannot start."""
    async with open_server(args) as server:
        if args.http is None:
            await server.run_stdio_async()
        else:
            await _serve_http(server, args.http)


@asynccontextmanager
async def open_server(args: McpArguments) -> AsyncIterator[MCPServer]:
    """Yield the MCP server, and close its connections after the block. Raises the errors of `serve`."""
    from rag_r1.config.schema import RagR1Config
    from rag_r1.evaluation.target import resolve_model
    from rag_r1.evaluation.validation_limits import validation_limits
    from rag_r1.rollouts.arguments import block_of
    from rag_r1.serving.agent import open_agent
    from rag_r1.serving.mcp.server import make_server
    from rag_r1.tools import close_tools, shared_searcher, shared_tools

    evaluation = _eval_arguments(args)
    if args.base_url is not None:
        evaluation = resolve_model(evaluation)
    config = RagR1Config.from_config(block_of(evaluation, validation_limits(args.protocol)))
    searcher = shared_searcher(config.validation_retriever)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(close_tools, shared_tools(config.validation_retriever, config.tools))
        agent = None if args.base_url is None else await stack.enter_async_context(open_agent(evaluation))
        play = agent.play if agent else None
        yield make_server(searcher, play, retriever_url=args.retriever_url, concurrency=args.in_flight)


async def _serve_http(server: MCPServer, port: int) -> None:
    """Serve over streamable HTTP on this machine, until a signal. Raises RunError if the port is taken, or if
    no header can contain the token."""
    import uvicorn

    from rag_r1.http_server.access_token import take_token
    from rag_r1.http_server.idle_timeout import uvicorn_config
    from rag_r1.http_server.listening import bind_socket
    from rag_r1.serving.mcp.server import http_app

    app = http_app(server, take_token(TOKEN_VARIABLE))
    with bind_socket("127.0.0.1", port, "--http") as listener:
        print(f"MCP at http://127.0.0.1:{port}/mcp", file=sys.stderr)
        await uvicorn.Server(uvicorn_config(app, stop_s=_STOP_S, lifespan="on")).serve(sockets=[listener])


def _eval_arguments(args: McpArguments) -> EvalArguments:
    """Return the arguments of `rag-r1 eval` with which the agent is made. No questions are read."""
    from rag_r1.evaluation.eval_arguments import EvalArguments

    values = {"questions": [], "out": Path("unused"), "model": args.model or "unused", "retries": 2}
    return args.converted(EvalArguments, {**values, "base_url": args.base_url, **shared_arguments(args)})


if __name__ == "__main__":
    sys.exit(main())
