"""Writes the provenance of an eval, traces or filter run when it starts, and checks it when it is resumed.

A run must not be resumed with another model, corpus or protocol: its episodes would not belong together.
Newer software or another machine is only reported.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rag_r1.config.agent_setup import AgentSetup
from rag_r1.inference.client import base_address
from rag_r1.inference.model_folders import checkpoint_name
from rag_r1.rollouts.arguments import RolloutArguments
from rag_r1.rollouts.provenance import Provenance, find_differences, make_provenance
from rag_r1.rollouts.provenance_facts import VOLATILE_KEYS
from rag_r1.rollouts.response_format import IDS
from rag_r1.rollouts.server_check import get_answer
from rag_r1.rollouts.session import RunSession
from rag_r1.runs.markdown import one_line_text
from rag_r1.runs.settings import refuse_changes
from rag_r1.tools.registry import DEFAULT_TOOL
from rag_r1.tools.retrieval.client import RetrieverConfig

#: Beginnings of keys that must not change within a run; its settings are checked elsewhere
#: (rag_r1/runs/folder.py).
_FIXED = ("model.", "protocol.", "corpus_sha256", "retriever.ready.", "index.", "data.")
#: Beginnings of keys whose change is only reported.
_REPORTED = ("versions.", "commit.", "machine.")


def write_provenance(
    args: RolloutArguments,
    session: RunSession,
    model: str,
    *,
    sampling: Mapping[str, Any],
    condition: str = "agent",
    setup: AgentSetup | None = None,
    searches: bool = True,
    index: Path | None = None,
    judge: Mapping[str, Any] | None = None,
) -> Provenance:
    """Write the provenance of a run of `model` into its folder, and return it.

    - `sampling`: the parameters with which the policy is sampled
    - `condition`, `searches`: the name of the condition (baselines.py), and whether it searches
    - `setup`: the agent of the first question if it is not the session's
    - `index`: the folder of the index that is searched
    - `judge`: the description of a judge (judge.py)

    A resumed run keeps the time of its first start. Raises RunError if something that the result depends on
    has changed since then or if the file of the first start cannot be read, OSError if the file cannot be
    written, and the errors of `make_provenance`.
    """
    setup = setup or session.run_setup.setup
    model_folder = Path(model)
    retriever = dict(session.run_setup.retriever)
    tool = retriever.pop("tool", None) or DEFAULT_TOOL
    provenance = make_provenance(
        model=model_folder if model_folder.is_dir() else model,
        protocol=setup.protocol,
        budget=setup.budget,
        engine_mode="tokens" if session.answers == IDS else "text",
        condition=condition,
        failures=setup.failures,
        engine=_engine_options(args, session, model),
        seed=args.seed,
        retriever=RetrieverConfig.from_config(retriever) if searches and tool == DEFAULT_TOOL else None,
        index=index if searches else None,
        data=args.questions,
        sampling=sampling,
        judge=judge,
    )
    if model_folder.is_dir() and (name := checkpoint_name(model_folder)) is not None:
        model_part = provenance.model.model_copy(update={"name": name})
        provenance = provenance.model_copy(update={"model": model_part})
    provenance = _continue_earlier(session.folder.out, provenance)
    provenance.write(session.folder.out)
    return provenance


def _continue_earlier(out: Path, current: Provenance) -> Provenance:
    """Return the current provenance, with the starting time of an earlier run in `out` if there is one.

    Prints a line if the software or the machine has changed since that run. Raises RunError if something that
    the result depends on has changed.
    """
    if (earlier := Provenance.read(out)) is None:
        return current
    # A value that is unknown in one of the two does not count as a change.
    changes = {key: pair for key, pair in find_differences([earlier, current]).items() if None not in pair}
    fixed = {key: pair for key, pair in changes.items() if _is_fixed(key)}
    earlier_values = {key: earlier_value for key, (earlier_value, _) in fixed.items()}
    current_values = {key: current_value for key, (_, current_value) in fixed.items()}
    refuse_changes(out, earlier_values, current_values, "Restore them to go on, or choose another --out")
    if reported_keys := [key for key in changes if key.startswith(_REPORTED)]:
        print(f"{out} goes on, but these differ from its start: {', '.join(reported_keys)}", file=sys.stderr)
    return current.model_copy(update={"started": earlier.started})


def _is_fixed(key: str) -> bool:
    """Return whether a run must not be resumed if the value of this key has changed."""
    return key.startswith(_FIXED) and key not in {f"retriever.ready.{name}" for name in VOLATILE_KEYS}


def _engine_options(args: RolloutArguments, session: RunSession, model: str) -> dict[str, Any]:
    """Return what is known of the engine, apart from its mode."""
    tokenizer = session.run_setup.tokens.name
    options: dict[str, Any] = {
        "api": args.engine,
        "answers": session.answers,
        "tokenizer": "the model's" if tokenizer == model else _public_name(tokenizer),
        "body": json.loads(args.body),
    }
    if version := vllm_version(session.endpoint.base, args.api_key_env):
        options["vllm"] = version
    if vllm_options := getattr(args, "vllm_options", None):
        options["vllm_options"] = vllm_options
    if (tool := session.run_setup.retriever.get("tool") or DEFAULT_TOOL) != DEFAULT_TOOL:
        options["search_tool"] = {"tool": tool, **session.run_setup.retriever}
    return options


def vllm_version(url: str, key_variable: str) -> str | None:
    """Return the version of the vLLM at this address; None for another server, and for one that only a proxy
    reaches, since this request does not use the proxy. Raises RunError for a text that is not an address."""
    answer = get_answer(f"{base_address(url).removesuffix('/v1')}/version", key_variable)
    version = answer.get("version") if isinstance(answer, dict) else None
    return one_line_text(version) if isinstance(version, str) else None


def _public_name(tokenizer: str) -> str:
    """Return the name of a tokenizer's folder without its path on this machine, or its name on the Hub."""
    folder = Path(tokenizer)
    return folder.resolve().name if folder.is_dir() else tokenizer
