"""Writes the provenance of an eval, traces or filter when it starts, and checks it when the run resumes."""

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
from rag_r1.rollouts.engine_factory import IDS
from rag_r1.rollouts.provenance import Provenance, find_differences, make_provenance
from rag_r1.rollouts.provenance_facts import PASSING
from rag_r1.rollouts.session import RunSession
from rag_r1.runs.errors import RunError
from rag_r1.runs.settings import refuse_changes
from rag_r1.tools.registry import DEFAULT_TOOL
from rag_r1.tools.retrieval.client import RetrieverConfig

#: What must not change within a run, beside its settings (rag_r1/runs/folder.py).
_FIXED = ("model.", "protocol.", "corpus_sha256", "retriever.ready.", "index.", "data.")


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
    """Write the card of a run that asks this model. `setup`: the agent of its first question, if it is not
    the run's; `parts`: further parts of `make_provenance`, such as `sampling`.

    If the folder has a card, the run goes on: the card keeps its start. Raises RunError if something has
    changed since that the result depends on."""
    setup, out, folder = setup or run.ready.setup, run.folder.out, Path(model)
    tool = run.ready.retriever.get("tool") or DEFAULT_TOOL
    options = {key: value for key, value in run.ready.retriever.items() if key != "tool"}
    engine = _engine(args, run, model)
    if tool != DEFAULT_TOOL:
        engine["search_tool"] = {"tool": tool, **options}
    card = make_provenance(
        model=folder if folder.is_dir() else model,
        protocol=setup.protocol,
        budget=setup.budget,
        engine_mode="tokens" if run.answers == IDS else "text",
        condition=condition,
        failures=setup.failures,
        engine=engine,
        seed=args.seed,
        retriever=RetrieverConfig.from_config(options) if searches and tool == DEFAULT_TOOL else None,
        index=index if searches else None,
        data=args.questions,
        **parts,
    )
    before = Provenance.read(out)
    step = checkpoint_name(folder) if folder.is_dir() else None
    if step is not None:
        card = card.model_copy(update={"model": card.model.model_copy(update={"name": step})})
    if before is not None:
        changes = {key: v for key, v in find_differences([before, card]).items() if None not in v}
        was, now = ({key: v[i] for key, v in changes.items() if _is_fixed(key)} for i in range(2))
        refuse_changes(out, was, now, "Restore them to go on, or choose another --out")
        others = [key for key in changes if key.startswith(("versions.", "commit.", "machine."))]
        if others:
            print(f"{out} goes on, but these differ from its start: {', '.join(others)}", file=sys.stderr)
        card = card.model_copy(update={"started": before.started})
    card.write(out)
    return card


def _is_fixed(key: str) -> bool:
    return key.startswith(_FIXED) and key not in {f"retriever.ready.{name}" for name in PASSING}


def _name(tokenizer: str) -> str:
    """Of a folder its own name, not its path on this machine."""
    folder = Path(tokenizer)
    return folder.resolve().name if folder.is_dir() else tokenizer


def _engine(args: RolloutArguments, run: RunSession, model: str) -> dict[str, Any]:
    tokenizer = run.ready.tokens.name
    engine: dict[str, Any] = {
        "api": args.engine,
        "answers": run.answers,
        "tokenizer": "the model's" if tokenizer == model else _name(tokenizer),
        "body": json.loads(args.body),
    }
    with suppress(RunError):  # behind a proxy the endpoint answers only its client
        if version := vllm_version(run.endpoint.options.url, args.api_key_env):
            engine["vllm"] = version
    if vllm_options := getattr(args, "vllm_options", None):
        engine["vllm_options"] = vllm_options
    return engine
