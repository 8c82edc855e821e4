"""Writes the provenance of an eval, traces or filter run when it starts, and checks it on resuming."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from rag_r1.config.agent_setup import AgentSetup
from rag_r1.evaluation.target import vllm_version
from rag_r1.inference.model_folders import checkpoint_name
from rag_r1.rollouts.arguments import RolloutArguments
from rag_r1.rollouts.provenance import Provenance, find_differences, make_provenance
from rag_r1.rollouts.provenance_facts import VOLATILE_KEYS
from rag_r1.rollouts.response_format import IDS
from rag_r1.rollouts.session import RunSession
from rag_r1.runs.errors import RunError
from rag_r1.runs.settings import refuse_changes
from rag_r1.tools.registry import DEFAULT_TOOL
from rag_r1.tools.retrieval.client import RetrieverConfig

#: Keys that must not change within a run, beside its settings (rag_r1/runs/folder.py), and those whose change
#: is only printed.
_FIXED = ("model.", "protocol.", "corpus_sha256", "retriever.ready.", "index.", "data.")
_REPORTED = ("versions.", "commit.", "machine.")


def write_provenance(
    args: RolloutArguments,
    run: RunSession,
    model: str,
    *,
    condition: str = "agent",
    setup: AgentSetup | None = None,
    searches: bool = True,
    index: Path | None = None,
    **parts: Any,
) -> Provenance:
    """Write the provenance of a run of this model. `setup`: the agent of its first question, if it is not the
    run's; `parts`: further parts of `make_provenance`, such as `sampling`.

    A run that resumes keeps its start. Raises RunError if something that the result depends on has changed
    since."""
    setup, folder = setup or run.ready.setup, Path(model)
    retriever = dict(run.ready.retriever)
    tool = retriever.pop("tool", None) or DEFAULT_TOOL
    provenance = make_provenance(
        model=folder if folder.is_dir() else model,
        protocol=setup.protocol,
        budget=setup.budget,
        engine_mode="tokens" if run.answers == IDS else "text",
        condition=condition,
        failures=setup.failures,
        engine=_engine_options(args, run, model),
        seed=args.seed,
        retriever=RetrieverConfig.from_config(retriever) if searches and tool == DEFAULT_TOOL else None,
        index=index if searches else None,
        data=args.questions,
        **parts,
    )
    if folder.is_dir() and (name := checkpoint_name(folder)) is not None:
        model_part = provenance.model.model_copy(update={"name": name})
        provenance = provenance.model_copy(update={"model": model_part})
    provenance = _resumed(run.folder.out, provenance)
    provenance.write(run.folder.out)
    return provenance


def _resumed(out: Path, current: Provenance) -> Provenance:
    """With the start of the run that resumes. Raises RunError for a change that the result depends on; prints
    a line for one of the software or the machine."""
    if (earlier := Provenance.read(out)) is None:
        return current
    # A value that only one of the two starts could find out is no change.
    changes = {key: pair for key, pair in find_differences([earlier, current]).items() if None not in pair}
    fixed = {key: pair for key, pair in changes.items() if _is_fixed(key)}
    earlier_values, current_values = ({key: pair[i] for key, pair in fixed.items()} for i in range(2))
    refuse_changes(out, earlier_values, current_values, "Restore them to go on, or choose another --out")
    if reported_keys := [key for key in changes if key.startswith(_REPORTED)]:
        print(f"{out} goes on, but these differ from its start: {', '.join(reported_keys)}", file=sys.stderr)
    return current.model_copy(update={"started": earlier.started})


def _is_fixed(key: str) -> bool:
    """Whether a run must not go on if this changes."""
    return key.startswith(_FIXED) and key not in {f"retriever.ready.{name}" for name in VOLATILE_KEYS}


def _engine_options(args: RolloutArguments, run: RunSession, model: str) -> dict[str, Any]:
    tokenizer = run.ready.tokens.name
    options: dict[str, Any] = {
        "api": args.engine,
        "answers": run.answers,
        "tokenizer": "the model's" if tokenizer == model else _name_of(tokenizer),
        "body": json.loads(args.body),
    }
    with suppress(RunError):  # behind a proxy the endpoint answers only its client
        if version := vllm_version(run.endpoint.options.url, args.api_key_env):
            options["vllm"] = version
    if vllm_options := getattr(args, "vllm_options", None):
        options["vllm_options"] = vllm_options
    if (tool := run.ready.retriever.get("tool") or DEFAULT_TOOL) != DEFAULT_TOOL:
        options["search_tool"] = {"tool": tool, **run.ready.retriever}
    return options


def _name_of(tokenizer: str) -> str:
    """The name of a tokenizer's folder, not its path on this machine, or its name on the Hub."""
    folder = Path(tokenizer)
    return folder.resolve().name if folder.is_dir() else tokenizer
