"""Measures the agent loop's own CPU time per turn, and whether it grows with the length of the episode.

    python benchmarks/agent_overhead.py              # the agent core
    python benchmarks/agent_overhead.py --plugin     # the same episodes inside veRL's agent loop
    python benchmarks/agent_overhead.py --repeated 0.76   # three of four observations were shown before

Episodes of 1 k to 32 k tokens are played with an engine and a retriever that answer at once. Each turn has
--turn-tokens tokens: a quarter are generated, the rest are three documents. `tokenizer` is the time inside
the tokenizer, which decodes each generated token once and encodes each observed one once. `loop` is
everything else: contexts, parsing, packing, neutralising, the ledger, the training row, the record as a dict.
If later turns cost more, `us/token` rises from row to row.

Trajectories of the same question send similar queries, and an observation that one of them has received is
not encoded again for the next. --repeated is the share of a trajectory's observations that are such
repetitions (default 0). --repeated-as DIR takes this share from the trajectories of a run
(`outputs/demo/grpo/trajectories/train`).

All figures are medians over --rounds of this process's CPU seconds, so other work on the machine has little
influence.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import statistics
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rag_r1.agent import Budget, Episode, Generation, TokenizerCodec
from rag_r1.agent.records import records_by_step
from rag_r1.demo.policy import policy_path
from rag_r1.demo.world import demo_protocol, make_world
from rag_r1.protocols import Document, Protocol, control_tokens
from rag_r1.tools import search_tools

PROTOCOL = "rag_r1_mq"
TOPK = 3


@dataclass
class TimedCodec:
    """A codec that sums the CPU seconds spent in it."""

    inner: TokenizerCodec
    seconds: float = 0.0

    def encode(self, text: str) -> list[int]:
        started = time.process_time()
        ids = self.inner.encode(text)
        self.seconds += time.process_time() - started
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        started = time.process_time()
        text = self.inner.decode(ids)
        self.seconds += time.process_time() - started
        return text


class ScriptedServices:
    """An engine and a retriever in one, whose answers are prepared: the ids of each turn, and documents.

    In the turns `new_turns` the search returns documents that an earlier episode has not seen.
    """

    def __init__(
        self, turns: Sequence[list[int]], documents: Sequence[Document], new_turns: Collection[int] = ()
    ):
        self.turns, self.logprobs = turns, [-0.5] * max(map(len, turns))
        self.documents, self.turn, self.new_turns = documents, 0, new_turns

    def next_turn(self) -> list[int]:
        """Return the ids of the next turn."""
        self.turn += 1
        return self.turns[self.turn - 1]

    async def generate(self, context: list[int], max_tokens: int, stop: Sequence[str]) -> Generation:
        ids = self.next_turn()
        return Generation(ids, self.logprobs[: len(ids)])

    async def search(self, queries: Sequence[str]) -> list[list[Document]]:
        start = self.turn * TOPK * len(queries) % (len(self.documents) - TOPK - 1)
        start += self.turn in self.new_turns
        return [list(self.documents[start : start + TOPK]) for _ in queries]


@dataclass(frozen=True)
class Material:
    """Everything from which episodes are made, with documents that fill three quarters of a turn."""

    protocol: Protocol
    tokenizer: Any
    codec: TokenizerCodec
    documents: list[Document]
    turn_tokens: int

    @classmethod
    def make(cls, tokenizer: Any, turn_tokens: int) -> Material:
        """Join passages of the demo's world to documents, TOPK of which have about 3/4 of `turn_tokens`."""
        protocol = demo_protocol(PROTOCOL).with_special_tokens(control_tokens(tokenizer))
        passages = make_world(0, "train", people=1000, places=200).passages
        per_passage = len(tokenizer.encode(passages[0]["contents"], add_special_tokens=False))
        group = max(round(turn_tokens * 0.75 / TOPK / per_passage), 1)
        texts = [
            "\n".join(p["contents"] for p in passages[i : i + group]) for i in range(0, len(passages), group)
        ]
        documents = [Document(str(i), text) for i, text in enumerate(texts)]
        return cls(protocol, tokenizer, TokenizerCodec(tokenizer), documents, turn_tokens)

    def turns(self, count: int) -> list[list[int]]:
        """Return the ids of `count` turns: searches, each with a new query, and an answer."""
        texts = [f"<search> Mara Torval {i} </search>" for i in range(count - 1)] + ["<answer> x </answer>"]
        return [self._ids(text) for text in texts]

    def _ids(self, action: str) -> list[int]:
        """Return the ids of a thought and an action, together a quarter of a turn."""
        ending = self.codec.encode(f"</think>\n{action}")
        thought = self.codec.encode("<think>" + " born in" * self.turn_tokens)
        return thought[: max(self.turn_tokens // 4 - len(ending), 1)] + ending

    def budget(self, turns: int) -> Budget:
        """Return limits that do not cut an episode of this many turns."""
        total = turns * self.turn_tokens * 4
        return Budget(
            max_turns=turns,
            final_turn=False,
            max_turn_tokens=self.turn_tokens,
            max_query_observation_tokens=self.turn_tokens * 2,
            min_turn_tokens=1,
            max_response_tokens=total,
        )


class EpisodeCost(NamedTuple):
    """What one episode costs."""

    #: Tokens of its training row.
    tokens: int
    #: CPU seconds.
    seconds: float
    #: CPU seconds in the tokenizer, which are part of `seconds`; nan if they are not measured.
    tokenizer_s: float


async def play_in_core(material: Material, turns: int, repeated: float) -> EpisodeCost:
    """Play one episode in the agent core, and return its cost.

    `repeated` is the share of observations that an earlier episode has already received.
    """
    codec = TimedCodec(material.codec)
    searches = range(1, turns)
    new_turns = random.Random(0).sample(searches, round(len(searches) * (1 - repeated)))
    prompt = codec.encode("Where?")
    material.codec.clear_cache()
    if repeated:  # an earlier episode, which sees the observations that are repeated
        earlier = ScriptedServices(material.turns(turns), material.documents)
        await play(material, turns, codec, prompt, earlier)
    services = ScriptedServices(material.turns(turns), material.documents, new_turns)
    codec.seconds = 0.0
    gc.collect()
    started = time.process_time()
    tokens = await play(material, turns, codec, prompt, services)
    return EpisodeCost(tokens, time.process_time() - started, codec.seconds)


async def play(
    material: Material, turns: int, codec: TimedCodec, prompt: list[int], services: ScriptedServices
) -> int:
    """Play one episode, make its training row and its record, and return the number of the row's tokens."""
    episode = Episode(material.protocol, material.budget(turns), services, search_tools(services), codec)
    record = await episode.run("id", "Where?", prompt)
    row = episode.ledger.row()
    record.to_dict()
    assert (record.status, len(record.turns)) == ("answered", turns), record.status
    return len(row.prompt_ids) + len(row.response_ids)


def make_tool(options: dict[str, Any]) -> ScriptedServices:
    """Return the search tool; veRL's agent loop finds this factory by its import path."""
    return ScriptedServices([[]], MATERIAL[0].documents)


#: The material of the episode that `play_in_plugin` plays, for `make_tool`.
MATERIAL: list[Material] = []


async def play_in_plugin(material: Material, turns: int) -> EpisodeCost:
    """Play the same episode through `SearchAgentLoop.run`, with veRL's client interface, prompts and output.

    The time in the tokenizer is not measured.
    """
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap
    from verl.workers.rollout.replica import TokenOutput

    from rag_r1.plugin.agent_loop import SearchAgentLoop

    MATERIAL[:] = [material]
    budget = material.budget(turns)
    rollout = {"prompt_length": 512, "response_length": budget.max_response_tokens, "max_model_len": None}
    agent = {
        "max_turns": turns,
        "final_turn": False,
        "max_turn_tokens": budget.max_turn_tokens,
        "max_query_observation_tokens": budget.max_query_observation_tokens,
    }
    options = {"protocol": PROTOCOL, "agent": agent, "retriever": {"tool": f"{__name__}:make_tool"}}
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "data": {}, "rag_r1": options})
    services = ScriptedServices(material.turns(turns), material.documents)

    class Client:
        async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict) -> Any:
            ids = services.next_turn()
            return TokenOutput(token_ids=ids, log_probs=services.logprobs[: len(ids)], extra_fields={})

    row = {
        "raw_prompt": [{"role": "user", "content": "Where?"}],
        "extra_info": {"id": "i", "question": "Where?"},
    }
    wrapped = DictConfigWrap(config)
    arguments = (wrapped, Client(), material.tokenizer, None, None, DictConfigWrap(config.data))
    SearchAgentLoop(*arguments, hf_model_type="qwen2")  # reads the configuration, once per process
    gc.collect()
    started = time.process_time()
    output = await SearchAgentLoop(*arguments, hf_model_type="qwen2").run({"temperature": 1.0}, **row)
    seconds = time.process_time() - started
    assert output.extra_fields["trajectory"]["status"] == "answered"
    return EpisodeCost(len(output.prompt_ids) + len(output.response_ids), seconds, float("nan"))


