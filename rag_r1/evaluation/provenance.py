"""Writes the provenance of an evaluation when it starts, and checks it when the run resumes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rag_r1.config.agent_setup import AgentSetup
from rag_r1.evaluation.baselines import Condition
from rag_r1.evaluation.eval_arguments import PolicyArguments
from rag_r1.evaluation.judge import description
from rag_r1.evaluation.target import vllm_version
from rag_r1.inference.checkpoints import step_of
from rag_r1.rollouts.engine_factory import IDS
from rag_r1.rollouts.provenance import Provenance, find_differences, make_provenance
from rag_r1.rollouts.provenance_facts import PASSING, ProvenanceError
from rag_r1.rollouts.session import RunSetup
from rag_r1.runs.errors import RunError
from rag_r1.runs.settings import refuse_changes
from rag_r1.tools.registry import DEFAULT_TOOL
from rag_r1.tools.retrieval.client import RetrieverConfig

#: What must not change within a run, beside its settings (rag_r1/runs/folder.py).
_FIXED = ("model.", "protocol.", "corpus_sha256", "retriever.ready.", "index.", "data.")


def write_provenance(
    args: PolicyArguments, ready: RunSetup, condition: Condition, setup: AgentSetup, answers: str, out: Path
) -> Provenance:
    """Write the card of a run, of which `setup` is the agent for its first question; `answers`: what the
    server returns (rag_r1/rollouts/engine_factory.py).

    If the folder has one, the run goes on: the card keeps its start. Raises RunError if something has changed
    since that the result depends on."""
    try:
        card = _card(args, ready, condition, setup, answers)
        before = Provenance.read(out)
    except ProvenanceError as error:
        raise RunError(str(error)) from error
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


def _card(
    args: PolicyArguments, ready: RunSetup, condition: Condition, setup: AgentSetup, answers: str
) -> Provenance:
    folder, tokenizer = Path(args.model), ready.tokens.name
    tool = ready.retriever.get("tool") or DEFAULT_TOOL
    options = {key: value for key, value in ready.retriever.items() if key != "tool"}
    asks_server = condition.searches and tool == DEFAULT_TOOL
    engine: dict[str, Any] = {
        "api": args.engine,
        "answers": answers,
        "tokenizer": "the model's" if tokenizer == args.model else _name(tokenizer),
        "body": json.loads(args.body),
    }
    assert args.base_url is not None
    if version := vllm_version(args.base_url, args.api_key_env):
        engine["vllm"] = version
    if args.vllm_options:
        engine["vllm_options"] = args.vllm_options
    if tool != DEFAULT_TOOL:
        engine["search_tool"] = {"tool": tool, **options}
    card = make_provenance(
        model=folder if folder.is_dir() else args.model,
        protocol=setup.protocol,
        budget=setup.budget,
        sampling={"temperature": args.temperature, "top_p": args.top_p, "samples": args.samples},
        engine_mode="tokens" if answers == IDS else "text",
        condition=condition.name,
        judge=description(args),
        failures=setup.failures,
        engine=engine,
        seed=args.seed,
        retriever=RetrieverConfig.from_config(options) if asks_server else None,
        index=args.index if condition.searches else None,
        data=args.questions,
    )
    step = step_of(folder) if folder.is_dir() else None
    if step is None:
        return card
    return card.model_copy(update={"model": card.model.model_copy(update={"name": step})})
