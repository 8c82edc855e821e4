"""Checks a plan before anything is started, and reports all problems at once, including those of servers.

Arguments of later commands are built here if they do not depend on earlier steps, and both training recipes
are composed, so that an error that would otherwise stop the run after a day of training is found now. The
training data cannot be checked here, since earlier steps make it; the preflight of each training checks it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rag_r1.config.recipes import Recipe, fault_of_kind
from rag_r1.corpus.inputs import check_first_rows
from rag_r1.corpus.reader import Corpus
from rag_r1.data.files.near_duplicates import require_library
from rag_r1.data.rows import QuestionRow
from rag_r1.inference.model_folders import check_weights, has_weights, is_hub_name
from rag_r1.inference.tokenizer import check_tokenizer
from rag_r1.io.terminal_text import terminal_text
from rag_r1.own.artifacts import OwnArtifacts
from rag_r1.own.episodes import ANY_URL
from rag_r1.own.evaluation_steps import eval_arguments, evaluations
from rag_r1.own.plan import OwnPlan
from rag_r1.own.questions_step import questions_spec, read_own_questions, refuse_shared
from rag_r1.own.sizes import with_recipes
from rag_r1.own.training_steps import sft_overrides
from rag_r1.protocols import load_with_prompt
from rag_r1.retriever.training.encoder import EMBEDDED
from rag_r1.rollouts.one_shot import PASSAGES_FIELD
from rag_r1.rollouts.server_check import ModelServer, check_endpoint, check_replies
from rag_r1.runs.errors import RunError
from rag_r1.runs.start_checks import StartChecks, StartError, check_packages, try_servers
from rag_r1.runs.steps import PipelineFolder
from rag_r1.system.installation import require
from rag_r1.tools.documents.corpus import count_passages, document_files
from rag_r1.training.composition import check_composition, check_overrides
from rag_r1.training.stages import check_stage_keys


def with_teacher_name(plan: OwnPlan) -> OwnPlan:
    """Return the plan with the name of the teacher's model.

    If the plan names none, the server is asked for it. Raises RunError if the server does not list exactly
    one model, or does not answer.
    """
    teacher = plan.teacher
    if not plan.needs_teacher or teacher.url is None or teacher.model is not None:
        return plan
    server = ModelServer(teacher.url, teacher.api_key_env, name="teacher", flag="--teacher")
    models = list(check_endpoint(server))
    if len(models) != 1:
        names = ", ".join(terminal_text(name, 200) for name in models[:5])
        models_text = f"lists {names}" if models else "lists no models"
        raise RunError(f"--teacher {teacher.url} {models_text}: name the teacher's with --teacher-model")
    return replace(plan, teacher=replace(teacher, model=models[0]))


def check_plan(artifacts: OwnArtifacts, folder: PipelineFolder, knows_teacher: bool = True) -> None:
    """Check a plan, the files that it names, and the servers that its unfinished steps need.

    A plan that names a model must have all recipes. `folder` tells which steps are finished.
    `knows_teacher` says whether the name of the teacher's model is known; otherwise the arguments that
    contain it are not checked. Raises ModuleNotFoundError if a package of the trainings is missing, and
    StartError with all other problems.
    """
    plan = artifacts.plan
    require("verl", *(["vllm"] if plan.policy.url is None else []))
    with StartChecks() as checks:
        checks.run(_check_contradictions, plan)
        checks.run(_check_unused_encoder, plan, folder)
        _check_files(artifacts, checks)
        if plan.writes_questions:
            checks.run(require_library)
        if plan.policy.model is not None:
            _check_overrides(artifacts, checks)
        if knows_teacher and not checks.problems:
            _check_arguments(artifacts, checks)
        checks.run(lambda: asyncio.run(_try_models(plan, folder)))


def other_problems(artifacts: OwnArtifacts, wrong_sections: Set[str]) -> list[str]:
    """Return the further problems of a plan in which something is wrong in `wrong_sections`: those of the
    files, servers and overrides that it names, and contradictions between its other sections."""
    checks, folder = StartChecks(), PipelineFolder(artifacts.out)
    checks.run(_check_contradictions, artifacts.plan, wrong_sections)
    checks.run(check_packages, "rag-r1 own", "verl")
    _check_files(artifacts, checks)
    checks.run(check_documents, artifacts, folder)
    if artifacts.plan.policy.model is not None:
        if (complete_plan := checks.run(with_recipes, artifacts.plan)) is not None:
            _check_overrides(OwnArtifacts(complete_plan, artifacts.out), checks)
    plan = checks.run(with_teacher_name, artifacts.plan) or artifacts.plan
    checks.run(lambda: asyncio.run(_try_models(plan, folder)))
    return checks.problems


def check_documents(artifacts: OwnArtifacts, folder: PipelineFolder) -> None:
    """Read the documents, unless the step that does so is finished. Raises RunError if that fails."""
    documents = artifacts.plan.documents
    if documents.folder is not None and folder.seconds("documents") is None:
        count_passages(Path(documents.folder), artifacts.out, skip_bad_files=documents.skip_bad_files)


def _check_folder(documents: Path, out: Path) -> None:
    """Raise RunError if the folder has no documents, or is that of the run, whose files would become
    documents at the next start."""
    if documents.resolve() == out.resolve():
        raise RunError(f"documents.folder {documents} is also --out: choose another --out")
    document_files(documents, out)


def _check_files(artifacts: OwnArtifacts, checks: StartChecks) -> None:
    """Check the documents, passages, prompts, questions, model, encoder and recipes that the plan names."""
    plan = artifacts.plan
    if plan.documents.folder is not None:
        checks.run(_check_folder, Path(plan.documents.folder), artifacts.out)
    if plan.documents.corpus:
        checks.run_on_all(lambda paths: check_first_rows(Corpus(paths)), artifacts.corpus)
    protocol = checks.run(load_with_prompt, plan.policy.protocol, plan.policy.prompt, "policy.prompt")
    if plan.evaluation.one_shot and not plan.evaluation.skip:
        checks.run(_check_one_shot_prompt, plan.evaluation.one_shot_prompt)
    rows: dict[str, list[QuestionRow]] = {}
    for split, paths in (("train", plan.questions.train), ("test", plan.questions.test)):
        if protocol is not None and paths:
            rows[split] = checks.run_on_all(partial(read_own_questions, protocol=protocol), paths) or []
    if plan.trains:
        checks.run(refuse_shared, rows)
    if plan.policy.model is not None:
        checks.run(_check_model, plan)
    if plan.index.encoder is not None:
        checks.run(_check_encoder, plan.index.encoder)
    for section in (plan.sft, plan.grpo):
        if section.recipe is not None and not section.skip:
            checks.run(Recipe.find, section.recipe)
    checks.run(_check_kinds, plan)


def _faults_of_kinds(plan: OwnPlan) -> dict[str, str]:
    """Return the faults of recipes that are for another command, by the section that names them."""
    sections = {"sft": ("--sft-recipe", plan.sft, "sft"), "grpo": ("--recipe", plan.grpo, "train")}
    faults = {}
    for name, (flag, section, kind) in sections.items():
        with suppress(RunError):  # a recipe that is not there has a problem of its own
            if section.recipe is not None and not section.skip:
                fault = fault_of_kind(Recipe.find(section.recipe).path, kind)
                faults |= {name: f"{flag} {fault}"} if fault else {}
    return faults


def _check_kinds(plan: OwnPlan) -> None:
    """Raise StartError for recipes that are for another command."""
    if faults := _faults_of_kinds(plan):
        raise StartError([*faults.values()])


def _check_encoder(name: str) -> None:
    """Raise RunError unless `name` is the folder of a model, or the name of one on the Hub."""
    folder = Path(os.path.expanduser(name))  # Path.expanduser raises RuntimeError for an unknown user
    if folder.is_dir():
        check_weights(folder)
    elif name != EMBEDDED and not is_hub_name(name):
        raise RunError(f"index.encoder: {name} is not the folder of a model: give one, or a name on the Hub")


def _check_one_shot_prompt(path: str | None) -> None:
    """Raise ProtocolError or RunError for a prompt of one search that cannot be read, or that has no place
    for the question or for the passages."""
    key = "evaluation.one_shot_prompt"
    if path is not None and PASSAGES_FIELD not in load_with_prompt("rag_r1_mq", path, key).user_prompt:
        raise RunError(f"{key} {path} has no {PASSAGES_FIELD}: write it where the passages belong")


def _check_unused_encoder(plan: OwnPlan, folder: PipelineFolder) -> None:
    """Raise RunError for an encoder that the index would not use. A run that has its index goes on."""
    if plan.index.encoder is not None and plan.index.backend != "dense" and folder.seconds("index") is None:
        raise RunError("index.encoder needs index.backend=dense: give that, too, or leave the encoder out")


def _check_overrides(artifacts: OwnArtifacts, checks: StartChecks) -> None:
    """Check that both training recipes can be composed, and the values of keys that the plan changes. A
    recipe for another command is not composed, since it has none of these keys."""
    plan, episodes = artifacts.plan, artifacts.episodes
    others = _faults_of_kinds(plan)
    config = None if "grpo" in others else checks.run(lambda: episodes.config)
    checks.run(check_stage_keys, plan.grpo.overrides)
    if "grpo" not in others and (plan.grpo.overrides or plan.policy.keys):
        checks.run(lambda: check_overrides(Recipe.find(str(plan.grpo.recipe)), episodes.composed_overrides))
    if not plan.sft.skip and "sft" not in others:
        check_sft = check_overrides if plan.sft.overrides else check_composition
        overrides = None if config is None else checks.run(sft_overrides, artifacts)
        checks.run(lambda: check_sft(Recipe.find(str(plan.sft.recipe)), overrides or plan.sft.overrides))


def _check_arguments(artifacts: OwnArtifacts, checks: StartChecks) -> None:
    """Check that the arguments of those commands can be built which do not depend on earlier steps."""
    if artifacts.plan.writes_questions:
        checks.run(questions_spec, artifacts)
    for evaluation in evaluations(artifacts):
        if not evaluation.needs:
            checks.run(eval_arguments, artifacts, evaluation, ANY_URL)


def _check_contradictions(plan: OwnPlan, wrong_sections: Set[str] = frozenset()) -> None:
    """Raise StartError with the contradictions in a plan that are not about any of the wrong sections."""
    if problems := [text for names, text in _contradictions(plan) if wrong_sections.isdisjoint(names)]:
        raise StartError(problems)


def _contradictions(plan: OwnPlan) -> Iterator[tuple[Sequence[str], str]]:
    """Yield (names of sections, message) for each key that contradicts another one of these sections, or is
    missing although another needs it."""
    documents, questions, teacher, reader = plan.documents, plan.questions, plan.teacher, plan.reader
    training = ["sft", "grpo"]
    if bool(documents.folder) == bool(documents.corpus):
        text = "documents: give a FOLDER, or documents.corpus with files of passages, and not both"
        yield ["documents"], text
    if plan.index.backend == "dense" and plan.index.encoder is None:
        yield ["index"], "index.backend dense needs index.encoder, a model of sentence embeddings"
    if plan.policy.model is None:
        yield ["policy"], "policy.model: give --model, the model that is trained"
    if plan.policy.url is not None and plan.trains:
        text = "policy.url is for an evaluation alone: leave it out, or give --evaluate-only"
        yield ["policy", *training], text
    if not plan.trains and plan.evaluation.skip:
        text = "evaluation.skip: nothing is left to do, since sft and grpo are left out too"
        yield ["evaluation", *training], text
    if plan.needs_teacher and teacher.url is None:
        purpose = "writes the questions" if plan.writes_questions else "plays the traces"
        sections = ["teacher", "questions", "sft"]
        yield sections, f"teacher.url: give --teacher, the address of the model that {purpose}"
    if reader.model is None and (reader.url is not None or reader.price_in or reader.price_out):
        text = "reader.model: give --reader-model, the model that reader.url or the reader's prices are for"
        yield ["reader"], text
    if questions.train and not questions.test:
        yield ["questions"], "questions.test: give --test-questions, held-out ones, beside --questions"
    if questions.test and not questions.train and plan.trains:
        text = "questions.train: give --questions to train on, beside --test-questions"
        yield ["questions", *training], text
    if plan.writes_questions and (questions.test_share == 0 or (questions.test_share == 1 and plan.trains)):
        purpose = "to train on" if questions.test_share else "for the evaluation"
        text = (
            f"questions.test_share {questions.test_share:g} leaves no questions {purpose}: give another share"
        )
        yield ["questions", *training], text
    if teacher.max_cost is not None and not (teacher.price_in or teacher.price_out):
        text = "teacher.max_cost needs teacher.price_in and teacher.price_out: give both, or leave it out"
        yield ["teacher"], text


def _check_model(plan: OwnPlan) -> None:
    """Raise RunError unless the policy's model is on a server, on the Hub, or in a complete folder."""
    name = str(plan.policy.model)
    if plan.policy.url is not None or is_hub_name(name):
        return
    remedy = "give one (`rag-r1 model get smollm2-135m`), or a name on the Hub"
    if not has_weights(Path(name)):
        raise RunError(f"policy.model: {name} is not the folder of a model: {remedy}")
    check_weights(Path(name))
    check_tokenizer(Path(name), remedy, "policy.model")