def repeated_share(steps: Iterable[Sequence[dict[str, Any]]]) -> float:
    """Return the share of a run's observations that an earlier turn of the same step has already shown.

    `steps` has the records of each step. Without an observation the share is 0.
    """
    count = repeated = 0
    for records in steps:
        known: set[str] = set()
        for turn in (turn for record in records for turn in record["turns"] if turn["observed_tokens"]):
            calls = [[call["arguments"], call["documents"]] for call in turn["calls"]]
            observation = json.dumps(calls, sort_keys=True)
            count += 1
            repeated += observation in known
            known.add(observation)
    return repeated / count if count else 0.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its tables; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--plugin", action="store_true", help="measure inside veRL's agent loop")
    add("--turn-tokens", type=int, default=512, help="generated and observed in a turn (default %(default)s)")
    counts = [2, 4, 8, 16, 32, 64]
    add("--turns", type=int, nargs="+", default=counts, help="turns per episode (default 2 4 8 16 32 64)")
    add("--rounds", type=int, default=15, help="episodes per number of turns (default %(default)s)")
    repeated = parser.add_mutually_exclusive_group()
    repeated.add_argument("--repeated", type=float, metavar="SHARE", help="of the observations (default 0)")
    repeated.add_argument("--repeated-as", type=Path, metavar="DIR", help="the share in these trajectories")
    add("--tokenizer", type=Path, metavar="DIR", help="a Hugging Face tokenizer (default: the demo's)")
    args = parser.parse_args(argv)
    if args.repeated_as:
        records = records_by_step(args.repeated_as)
        if not records:
            parser.error(f"--repeated-as: no step_*.jsonl with trajectories in {args.repeated_as}")
        args.repeated = repeated_share(records.values())
        print(f"repeated within a step of {args.repeated_as}: {args.repeated:.2f}")
    share = args.repeated or 0.0
    if not 0 <= share <= 1 or (args.plugin and share):
        parser.error("--repeated is a share, 0 to 1, and cannot be combined with --plugin")
    if min(*args.turns, args.rounds, args.turn_tokens // 64) < 1:
        parser.error("--turns and --rounds must be 1 or more, --turn-tokens 64 or more")

    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer or policy_path(PROTOCOL))
    material = Material.make(tokenizer, args.turn_tokens)
    measure = play_in_plugin if args.plugin else partial(play_in_core, repeated=share)
    asyncio.run(measure(material, 2))  # warms up
    print(
        f"{'tokens':>8} {'turns':>6} {'loop ms/turn':>13} {'tokenizer':>10} {'together':>9} {'us/token':>9}"
    )
    for turns in args.turns:
        rounds = [asyncio.run(measure(material, turns)) for _ in range(args.rounds)]
        tokens = rounds[0].tokens
        both = statistics.median(cost.seconds for cost in rounds)
        tokenizer_s = statistics.median(cost.tokenizer_s for cost in rounds)
        loop_ms, tokenizer_ms, both_ms = (1000 * s / turns for s in (both - tokenizer_s, tokenizer_s, both))
        print(
            f"{tokens:8d} {turns:6d} {loop_ms:13.3f} {tokenizer_ms:10.3f} {both_ms:9.3f} "
            f"{1e6 * both / tokens:9.3f}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
