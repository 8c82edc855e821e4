"""Trains a demo policy by format-learning SFT, from random weights to a warm start for RL.

Every batch asks about a new random world, so that no fact can be memorised; what can be learned is to read,
to copy and to keep to the format. There are two parts:

    base        It starts from random weights. At first there are only one-hop questions, then all kinds, and
                then more of those with two independent facts. The traces are in both protocols, find the
                answer, and are mixed with exercises in comparing years. The loss is on the policy's turns
                and, with a smaller weight, on those tokens of prompt and passages that have occurred before,
                because no pretraining has taught this model to copy.
    warm start  It starts from the base, and has traces of one protocol with mixed strategies, right and wrong
                (`mixes.MIXED`). The loss is on the policy's turns only, as in RAG-R1. With `--gold` all
                strategies are right: the upper bound for supervised learning from known answers.

This command runs both parts:

    python -m rag_r1.demo.warm_start --protocol rag_r1_mq --out DIR --seed 0

`--base DIR` saves the base in that folder, or loads it from there if it exists. `--protocol r1_searcher`
makes the policy that has never seen a search, from other data (`r1_searcher_traces.py`).
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Literal

import torch
from pydantic import model_validator
from transformers import PreTrainedTokenizerBase as TokenizerBase
from transformers import Qwen2ForCausalLM

from rag_r1.demo import r1_searcher_traces
from rag_r1.demo.phase_trainer import Row, TrainingPhase, train
from rag_r1.demo.policy import PROTOCOLS, demo_tokenizer, encode_trace, load_policy, make_policy, save_policy
from rag_r1.demo.search import WorldSearch
from rag_r1.demo.simulate import run_rollouts, scores_by_kind
from rag_r1.demo.trace_records import BATCH, warm_traces
from rag_r1.demo.traces.mixes import FULL, draw_strategy
from rag_r1.demo.traces.writer import Segment, sample_kinds, write_drill, write_trace
from rag_r1.demo.world import KINDS, Question, demo_data, demo_protocol, fresh_world, make_questions
from rag_r1.evaluation.report.estimates import known_mean
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, argument, read_arguments
from rag_r1.options.out_folder import check_out
from rag_r1.protocols import Protocol
from rag_r1.rewards import token_f1

#: Loss weight in the base of a prompt or passage token that has occurred before in the row, and so can be
#: copied. First occurrences cannot be predicted and weigh 0; tokens that the policy writes weigh 1.
COPY_WEIGHT = 0.5
#: Number of exercises that are added to the questions of a batch in the base.
DRILLS = 6

#: The first phase of the base, which begins with some steps that have one-hop questions only.
FIRST = TrainingPhase(steps=900, warmup=50, lr=3e-3, matrix_lr=6e-3)
ONE_HOP_STEPS = 60
#: The second phase of the base. It has more questions about two independent facts, which are learned last.
SECOND = TrainingPhase(steps=700, warmup=30, lr=2e-3, matrix_lr=4e-3)
SECOND_KINDS = ("one_hop", "bridge", "comparison", "both", "comparison", "both", "both")
#: Both phases are longer for the policy that has never seen a search, because it needs more steps until it
#: reads documents at any position.
UNSEARCHED_FIRST = replace(FIRST, steps=1200)
UNSEARCHED_SECOND = replace(SECOND, steps=900)
#: The phase of the warm start.
WARM = TrainingPhase(steps=300, warmup=15, lr=5e-4, matrix_lr=5e-4)


def base_batches(
    tokenizer: TokenizerBase, steps: int, kinds: Sequence[str], seed: str, one_hop_steps: int = 0
) -> Iterator[list[Row]]:
    """Yield a batch of the base for each step; the protocols alternate. The questions of the first
    `one_hop_steps` are one-hop questions, and those of the others have the `kinds`."""
    rng = random.Random(seed)
    protocols = [demo_protocol(name) for name in PROTOCOLS]
    for step in range(steps):
        protocol = protocols[step % len(protocols)]
        world = fresh_world(rng)
        search = WorldSearch(world.passages).results
        step_kinds = ("one_hop",) if step < one_hop_steps else kinds
        traces = []
        for question in make_questions(world, BATCH, rng.randrange(1 << 48), step_kinds):
            strategy = draw_strategy(FULL[protocol.name][question.kind], rng)
            traces.append((question, write_trace(question, strategy, world, protocol, search, rng)))
        traces += [write_drill(world, rng) for _ in range(DRILLS)]
        encoded = (_encoded(tokenizer, protocol, question, trace) for question, trace in traces)
        yield [(ids, base_weights(ids, mask)) for ids, mask in encoded]


def _encoded(
    tokenizer: TokenizerBase, protocol: Protocol, question: Question, trace: Sequence[Segment]
) -> tuple[list[int], list[int]]:
    """Return the token ids and the mask of a trace after its prompt."""
    return encode_trace(tokenizer, protocol, protocol.messages(question.text), trace)


def base_weights(ids: Sequence[int], mask: Sequence[int]) -> list[float]:
    """Return the loss weight of each token in the base. `mask` is 1 for tokens that the policy writes."""
    seen_tokens: set[int] = set()
    weights = []
    for token, generated in zip(ids, mask, strict=True):
        read_weight = COPY_WEIGHT if token in seen_tokens else 0.0
        weights.append(1.0 if generated else read_weight)
        seen_tokens.add(token)
    return weights


def warm_batches(
    tokenizer: TokenizerBase,
    protocol: Protocol,
    gold: bool,
    seed: int,
    counts: Counter[str],
    steps: int = WARM.steps,
) -> Iterator[list[Row]]:
    """Yield the batches of the warm start; with `gold`, all strategies find the answer. `counts` collects its
    samples by RAG-R1's four kinds."""
    for traces in warm_traces(protocol, "gold" if gold else "mixed", steps, seed):
        for trace in traces:
            counts.update(sample_kinds(trace.segments))
        encoded = (_encoded(tokenizer, protocol, trace.question, trace.segments) for trace in traces)
        yield [(ids, list(map(float, mask))) for ids, mask in encoded]


