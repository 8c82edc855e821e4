"""Pretraining data for the pipeline's base model: reading, copying and following a named form.

The pipeline begins before RAG-R1's supervised fine-tuning, so its base may know what a pretrained language
model knows and no more: to read documents that are in front of it, to copy from them, to think and answer
between the tags that any prompt could ask for, and to write something in a form that the prompt names. A
batch has rows of these kinds:

    read    some sentences that nobody asked for, after a few words or none; read them and answer
    lost    the same with sentences that do not help: guess
    note    the prompt names a form, `Words between <memo> and </memo> may help`; the policy says what it
            notes (some words of the question, a name, every name), writes it in that form, gets no reply, and
            guesses
    guess   the same prompt without a note: guess
    drill   a comparison of two years that are in the question
    echo    repeat some words

The form has one of many names, so the policy learns to copy the name from the prompt. The protocol's own,
`search`, is a word of the exercises and never the name of a form, neither in a prompt nor in what the policy
writes: were it named only where no form is used, the policy would learn not to use it. No row has a search,
and none shows documents as an observation does: they are plain lines here, without the protocol's tags,
labels and JSON. Every batch is about a new random world (rag_r1/demo/world/), so there is no fact to be
remembered, and the names of the held-out questions never occur.

What a policy with such a base does when its prompt names `<search>` is for reinforcement learning to find
out: it can write a first query, since it follows the prompt, but does not know that a reply comes, what to
ask for, or what an observation looks like. rag_r1/demo/r1_searcher_traces.py is the same idea for
R1-Searcher's dialect.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rag_r1.demo.names import NAME_WORDS, TRADE, YEARS
from rag_r1.demo.policy import encode_trace
from rag_r1.demo.r1_searcher_traces import BASE_MIX, FORMS, aside_words, draw_note, neighbouring_words
from rag_r1.demo.search import WorldSearch
from rag_r1.demo.tokenizer import make_tokenizer
from rag_r1.demo.traces.turns import answer_turn, conclude, entity_value_text, guess
from rag_r1.demo.traces.writer import Segment, write_drill, write_trace
from rag_r1.demo.world import KINDS, Question, World, fresh_world, make_questions
from rag_r1.protocols import Protocol, load_protocol

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as TokenizerBase

#: The protocol's name for the form, which is a search.
SEARCH = "search"
#: Sentences of a row to be read: as many as a search for two names returns.
SENTENCES = 4
_PROMPT = (Path(__file__).parent / "prompt_named_form.txt").read_text(encoding="utf-8")


def pipeline_protocol(name: str) -> Protocol:
    """A shipped protocol with the pipeline's prompt, which is short and names the form of a search."""
    return load_protocol(name, prompt=_PROMPT)


def form_prompt(protocol: Protocol, form: str, text: str) -> list[dict[str, str]]:
    """The messages that ask `text`, with another name for the form."""
    prompt = protocol.user_prompt.replace(f"<{SEARCH}>", f"<{form}>").replace(f"</{SEARCH}>", f"</{form}>")
    return replace(protocol, user_prompt=prompt).messages(text)


def pretraining_tokenizer(protocol: Protocol) -> TokenizerBase:
    """A tokenizer with one token for each word, year and document label; a tag is its bracket, its name, its
    bracket.

    So a tag with a name that was never written can be composed of parts that were. The words of the
    protocol's observations and thoughts are in the vocabulary, as in that of any large model.
    """
    rng = random.Random(0)
    units = [f" {year}" for year in YEARS] + [f"Doc {rank}:" for rank in (1, 2, 3)]
    texts = ["user\nassistant\nsystem\n", protocol.invalid_hint or ""]
    for word in (*NAME_WORDS, *TRADE, *FORMS, SEARCH):
        texts += [word, f" {word}"]
    for form in (*FORMS, SEARCH):
        texts.append(form_prompt(protocol, form, "")[0]["content"])
    for _ in range(8):
        world = fresh_world(rng)
        search = WorldSearch(world.passages)
        for question in make_questions(world, 16, rng.randrange(1 << 48)):
            texts.append(protocol.messages(question.text)[0]["content"])
            for strategy in ("guess", "sequential", "parallel"):
                texts += [
                    s.text for s in write_trace(question, strategy, world, protocol, search.results, rng)
                ]
            texts += [s.text for s in write_reading_row(question, world, search, rng)]
            texts += [s.text for s in write_form_row(question, world, rng, FORMS[0])]
        texts += [s.text for s in write_copy_row(rng)[1]]
    # A bracket at the beginning of a line and the name after it would be one token otherwise.
    return make_tokenizer([re.sub(r"(?<! )<(?=\w)", "< ", text) for text in texts], units)


