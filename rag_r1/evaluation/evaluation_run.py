"""Plays an evaluation: the agent, a baseline or the conditions of a search card, with the model served."""

from __future__ import annotations

from functools import partial

from rag_r1.evaluation.baselines import agent_condition, baseline
from rag_r1.evaluation.condition_run import prepare_evaluation, read_annotations, run_condition
from rag_r1.evaluation.eval_arguments import EvalArguments
from rag_r1.evaluation.probes.suite import gather_passages, make_search_card
from rag_r1.evaluation.target import resolve_model, serve_model
from rag_r1.rollouts.checks import all_problems
from rag_r1.rollouts.session import check_only


async def evaluate(args: EvalArguments) -> int:
    """Evaluate as the arguments say; returns the exit status. Raises RunError."""
    with all_problems(args, {}, [partial(resolve_model, args), partial(read_annotations, args)]):
        args = resolve_model(args)
        ready = prepare_evaluation(args)
    if args.check_only:
        return await check_only(args, ready, args.base_url, args.model)
    if args.card:
        passages = gather_passages(args, ready)
        with serve_model(args) as args:
            return await make_search_card(args, ready, passages)
    if args.baseline is None:
        condition = agent_condition(ready.setup)
    else:
        condition = baseline(args.baseline, ready.setup)
    with serve_model(args) as args:
        return await run_condition(args, ready, condition, args.out)