def no_search_base_batches(
    tokenizer: TokenizerBase, steps: int, kinds: Sequence[str], seed: str
) -> Iterator[list[Row]]:
    """Yield the batches of the base for a policy that must never see a search."""
    for batch in r1_searcher_traces.batches(
        tokenizer, steps, r1_searcher_traces.BASE_MIX, seed, Counter(), kinds
    ):
        yield [(ids, base_weights(ids, mask)) for ids, mask in batch]


def no_search_warm_batches(tokenizer: TokenizerBase, seed: int, counts: Counter[str]) -> Iterator[list[Row]]:
    """Yield the batches of the warm start for a policy that must never see a search. `counts` collects the
    kinds of their rows."""
    for batch in r1_searcher_traces.batches(
        tokenizer, WARM.steps, r1_searcher_traces.WARM_MIX, f"warm-{seed}", counts
    ):
        yield [(ids, list(map(float, mask))) for ids, mask in batch]


def measure(
    folder: Path, protocol: Protocol, questions: Sequence[Question], search: WorldSearch
) -> dict[str, dict[str, float]]:
    """Measure a policy with greedy decoding (`greedy`) and at temperature 1 (`sampled`).

    The figures are exact match by kind, F1, the shares of well-formed turns and of questions with a search,
    and the turns per question.
    """
    model, tokenizer = load_policy(folder)
    torch.manual_seed(0)
    result = {}
    for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        rollouts = run_rollouts(model, tokenizer, protocol, questions, search, temperature)
        trajectories = [rollout.trajectory for rollout in rollouts]
        turns = [turn for trajectory in trajectories for turn in trajectory.turns]
        result[name] = scores_by_kind(rollouts) | {
            "well-formed": known_mean(turn.action != "invalid" for turn in turns),
            "turns": len(turns) / len(rollouts),
            "F1": known_mean(token_f1(each.trajectory.answer, each.question.gold) for each in rollouts),
            "searched": known_mean(trajectory.n_searches > 0 for trajectory in trajectories),
        }
    return result


class WarmStartArguments(Arguments):
    """The arguments of `python -m rag_r1.demo.warm_start`."""

    protocol: Literal[(*PROTOCOLS, r1_searcher_traces.NAME)] = argument(
        "protocol of the policy", default="rag_r1_mq"
    )
    out: Path = argument("policy folder to write")
    seed: int = argument("seed of the weights and of the training worlds", default=0)
    base: Path | None = argument(
        "policy folder of the base, which is read if it exists (whatever its --seed), else written",
        default=None,
    )
    gold: bool = argument("use only strategies that find the answer (the ceiling)", default=False)

    @model_validator(mode="after")
    def _traces_that_search(self) -> WarmStartArguments:
        if self.gold and self.protocol == r1_searcher_traces.NAME:
            raise ValueError(f"--gold needs traces that search, and {r1_searcher_traces.NAME} has none")
        return self


