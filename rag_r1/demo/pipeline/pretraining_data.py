"""Makes pretraining data for the pipeline's base model: reading, copying and following a named form.

The pipeline begins before RAG-R1's supervised fine-tuning. Its base should therefore have the abilities of a
pretrained language model, but no others: it reads documents in its context and copies from them, it thinks
and answers between tags, and it writes something in a form that the prompt names. There are six kinds of
rows:

    read    Some sentences appear without a request, some of them after a few words. The policy reads them
            and answers.
    lost    The same with sentences that do not help. The policy guesses.
    note    The prompt names a form: `Words between <memo> and </memo> may help`. The policy says what it
            notes (some words of the question, a name, or every name) and writes it in that form. Since it
            gets no reply, it guesses.
    guess   The same prompt, but the policy guesses without a note.
    drill   The policy compares two years that are in the question.
    echo    The policy repeats some words.

The form has one of many names, so that the policy learns to copy the name from the prompt. The name of the
protocol's own form, `search`, occurs only as a word in the exercises. If prompts named it in rows that use no
form, the policy would learn not to use it. No row has a search, and no row shows documents in the form of an
observation: they are plain lines, without the protocol's tags, labels and JSON. Every batch is about a new
random world (rag_r1/demo/world/), so that no fact can be memorised, and the names of the held-out questions
never occur.

With such a base, a policy whose prompt names `<search>` can write a first query, because it follows the
prompt. It does not know that a reply follows, what to search for, or what an observation looks like; that is
left to the later steps. rag_r1/demo/r1_searcher_traces.py does the same for R1-Searcher's protocol.
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

#: The name of the protocol's form, which is a search.
SEARCH = "search"
#: Number of sentences in a row: as many as two searches return.
SENTENCES = 4
_PROMPT = (Path(__file__).parent / "prompt_named_form.txt").read_text(encoding="utf-8")


def pipeline_protocol(name: str) -> Protocol:
    """Load a shipped protocol with the pipeline's prompt, which is short and names the form of a search."""
    return load_protocol(name, prompt=_PROMPT)


def form_prompt(protocol: Protocol, form: str, text: str) -> list[dict[str, str]]:
    """Return the messages of a prompt for the question `text`, with another name for the form."""
    prompt = protocol.user_prompt.replace(f"<{SEARCH}>", f"<{form}>").replace(f"</{SEARCH}>", f"</{form}>")
    return replace(protocol, user_prompt=prompt).messages(text)


def pretraining_tokenizer(protocol: Protocol) -> TokenizerBase:
    """Make a tokenizer in which each word, year and document label is one token.

    A tag consists of three tokens: a bracket, its name and a bracket. The policy can therefore write a tag
    with a new name, from parts that it has learned elsewhere. The words of the protocol's observations and
    thoughts are in the vocabulary, as in that of any large model.
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
                trace = write_trace(question, strategy, world, protocol, search.results, rng)
                texts += [segment.text for segment in trace]
            texts += [segment.text for segment in write_reading_row(question, world, search, rng)]
            texts += [segment.text for segment in write_form_row(question, world, rng, FORMS[0])]
        texts += [segment.text for segment in write_echo_row(rng)[1]]
    # With the blank, a bracket at the beginning of a line does not form one token with the name after it.
    return make_tokenizer([re.sub(r"(?<! )<(?=\w)", "< ", text) for text in texts], units)


def write_reading_row(
    question: Question, world: World, search: WorldSearch, rng: random.Random
) -> list[Segment]:
    """Write a row with unrequested sentences that state every fact, and the answer that follows from them."""
    thought, answer = conclude(question, question.lookups, rng, entity_value_text)
    if question.kind == "bridge":
        # State the first fact, too, because two steps in one thought are too hard for this policy.
        thought = f"{entity_value_text(question.lookups[0])}, {thought}"
    needed = _needed_sentences(question, world)
    query = " ".join(lookup.entity for lookup in question.lookups)
    others = [text for text in _search_results(query, search) if text not in needed]
    sentences = [*needed, *others][:SENTENCES]
    if rng.random() < 0.5:
        rng.shuffle(sentences)
    return [_reading_segment(sentences, rng), Segment(answer_turn(thought, answer), True)]


def write_unrelated_row(
    question: Question, world: World, search: WorldSearch, rng: random.Random
) -> list[Segment]:
    """Write a row with unrequested sentences that do not answer the question, and a guess."""
    needed = _needed_sentences(question, world)
    query = neighbouring_words(question, rng)
    sentences = [text for text in _search_results(query, search) if text not in needed]
    return [_reading_segment(sentences, rng), *write_form_row(question, world, rng, None)]


def write_form_row(question: Question, world: World, rng: random.Random, form: str | None) -> list[Segment]:
    """Write a row with a note in a form, which a thought announces, and a guess; without `form` only a guess.

    The note contains a part of the question.
    """
    segments = []
    if form is not None:
        label, text = draw_note(question, rng, ", ")
        # As a separate segment, the note ends with the token of its closing tag, like a turn in a rollout.
        note = f"<think> I take a note of {label}. </think>\n<{form}> {text} </{form}>"
        segments.append(Segment(note, True))
    guess_turn = f"<think> I can guess. </think>\n<answer> {guess(question, world, rng)} </answer>"
    return [*segments, Segment("\n" + guess_turn if segments else guess_turn, True)]


def write_echo_row(rng: random.Random) -> tuple[str, list[Segment]]:
    """Write an exercise in repeating words; returns (request, turn with the answer)."""
    # A word at the beginning of a line is the same token as in a tag.
    forms = rng.choice((" ", "\n")).join(rng.sample([*FORMS, SEARCH], rng.randint(2, 4)))
    return f"Say {forms}.", [Segment(answer_turn("", forms), True)]


def batch(
    tokenizer: TokenizerBase, protocol: Protocol, seed: str, step: int, kinds: Sequence[str] = KINDS
) -> list[tuple[list[int], list[int]]]:
    """Return (token ids, mask) for each row of a step; the mask is 1 where the policy writes.

    The batch depends only on the arguments, so that a training can be resumed at any step.
    """
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
    """Return the ids of the tokens of names and years, which are what can be copied from a sentence."""
    words = (*NAME_WORDS, *YEARS)
    tokens = [tokenizer(f" {word}", add_special_tokens=False).input_ids for word in words]
    return frozenset(token for (token,) in tokens)


def _row(
    kind: str, question: Question, world: World, search: WorldSearch, protocol: Protocol, rng: random.Random
) -> tuple[list[dict[str, str]], list[Segment]]:
    """Write a row of a kind; returns (messages of the prompt, trace)."""
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
        text, trace = write_echo_row(rng)
    else:
        trace = write_form_row(question, world, rng, form if kind == "note" else None)
    return form_prompt(protocol, form, text), trace


def _needed_sentences(question: Question, world: World) -> list[str]:
    """Return the sentences that state the facts of a question, in the order of the facts."""
    by_title = dict(passage["contents"].split("\n", 1) for passage in world.passages)
    return [by_title[f'"{lookup.entity}"'] for lookup in question.lookups]


def _search_results(query: str, search: WorldSearch) -> list[str]:
    """Return the sentences that a search finds, best first."""
    return [document.text for document in search.results([query])[0]]


def _reading_segment(sentences: Sequence[str], rng: random.Random) -> Segment:
    """Make a block of sentences, which may begin with some other words."""
    return Segment(aside_words(rng) + "\n" + "".join(f"{sentence}\n" for sentence in sentences), False)
