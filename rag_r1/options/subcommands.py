"""Runs commands that consist of subcommands, such as `rag-r1` and `rag-r1 retriever`.

A subcommand is a module with `main(arguments) -> exit status`, or another such function of a module, and has
its own `--help`. It is imported only when it is called, so that `--help` is fast. If it imports a package
that is not installed, the command ends with a sentence that names the pip command for the right extra.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

from rag_r1.options.command_exit import CommandError, command_main
from rag_r1.options.suggestions import did_you_mean
from rag_r1.system.installation import remedy_for

#: Subcommand -> the module with its `main` (or `module:function`), and its description.
Commands = Mapping[str, tuple[str, str]]


def usage(prog: str, summary: str, commands: Commands) -> str:
    """Return the text of `--help`."""
    lines = [f"  {name:17} {description}" for name, (_, description) in commands.items()]
    header = [f"usage: {prog} COMMAND [arguments]", "", summary, ""]
    return "\n".join([*header, *lines, "", f"{prog} COMMAND --help describes each command."])


@command_main()
def run(
    prog: str,
    summary: str,
    commands: Commands,
    arguments: Sequence[str] | None = None,
    flags: Sequence[str] = (),
) -> int:
    """Run a subcommand and return its exit status, which is 2 if the subcommand is missing or unknown.
    `arguments` are by default those of the process, and `flags` are what may stand in place of a
    subcommand."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage(prog, summary, commands))
        return 0 if arguments else 2
    command, *command_arguments = arguments
    if command not in commands:
        hint = did_you_mean(command, [*commands, *flags])
        text = f"; {hint}\nsee {prog} --help" if hint else f"\n\n{usage(prog, summary, commands)}"
        print(f"{prog}: there is no command {command!r}{text}", file=sys.stderr)
        return 2
    module, _, function = commands[command][0].partition(":")
    try:
        return getattr(import_module(module), function or "main")(command_arguments)
    except ModuleNotFoundError as error:
        remedy = remedy_for(error.name or "", f"{prog} {command}")
        if remedy is None:
            raise
        raise CommandError(
            f"{prog} {command} needs {error.name}, which is not installed: {remedy}"
        ) from error