@command_main(ValueError, OSError)
def main(argv: Sequence[str] | None = None) -> int:
    """Train the warm start, write it, and print its figures."""
    args = read_arguments(
        WarmStartArguments,
        argv,
        prog="python -m rag_r1.demo.warm_start",
        description="Make a warm start for the demo: format-learning SFT of a tiny policy, on a CPU.",
    )
    check_out(args.out)
    if args.base and not (args.base / "config.json").exists():
        check_out(args.base, flag="--base")
    learns_search = args.protocol != r1_searcher_traces.NAME
    start = time.perf_counter()
    model, tokenizer = _make_base(args, learns_search)
    protocol = demo_protocol(args.protocol)
    counts: Counter[str] = Counter()
    if learns_search:
        batches = warm_batches(tokenizer, protocol, args.gold, args.seed, counts)
    else:
        batches = no_search_warm_batches(tokenizer, args.seed, counts)
    train(model, batches, WARM, args.protocol)
    save_policy(args.out, model, tokenizer)
    parameters = sum(weight.numel() for weight in model.parameters())
    print(f"{args.out}: {parameters:,} parameters in {time.perf_counter() - start:.0f} s")
    print("samples: " + ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items())))
    data = demo_data(args.seed)
    search = WorldSearch(data.passages, 2 if learns_search else r1_searcher_traces.TOPK)
    for name, scores in measure(args.out, protocol, data.val, search).items():
        print(f"held-out, {name}: " + "  ".join(f"{key} {value:.2f}" for key, value in scores.items()))
    return 0


def _make_base(args: WarmStartArguments, learns_search: bool) -> tuple[Qwen2ForCausalLM, TokenizerBase]:
    """Load the base from the folder `--base` if it exists; otherwise train it, and save it there. Raises
    ValueError if the folder has a policy with the tokens of another protocol."""
    tokenizer = demo_tokenizer() if learns_search else r1_searcher_traces.no_search_tokenizer()
    if args.base and (args.base / "config.json").exists():
        model, base_tokenizer = load_policy(args.base)
        if base_tokenizer.get_vocab() != tokenizer.get_vocab():
            raise ValueError(f"--base {args.base} is not of --protocol {args.protocol}: give another folder")
        return model, base_tokenizer
    model = make_policy(tokenizer, args.seed)
    phases = _base_phases if learns_search else _no_search_phases
    for number, (phase, batches) in enumerate(phases(tokenizer, args.seed), 1):
        train(model, batches, phase, f"base {number}/2")
    if args.base:
        save_policy(args.base, model, tokenizer)
    return model, tokenizer


def _base_phases(tokenizer: TokenizerBase, seed: int) -> Iterator[tuple[TrainingPhase, Iterator[list[Row]]]]:
    """Yield the two phases of the base, each with its batches."""
    yield FIRST, base_batches(tokenizer, FIRST.steps, KINDS, f"first-{seed}", ONE_HOP_STEPS)
    yield SECOND, base_batches(tokenizer, SECOND.steps, SECOND_KINDS, f"second-{seed}")


def _no_search_phases(
    tokenizer: TokenizerBase, seed: int
) -> Iterator[tuple[TrainingPhase, Iterator[list[Row]]]]:
    """Yield the two phases of the base for a policy that must never see a search, each with its batches."""
    one_hop = no_search_base_batches(tokenizer, ONE_HOP_STEPS, ("one_hop",), f"one-hop-{seed}")
    all_kinds = no_search_base_batches(
        tokenizer, UNSEARCHED_FIRST.steps - ONE_HOP_STEPS, KINDS, f"all-{seed}"
    )
    yield UNSEARCHED_FIRST, chain(one_hop, all_kinds)
    second = no_search_base_batches(tokenizer, UNSEARCHED_SECOND.steps, SECOND_KINDS, f"second-{seed}")
    yield UNSEARCHED_SECOND, second


if __name__ == "__main__":
    sys.exit(main())
