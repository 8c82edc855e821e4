"""Validates a plan and reports all its problems together.

The arguments of each command are built with the command's own declaration, so that an option which it would
refuse after a day of training is refused at the start. The agent's recipe must exist, and its overrides must
not change keys that the loop sets; the preflight of its training checks the rest. The options of `rag-r1
index build` are checked by that program when it runs.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from rag_r1.config.recipes import Recipe, RecipeError
from rag_r1.config.schema import RagR1Config
from rag_r1.config.search_faults import search_faults
from rag_r1.corpus.inputs import check_first_rows
from rag_r1.corpus.reader import Corpus
from rag_r1.evaluation.eval_arguments import EvalArguments
from rag_r1.evaluation.validation_limits import validation_limits
from rag_r1.inference.model_folders import check_weights, has_weights
from rag_r1.inference.tokenizer import check_tokenizer
from rag_r1.io.errors import error_text
from rag_r1.iterate.commands import StepCommands
from rag_r1.iterate.plan import LoopPlan, option_name
from rag_r1.iterate.server import manifest_facts
from rag_r1.options.arguments.errors import ArgumentsError
from rag_r1.options.arguments.overrides import is_override
from rag_r1.protocols import load_protocol
from rag_r1.retriever.data.arguments import DataArguments
from rag_r1.retriever.training.encoder import EMBEDDED
from rag_r1.rollouts.arguments import block_of
from rag_r1.rollouts.requests import read_questions
from rag_r1.rollouts.search_check import FALLBACK_PROTOCOL
from rag_r1.rollouts.session import reward_of
from rag_r1.runs.errors import RunError
from rag_r1.runs.start_checks import FAULTS, StartError
from rag_r1.system.child_environments import server_environment
from rag_r1.system.child_processes import last_lines
from rag_r1.training.composition import check_composition

#: Stands for the address of the retrieval server, which need not run yet.
_PLACEHOLDER_URL = "http://127.0.0.1:8000"
#: Options that the loop sets for each command that plays the agent. A plan must not set `check_only` either,
#: since the command would then do nothing.
_SET_FOR_AGENT = {"data", "questions", "model", "protocol", "retriever_url", "out", "overrides", "check_only"}
#: Options that the loop sets, by section of the plan.
_RESERVED_OPTIONS = {
    "data": _SET_FOR_AGENT | {"trajectories", "estimate"},
    "evaluation": _SET_FOR_AGENT | {"card", "corpus", "baseline"},
    "retriever": {"rows", "corpus", "out", "recipe", "mode", "check_only"},
    "index": {"corpus", "out", "backend", "encoder", "overwrite", "of", "check_only"},
}
#: Keys of a training that the loop sets.
_RESERVED_KEYS = (
    "actor_rollout_ref.actor.checkpoint.save_contents",
    "actor_rollout_ref.model.path",
    "rag_r1.protocol",
    "rag_r1.retriever.url",
    "rag_r1.retriever.agentic_input",
    "rag_r1.retriever.mode",
    "trainer.default_local_dir",
    "trainer.resume_mode",
)


class KeyProblem(NamedTuple):
    """A problem of one or more keys of the plan, in the form `section.key`."""

    keys: Sequence[str]
    #: What is wrong, and what the user can do.
    text: str

    def __str__(self) -> str:
        *others, last = self.keys
        return f"{' or '.join(filter(None, [', '.join(others), last]))}: {self.text}"

    def is_hidden(self, replaced: Set[str]) -> bool:
        """Return whether the problem only follows from others: all of its keys, or their sections, are among
        the `replaced` ones, which are wrong in the file and have problems of their own."""
        parts = [key.split(".") for key in self.keys]
        return all(replaced & {section, f"{section}.{key}"} for section, key, *_ in parts)


def find_problems(plan: LoopPlan) -> list[str]:
    """Return all problems of a plan, each with its keys and remedy; [] if there are none. Problems that only
    follow from a wrong section or key (`LoopPlan.replaced`) are left out."""
    checks = (_missing_files, _reserved_keys, _recipe_problems, _refused_options)
    problems = [problem for check in checks for problem in check(plan)]
    return [*dict.fromkeys(str(problem) for problem in problems if not problem.is_hidden(plan.replaced))]


def _missing_files(plan: LoopPlan) -> Iterator[KeyProblem]:
    """Yield a problem for each file or folder that is missing or cannot be read. Questions are read to their
    end, since those of the data are used only after a training of hours."""
    protocol = load_protocol(FALLBACK_PROTOCOL)
    for name, section in (("evaluation", plan.evaluation), ("data", plan.data)):
        if section is None:
            continue
        for path in section.questions:
            skips = _skips_bad_rows(section.options)
            yield from _failure(f"{name}.questions", read_questions, [path], protocol, skip_bad_rows=skips)
    for path in plan.index.corpus if plan.data is not None else ():
        yield from _failure("index.corpus", _check_corpus, Path(path), _skips_bad_rows(plan.index.options))
    yield from _failure("index.first", manifest_facts, Path(plan.index.first))
    if plan.has_fixed_served_agent:
        return
    if has_weights(Path(plan.agent.model)):
        yield from _failure("agent.model", check_weights, Path(plan.agent.model))
        if find_spec("transformers") is not None:  # it may be installed on the agent's machine only
            remedy = "copy that of the model into the folder, or give another"
            yield from _failure("agent.model", check_tokenizer, Path(plan.agent.model), remedy)
    else:
        text = f"{plan.agent.model} is not the folder of a model: give one (hf download makes it)"
        yield KeyProblem(["agent.model"], text)


def _failure(key: str, check: Callable[..., object], *args: Any, **options: Any) -> Iterator[KeyProblem]:
    """Yield a problem of this key if `check`, called with the further arguments, raises one of FAULTS."""
    try:
        check(*args, **options)
    except FAULTS as error:
        yield KeyProblem([key], error_text(error))


def _check_corpus(path: Path, skip_bad_rows: bool) -> None:
    """Raise DataError unless the first rows of the corpus are passages."""
    check_first_rows(Corpus([path]), skip_bad_rows)


def _skips_bad_rows(options: Mapping[str, Any]) -> bool:
    """Return whether the options of a command let it leave out bad rows."""
    return any(option_name(key) == "skip_bad_rows" and value is True for key, value in options.items())


def _reserved_keys(plan: LoopPlan) -> Iterator[KeyProblem]:
    """Yield a problem for each option or key that the loop sets itself."""
    for name, reserved in _RESERVED_OPTIONS.items():
        section = getattr(plan, name)
        for option in section.options if section is not None else ():
            if option_name(option) in reserved:
                yield KeyProblem([f"{name}.options.{option}"], "the loop sets it: leave it out")
            elif option_name(option) == "base_url" and plan.agent.recipe is not None:
                text = "the agent is trained, so the loop serves it: leave it out"
                yield KeyProblem([f"{name}.options.{option}"], text)
    for key, overrides in (("agent.overrides", plan.agent.overrides), ("agent.keys", plan.agent.keys)):
        yield from (KeyProblem([key], text) for override in overrides if (text := _refusal(key, override)))


def _refusal(section_key: str, override: str) -> str | None:
    """Return why an override is refused under this key of the plan; None if it is correct."""
    key, equals, _ = override.partition("=")
    if not (equals or (section_key == "agent.overrides" and is_override(override))):
        return f"{override} is not key=value"
    if key.lstrip("+~") in _RESERVED_KEYS:
        return f"{key} is set by the loop: leave it out"
    if section_key == "agent.keys" and not key.startswith("rag_r1."):
        return f"{key} is not a key of rag_r1; keys of trainings belong in agent.overrides"
    return None


def _recipe_problems(plan: LoopPlan) -> Iterator[KeyProblem]:
    """Yield the problems of the agent's recipe, if it does not exist or cannot be composed with its
    overrides."""
    if plan.agent.recipe is None:
        return
    try:
        recipe = Recipe.find(plan.agent.recipe)
    except RecipeError as error:
        yield KeyProblem(["agent.recipe"], str(error))
        return
    accepted = (each for each in plan.agent.overrides if _refusal("agent.overrides", each) is None)
    if overrides := [override.replace("{round}", "1") for override in accepted]:
        try:
            check_composition(recipe, overrides)
        except StartError as error:
            yield from (KeyProblem(["agent.overrides"], problem) for problem in error.problems)
        except ModuleNotFoundError:  # veRL may be installed on the machine of the trainings only
            return
        except RunError as error:
            yield KeyProblem(["agent.recipe"], str(error))


def _refused_options(plan: LoopPlan) -> Iterator[KeyProblem]:
    """Yield the problems of options that a command would refuse, and of the agent's protocol and keys."""
    commands = StepCommands(plan, _PLACEHOLDER_URL)
    model, query, folder = plan.agent.model, plan.index.first_query, Path("OUT")
    makers: dict[str, Callable[..., Any]] = {"evaluation": commands.evaluation_arguments}
    if plan.data is not None:
        makers["data"] = commands.data_arguments
    # Wrong options must not hide the problems of protocol and keys.
    evaluation = replace(plan.evaluation, options={})
    without_options = StepCommands(replace(plan, evaluation=evaluation), _PLACEHOLDER_URL)
    with suppress(ArgumentsError):
        yield from _agent_problems("evaluation", without_options.evaluation_arguments(model, query, folder))
    for section, make_arguments in makers.items():
        try:
            yield from _agent_problems(section, make_arguments(model, query, folder))
        except ArgumentsError as error:
            yield KeyProblem([f"{section}.options"], str(error))
    if plan.retriever is None:
        return
    try:
        start = commands.retriever_options(folder, None, folder).model
    except RecipeError as error:
        yield KeyProblem(["retriever.recipe"], str(error))
    except ArgumentsError as error:
        yield KeyProblem(["retriever.recipe", "retriever.options"], str(error))
    else:
        yield from _index_problems(plan, start)


