"""The steps of `rag-r1 own` that make data: passages, index, questions, traces and SFT samples.

    documents    cuts the documents into a corpus of passages            `rag-r1 documents`
    index        builds the index that the retrieval server serves       `rag-r1 index build`
    questions    writes questions, or copies the user's own ones         `rag-r1 questions`
    traces       lets the teacher play the training questions            `rag-r1 traces`
    sft_data     cuts the right traces into SFT samples                  `rag-r1 sft-data`

Each step calls the function of the command at its right, and can be resumed like the command. If a cost limit
or a server stops the teacher, the step fails with an error, and is resumed when `rag-r1 own` is run again.
The step of the questions is in questions_step.py.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

from rag_r1.config.recipes import Recipe
from rag_r1.io.atomic_files import write_text
from rag_r1.io.bounded_json import read_json_object
from rag_r1.io.file_hash import names_and_sizes_hash
from rag_r1.options.settings_file import recorded_settings
from rag_r1.own.artifacts import OwnArtifacts, own_step
from rag_r1.own.questions_step import questions_step
from rag_r1.runs.errors import RunError
from rag_r1.runs.steps import PipelineFolder, Step, fingerprint
from rag_r1.sft.data import check_start, make_samples
from rag_r1.sft.data_arguments import SftDataArguments
from rag_r1.sft.traces_command import SUMMARY, TRACES, TracesArguments, make_traces
from rag_r1.tools.documents.corpus import CORPUS, document_files, index_folder
from rag_r1.tools.retrieval.local_server import build_index
from rag_r1.training.composition import check_composition

#: Time limit for building an index, in seconds. With an encoder and many passages it takes hours.
_INDEX_S = 86_400.0
#: Bounds of the share of the questions that SFT is validated on.
_MIN_VALIDATION, _MAX_VALIDATION = 0.05, 0.3


def data_steps(artifacts: OwnArtifacts, pipeline: PipelineFolder) -> list[Step]:
    """Return the steps that make data, in order. `pipeline` has the facts of finished steps. Raises RunError
    if there are no documents, and OSError if a document or a file of passages cannot be read."""
    plan = artifacts.plan
    steps = [] if plan.documents.corpus else [_documents(artifacts)]
    steps += [_index(artifacts), questions_step(artifacts)]
    return steps if plan.sft.skip else [*steps, _traces(artifacts, pipeline), _sft_data(artifacts, pipeline)]


def _documents(artifacts: OwnArtifacts) -> Step:
    """Make the step that cuts the documents into passages."""
    documents = artifacts.plan.documents
    assert documents.folder is not None  # checks.py requires it if there is no corpus
    source = Path(documents.folder)
    names = [path.relative_to(source).as_posix() for path in document_files(source, artifacts.out)]
    settings = {"content": fingerprint(source, names), "skip_bad_files": documents.skip_bad_files}

    def work(folder: Path) -> dict[str, Any]:
        corpus = index_folder(source, folder, run=artifacts.out, skip_bad_files=documents.skip_bad_files)
        with corpus.open("rb") as lines:  # passages of the documents that could be read
            files = [json.loads(line)["file"] for line in lines]
        return {"documents": len(set(files)), "passages": len(files)}

    return own_step("documents", settings, work, (CORPUS,))


def _index(artifacts: OwnArtifacts) -> Step:
    """Make the step that indexes the passages."""
    plan = artifacts.plan
    settings: dict[str, Any] = {"backend": plan.index.backend, "encoder": plan.index.encoder}
    if plan.documents.corpus:
        settings["corpus"] = [names_and_sizes_hash(path) for path in artifacts.corpus]
    options = ["--backend", plan.index.backend]
    options += ["--encoder", str(plan.index.encoder)] if plan.index.backend == "dense" else []

    def work(folder: Path) -> dict[str, Any]:
        index = folder / "index"
        shutil.rmtree(index, ignore_errors=True)  # an interrupted build may have left a part of it
        first, *others = artifacts.corpus
        build_index(first, index, *options, more_corpora=others, timeout_s=_INDEX_S)
        return {"passages": read_json_object(index / "manifest.json")["count"]}

    needs = () if plan.documents.corpus else ("documents",)
    return own_step("index", settings, work, ("index/manifest.json",), needs)


def _traces(artifacts: OwnArtifacts, pipeline: PipelineFolder) -> Step:
    """Make the step in which the teacher plays the training questions."""
    plan, teacher = artifacts.plan, artifacts.plan.teacher
    settings = {
        "teacher": teacher.model,
        "body": dict(teacher.body),
        "questions": plan.traces.questions,
        "samples": plan.traces.samples,
        "metric": plan.traces.metric,
        "seed": plan.run.seed,
        "playing": artifacts.episodes.teacher_arguments,
        "prompt": artifacts.episodes.teacher_prompt,
    }

    def work(folder: Path) -> dict[str, Any]:
        with artifacts.retriever(folder) as url:
            args = traces_arguments(artifacts, folder, url, _remaining_cost(plan.teacher.max_cost, pipeline))
            with recorded_settings("rag-r1 traces", args):
                if asyncio.run(make_traces(args)):
                    raise RunError("the traces are not complete (see above): the same command goes on")
        summary = read_json_object(folder / SUMMARY)
        return {key: summary[key] for key in ("judged", "right", "accuracy", "failed", "usage", "cost")}

    return own_step("traces", settings, work, (TRACES,), ("index", "questions"))


def traces_arguments(
    artifacts: OwnArtifacts, folder: Path, url: str, max_cost: float | None
) -> TracesArguments:
    """Return the arguments of `rag-r1 traces`, with the retrieval server at `url`.

    Also writes the teacher's prompt into the folder of the step, since the command reads it from a file.
    """
    plan, model = artifacts.plan, artifacts.plan.teacher_spec
    prompt = folder / "prompt.txt"
    write_text(prompt, artifacts.episodes.teacher_prompt)
    return TracesArguments.from_plain(
        {
            "questions": [artifacts.questions("train")],
            "out": folder,
            "base_url": model.url,
            "teacher_model": model.model,
            "api_key_env": model.key_variable,
            "body": json.dumps(dict(model.body)),
            "price_in": model.price_in,
            "price_out": model.price_out,
            "max_cost": max_cost,
            "in_flight": plan.teacher.in_flight,
            "samples": plan.traces.samples,
            "limit": plan.traces.questions,
            "term": "em" if plan.traces.metric == "any" else plan.traces.metric,
            "seed": plan.run.seed,
            "retriever_url": url,
            "tokenizer": str(artifacts.untrained_model),
            "prompt": str(prompt),
            **artifacts.episodes.teacher_arguments,
        }
    )


def _remaining_cost(max_cost: float | None, pipeline: PipelineFolder) -> float | None:
    """Return what the questions have left of the cost limit; None if there is no limit. Raises RunError if
    nothing is left."""
    if max_cost is None:
        return None
    remaining = max_cost - pipeline.facts("questions").get("cost", 0.0)
    if remaining <= 0:
        raise RunError(f"teacher.max_cost {max_cost:g} is spent on the questions: give a higher one to go on")
    return remaining


def _sft_data(artifacts: OwnArtifacts, pipeline: PipelineFolder) -> Step:
    """Make the step that cuts the right traces into samples for SFT."""
    plan, episodes = artifacts.plan, artifacts.episodes
    settings = {
        "model": artifacts.model_hash,
        "protocol": plan.policy.protocol,
        "prompt": plan.protocol.user_prompt,
        "metric": plan.traces.metric,
        "turn_tokens": episodes.turn_tokens,
        "context": episodes.context_tokens,
        "seed": plan.run.seed,
    }

    def work(folder: Path) -> dict[str, Any]:
        args = SftDataArguments(
            traces=[artifacts.out / "traces" / TRACES],
            model=str(artifacts.untrained_model),
            protocol=plan.policy.protocol,
            prompt=plan.policy.prompt,
            format="verl",
            metric=plan.traces.metric,
            seed=plan.run.seed,
            out=folder,
            validation=_validation_share(artifacts, pipeline.facts("traces")["right"]),
            max_context=episodes.context_tokens - episodes.turn_tokens,
            max_target=episodes.turn_tokens,
        )
        with recorded_settings("rag-r1 sft-data", args):
            summary = make_samples(args, check_start(args))
        left_out = {name: entry["count"] for name, entry in summary["left_out"].items()}
        return {"samples": summary["splits"]["train"]["samples"], "left_out": left_out}

    return own_step("sft_data", settings, work, ("train.parquet",), ("traces",))


def _validation_share(artifacts: OwnArtifacts, right_traces: int) -> float:
    """Return the share of the questions that SFT is validated on, given the number of right traces.

    The share is chosen so that its traces yield at least one batch, since veRL drops an incomplete one, but
    is at most _MAX_VALIDATION: if the traces are too few for that, the checks of the training refuse them.
    Raises RunError if the recipe cannot be composed.
    """
    plan = artifacts.plan.sft
    batch = check_composition(Recipe.find(str(plan.recipe)), plan.overrides).data.train_batch_size
    return min(_MAX_VALIDATION, max(_MIN_VALIDATION, batch / max(1, right_traces)))