def write_reading_row(
    question: Question, world: World, search: WorldSearch, rng: random.Random
) -> list[Segment]:
    """A row with sentences that nobody asked for, with every fact among them, and the answer that follows
    from them."""
    thought, answer = conclude(question, question.lookups, rng, entity_value_text)
    if question.kind == "bridge":
        # The first fact is stated too: two steps in one thought are too hard for this policy.
        thought = f"{entity_value_text(question.lookups[0])}, {thought}"
    needed = _needed_sentences(question, world)
    words = " ".join(lookup.entity for lookup in question.lookups)
    sentences = [*needed, *(text for text in _search_results(words, search) if text not in needed)][
        :SENTENCES
    ]
    if rng.random() < 0.5:
        rng.shuffle(sentences)
    return [_reading_segment(sentences, rng), Segment(answer_turn(thought, answer), True)]


def write_unrelated_row(
    question: Question, world: World, search: WorldSearch, rng: random.Random
) -> list[Segment]:
    """A row with sentences that nobody asked for and that do not answer the question, and a guess."""
    needed = _needed_sentences(question, world)
    words = neighbouring_words(question, rng)
    sentences = [text for text in _search_results(words, search) if text not in needed]
    return [_reading_segment(sentences, rng), *write_form_row(question, world, rng, None)]


def write_form_row(question: Question, world: World, rng: random.Random, form: str | None) -> list[Segment]:
    """A row with a part of the question in the given form, announced in a thought, and a guess; without a
    form, only the guess."""
    segments = []
    if form is not None:
        label, text = draw_note(question, rng, ", ")
        # A segment of its own ends with the closing tag's token, as a turn does in a rollout.
        note = f"<think> I take a note of {label}. </think>\n<{form}> {text} </{form}>"
        segments.append(Segment(note, True))
    guess_turn = f"<think> I can guess. </think>\n<answer> {guess(question, world, rng)} </answer>"
    return [*segments, Segment("\n" + guess_turn if segments else guess_turn, True)]


def write_copy_row(rng: random.Random) -> tuple[str, list[Segment]]:
    """An exercise in copying words, including names of forms: the request, and the answer."""
    # A word at the beginning of a line is the same token as in a tag.
    forms = rng.choice((" ", "\n")).join(rng.sample([*FORMS, SEARCH], rng.randint(2, 4)))
    return f"Say {forms}.", [Segment(answer_turn("", forms), True)]


def batch(
    tokenizer: TokenizerBase, protocol: Protocol, seed: str, step: int, kinds: Sequence[str] = KINDS
) -> list[tuple[list[int], list[int]]]:
    """(token ids, mask) of the rows of a step; the mask is 1 where the policy writes. The batch depends on
    nothing but these arguments, so a training can go on at any step."""
    rng = random.Random(f"{seed}-{step}")
    world = fresh_world(rng)
    search = WorldSearch(world.passages, SENTENCES)
    row_kinds = [kind for kind, count in BASE_MIX.items() for _ in range(count)]
    questions = make_questions(world, len(row_kinds), rng.randrange(1 << 48), kinds)
    return [
        encode_trace(tokenizer, protocol, *_row(kind, question, world, search, protocol, rng))
        for kind, question in zip(row_kinds, questions, strict=True)
    ]


def name_tokens(tokenizer: TokenizerBase) -> frozenset[int]:
    """The tokens of names and years inside a sentence: what can be copied from one."""
    words = (*NAME_WORDS, *YEARS)
    tokens = [tokenizer(f" {word}", add_special_tokens=False).input_ids for word in words]
    return frozenset(token for (token,) in tokens)


def _row(
    kind: str, question: Question, world: World, search: WorldSearch, protocol: Protocol, rng: random.Random
) -> tuple[list[dict[str, str]], list[Segment]]:
    """The prompt and the trace of a row of a kind."""
    form = rng.choice(FORMS)
    text = question.text
    if kind == "read":
        trace = write_reading_row(question, world, search, rng)
    elif kind == "lost":
        trace = write_unrelated_row(question, world, search, rng)
    elif kind == "drill":
        drill, trace = write_drill(world, rng)
        text = drill.text
    elif kind == "echo":
        text, trace = write_copy_row(rng)
    else:
        trace = write_form_row(question, world, rng, form if kind == "note" else None)
    return form_prompt(protocol, form, text), trace


def _needed_sentences(question: Question, world: World) -> list[str]:
    """The sentences that state the question's facts, in their order."""
    by_title = dict(passage["contents"].split("\n", 1) for passage in world.passages)
    return [by_title[f'"{lookup.entity}"'] for lookup in question.lookups]


def _search_results(words: str, search: WorldSearch) -> list[str]:
    """The sentences that a search for `words` returns, best first."""
    return [document.text for document in search.results([words])[0]]


def _reading_segment(sentences: Sequence[str], rng: random.Random) -> Segment:
    """A block of sentences, after some words or none."""
    return Segment(aside_words(rng) + "\n" + "".join(f"{sentence}\n" for sentence in sentences), False)