def _index_problems(plan: LoopPlan, encoder: str) -> Iterator[KeyProblem]:
    """Yield the problem of the index options if `rag-r1 index build` refuses them.

    The command is run with `--check-only` and `encoder`, the model from which the retriever's training
    starts. Nothing is checked if the index is built on another machine, if the encoder would have to be
    downloaded, or if the corpus or the options have problems that are reported anyway.
    """
    assert plan.retriever is not None  # else no index is built
    launcher, python = plan.retriever.machine
    is_this_machine = not launcher and python == sys.executable
    is_here = encoder == EMBEDDED or Path(encoder).is_dir()
    has_corpus = all(Path(path).exists() for path in plan.index.corpus)
    reserved = {*map(option_name, plan.index.options)} & _RESERVED_OPTIONS["index"]
    if not (is_this_machine and is_here and has_corpus) or reserved:
        return
    command = [*StepCommands(plan, _PLACEHOLDER_URL).index(Path(encoder), Path("OUT")), "--check-only"]
    process = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=server_environment()
    )
    if process.returncode:
        yield KeyProblem(["index.options"], " ".join(last_lines(process.stderr).split()))


def _agent_problems(section: str, args: EvalArguments | DataArguments) -> Iterator[KeyProblem]:
    """Yield the problems of the agent's protocol, keys or prompt, and of its reward term, in the arguments of
    a command that plays it."""
    keys = ["agent.protocol", "agent.keys", "options.prompt"]
    try:
        config, faults = RagR1Config.read(block_of(args, validation_limits(args.protocol)))
    except ValueError as error:
        yield KeyProblem(keys, str(error))
        return
    assert config is not None  # the block is a mapping
    faults += search_faults(config)
    yield from (KeyProblem(keys, str(fault)) for fault in faults)
    if faults:
        return
    yield from _failure(f"{section}.options", reward_of, args, config)
