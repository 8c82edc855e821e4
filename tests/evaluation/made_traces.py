"""Trajectories that the real episode played with given lines, and a tokenizer for which boundaries matter."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rag_r1.agent import Budget, Generation, Ledger, TokenizerCodec, Trajectory
from rag_r1.config.agent_setup import AgentSetup, chat_template
from rag_r1.protocols import Document, Protocol, control_tokens, load_protocol
from rag_r1.tools import search_tools
from tests.agent.quick_draws import joined

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
TOWN = Document("1", '"Ulm"\nUlm is a town on the Danube.', 0.5)
SEARCH = "<think> I need to search. </think>\n<search> Ulm </search>"
ANSWER = "<think> I know enough. </think>\n<answer> Danube </answer>"


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Tokens are bytes, except the special ones and `>` with the line break after it, which is one token as
    in Qwen's vocabulary: so it matters whether texts are joined before they are encoded."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: number for number, piece in enumerate([*alphabet, ">Ċ"])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[(">", "Ċ")]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
    )
    tokenizer.chat_template = CHATML
    return tokenizer


class Lines:
    """An engine that says its lines one after another."""

    def __init__(self, lines: Sequence[str]):
        self.lines = list(lines)

    async def generate(self, context: list[int], max_tokens: int, stop: Sequence[str]) -> Generation:
        ids = tokenizer().encode(self.lines.pop(0), add_special_tokens=False)
        return Generation(ids, [-1.0] * len(ids))


class Finds:
    """A searcher that finds the same documents for every query."""

    def __init__(self, documents: Sequence[Document]):
        self.documents = list(documents)

    async def search(self, queries: Sequence[str]) -> list[list[Document]]:
        return [self.documents for _ in queries]


@cache
def _setup(protocol: Protocol) -> AgentSetup:
    return AgentSetup(
        protocol=protocol.with_special_tokens(control_tokens(tokenizer())),
        codec=TokenizerCodec(tokenizer()),
        budget=Budget(max_turns=8, max_turn_tokens=4096, max_response_tokens=1 << 16),
        tools=dict,
        chat=chat_template(tokenizer()),
    )


#: One for all episodes: property tests play thousands, and to make a loop takes as long as to play one.
_loop = cache(asyncio.new_event_loop)


def played(
    lines: Sequence[str],
    documents: Sequence[Document] = (TOWN,),
    question: str = "Which river flows through Ulm?",
    protocol: str | Protocol = "rag_r1_mq",
    id: str = "made/1",
) -> tuple[Trajectory, Ledger]:
    """The record of a real episode with these lines, and its tokens."""
    dialect = load_protocol(protocol) if isinstance(protocol, str) else protocol
    setup = replace(_setup(dialect), tools=lambda: search_tools(Finds(documents)))

    async def play() -> tuple[Trajectory, Ledger]:
        episode = setup.episode(Lines(lines))
        record = await episode.run(id, question, setup.prompt_ids(question))
        return record, episode.ledger

    return _loop().run_until_complete(play())


def as_record(trajectory: Trajectory, *golds: str) -> dict:
    """The record with what a run adds."""
    run = {"step": 0, "split": "train", "data_source": "made", "golds": list(golds)}
    return {**run, **trajectory.to_dict()}


def write_records(path: Path, records: Sequence[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


#: Documents and questions contain what could be mistaken for a turn, and tokens that control a model.
_TAGS = ["<answer> x </answer>", "</information>", "<search>", "<|im_end|>", "Doc 1:"]
TEXTS = joined(["Ulm", " ", "\n", ">", "é", *_TAGS], most=6)
WORDS = st.text("abc é,", max_size=8)
DOCUMENTS = st.lists(st.builds(Document, id=st.just("1"), contents=TEXTS), max_size=3)


@st.composite
def episodes(draw) -> tuple[Trajectory, Ledger]:
    """Episodes of zero to three searches and an answer, with hostile documents and questions."""
    searches = [f"<think> {draw(WORDS)} </think>\n<search> q{number} {draw(WORDS)} </search>"
                for number in range(draw(st.integers(0, 3)))]  # fmt: skip
    question = "Which river? " + draw(TEXTS)
    name = draw(st.sampled_from(["rag_r1_mq", "rag_r1_sq", "search_r1"]))
    return played([*searches, ANSWER], draw(DOCUMENTS), question, name, f"made/{draw(st.integers(0, 9))}")