async def _try_models(plan: OwnPlan, folder: PipelineFolder) -> None:
    """Send a request to each model server that an unfinished step needs. One whose address is not known gets
    none, and one whose model is not known is only asked for its list.

    Raises StartError or RunError if a server does not answer, or does not have its model.
    """
    models = {}
    teacher, reader = plan.teacher, plan.reader
    writes_questions = plan.writes_questions and folder.seconds("questions") is None
    plays_traces = not plan.sft.skip and folder.seconds("traces") is None
    if teacher.url is not None and teacher.model is not None and (writes_questions or plays_traces):
        models["--teacher"] = plan.teacher_spec
    if writes_questions and (reader.url or teacher.url) is not None and plan.reader_spec is not None:
        models["--reader"] = plan.reader_spec

    attempts: list[Awaitable[Any]] = []
    if writes_questions and reader.url is not None and reader.model is None:
        server = ModelServer(reader.url, reader.api_key_env, flag="--reader")
        attempts.append(asyncio.to_thread(check_endpoint, server))
    for flag, spec in models.items():
        server = ModelServer(spec.url, spec.key_variable, spec.model, flag=flag, model_flag=f"{flag}-model")
        attempts.append(asyncio.to_thread(check_replies, server))
    if plan.policy.url is not None and not plan.trains:
        flags = {"flag": "policy.url", "model_flag": "policy.model"}
        server = ModelServer(plan.policy.url, "OPENAI_API_KEY", str(plan.policy.model), **flags)
        attempts.append(asyncio.to_thread(check_replies, server, "completions"))
    await try_servers(*attempts)
