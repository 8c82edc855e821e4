"""Makes SFT data without searches, for R1-Searcher's two stages in miniature.

Rewards can only teach a policy to search if it already searches now and then. A large model does so because
its prompt says how, and because it can follow instructions about a form that it has never seen. This data
gives the tiny policy the same ability without ever showing a search. There are six kinds of rows:

    read    Documents appear in the thought without a request, some of them after a few words. The policy
            reads them and answers. In some rows it first writes a note.
    lost    The same with documents that do not help, or with an empty block. The policy guesses.
    note    The prompt names a form: `Key words between <|begin_of_memo|> and <|end_of_memo|> may help`. The
            policy says what it notes (some words of the question, a name, or every name) and writes it in
            that form. Since it gets no reply, it guesses.
    guess   The same prompt, but the policy guesses without a note.
    drill   The policy compares two years that are in the question.
    echo    The policy repeats some words, such as names of forms.

The form has one of many names, so that the policy learns to copy the name from the prompt; `query` is never
among them. When the prompt in reinforcement learning names `query`, the same habit produces a first, aimless
query, in somewhat fewer trajectories than there are notes among the guesses (`NOTE_SHARE`). The rewards must
teach the rest: that a search engine reads these words, what to search for, and that a search pays.

Half of the notes contain arbitrary neighbouring words of the question, which find the wrong documents when
they are used as a query; the others contain one name or every name. Each note first says what it contains.
Stage 1 rewards a search whatever it finds, so it has no reason to prefer one of these habits; stage 2 has.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rag_r1.demo.names import FIRST, STEM, YEARS
from rag_r1.demo.policy import encode_trace
from rag_r1.demo.search import WorldSearch
from rag_r1.demo.tokenizer import make_tokenizer
from rag_r1.demo.traces.turns import conclude, guess, value_text
from rag_r1.demo.traces.writer import Segment, write_drill
from rag_r1.demo.world import KINDS, Question, World, demo_protocol, fresh_world, make_questions
from rag_r1.protocols import Document, Protocol

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as TokenizerBase

#: Name of R1-Searcher's protocol.
NAME = "r1_searcher"
#: The name of the form that is a search. In the SFT data it occurs only in prompts and exercises.
QUERY = "query"
#: The names of forms in the SFT data.
FORMS = (
    "memo list name mark word line sign page card slip file item label entry draft topic phrase title".split()
)
#: Share of the warm start's guesses that have a note. In the first trajectories of reinforcement learning,
#: the share with a query is at most as large.
NOTE_SHARE = 0.04
#: Share of `read` rows that also have a note, among those whose prompt does not name `query`.
READ_NOTE_SHARE = 0.3
#: Share of `lost` rows that contain documents; the others contain an empty block.
DOCUMENTS_SHARE = 0.7
#: What a note contains -> share of the notes.
NOTE_CONTENTS = {"some words": 0.5, "a name": 0.25, "every name": 0.25}
#: Maximum number of words in a note.
MAX_NOTE_WORDS = 4
#: Maximum number of documents in a search (the recipes' top-k) and in a row.
TOPK = 3

#: Rows per batch, by kind. The base has more notes than guesses; the warm start sets their final share.
BASE_MIX = {"read": 11, "lost": 3, "note": 5, "guess": 2, "drill": 2, "echo": 1}
WARM_MIX = {"read": 8, "lost": 4, "guess": 12}


def form_protocol(form: str) -> Protocol:
    """Return the demo's R1-Searcher protocol with another name for the form in its prompt."""
    protocol = demo_protocol(NAME)
    return replace(protocol, user_prompt=protocol.user_prompt.replace(f"_{QUERY}", f"_{form}"))


def no_search_tokenizer() -> TokenizerBase:
    """Make a tokenizer in which each word, year and document number is one token.

    A tag consists of three tokens: its beginning, its name and its end. The policy can therefore write a tag
    with a new name, from parts that it has learned in other tags and texts.
    """
    rng = random.Random(0)
    tags = demo_protocol(NAME).tags
    units = [f" {year}" for year in YEARS] + [f"({rank})" for rank in range(1, TOPK + 1)]
    units += ["<|begin_of", "<|end_of"]
    units += [text for tag in (tags.think, tags.answer) for text in (tag.open, tag.close)]
    texts = [f'"{word}' for word in (*FIRST, *STEM)] + [f"_{form}|> " for form in (*FORMS, QUERY)]
    texts.append(demo_protocol(NAME).observation([""], [[]]))
    for _ in range(40):
        world = fresh_world(rng)
        search = WorldSearch(world.passages, TOPK)
        for question in make_questions(world, 16, rng.randrange(1 << 48)):
            texts.append(form_protocol(QUERY).messages(question.text)[0]["content"] + " <think>")
            texts += [segment.text for segment in write_reading_row(question, world, search, rng)]
            texts += [segment.text for segment in write_guess_row(question, world, rng, FORMS[0])]
        texts += [segment.text for segment in write_echo_row(rng)[1]]
    texts += [f" {word}" for word in (*FORMS, QUERY)]
    return make_tokenizer(texts, units)


def write_reading_row(
    question: Question, world: World, search: WorldSearch, rng: random.Random, form: str | None = None
) -> list[Segment]:
    """Write a row with unrequested documents that contain every fact, and the answer that follows from them.

    With `form`, the policy first writes a note in that form.
    """
    needed = _needed_documents(question, world)
    entities = " ".join(lookup.entity for lookup in question.lookups)
    # The best first, as from a search engine.
    documents = (needed + _search_results(entities, search, needed))[:TOPK]
    thought, answer = conclude(question, question.lookups, rng, value_text)
    if question.kind == "bridge":
        # State the intermediate fact, too, because two steps in one thought are too hard for this policy.
        thought = f"{question.lookups[0].value}, {thought}"
    note = _note(question, form, rng) if form else ""
    turn = Segment(note + _ending(f"{thought}I know enough.", answer), True)
    return [_document_segment(documents, rng), turn]


def write_unrelated_row(
    question: Question, world: World, search: WorldSearch, rng: random.Random
) -> list[Segment]:
    """Write a row with unrequested documents that do not contain the answer, or with none, and a guess."""
    documents = []
    if rng.random() < DOCUMENTS_SHARE:
        query, needed = neighbouring_words(question, rng), _needed_documents(question, world)
        documents = _search_results(query, search, needed)
    return [_document_segment(documents, rng), *write_guess_row(question, world, rng, None)]


def _needed_documents(question: Question, world: World) -> list[Document]:
    """Return the documents that state the facts of a question, in the order of the facts."""
    by_title = {passage["contents"].partition("\n")[0]: passage for passage in world.passages}
    return [Document(**by_title[f'"{lookup.entity}"']) for lookup in question.lookups]


def _search_results(query: str, search: WorldSearch, needed: Sequence[Document]) -> list[Document]:
    """Return the results of a search, without the needed documents."""
    needed_ids = {document.id for document in needed}
    return [document for document in search.results([query])[0] if document.id not in needed_ids]


def _document_segment(documents: Sequence[Document], rng: random.Random) -> Segment:
    """Make the segment of a block of documents, at the beginning of a thought or after some words."""
    aside = aside_words(rng)
    return Segment((f" {aside}" if aside else "") + demo_protocol(NAME).observation([""], [documents]), False)


def write_guess_row(question: Question, world: World, rng: random.Random, form: str | None) -> list[Segment]:
    """Write a row that answers with a random name of the right type.

    With `form`, the policy first writes a note in that form.
    """
    note = _note(question, form, rng) if form else ""
    return [Segment(note + _ending("I can guess.", guess(question, world, rng)), True)]


def _note(question: Question, form: str, rng: random.Random) -> str:
    """Write a note: a sentence that says what it contains, and a part of the question in the form."""
    label, text = draw_note(question, rng, " ")
    return f" I take a note of {label}. <|begin_of_{form}|> {text} <|end_of_{form}|>"


def draw_note(question: Question, rng: random.Random, separator: str) -> tuple[str, str]:
    """Draw a note; returns what it contains (a key of NOTE_CONTENTS) and its text.

    `separator` separates several names.
    """
    (label,) = rng.choices(list(NOTE_CONTENTS), NOTE_CONTENTS.values())
    names = [lookup.entity for lookup in question.lookups if lookup.entity in question.text]
    words = neighbouring_words(question, rng)
    name = rng.choice(names)
    return label, {"some words": words, "a name": name, "every name": separator.join(names)}[label]


def noted_contents(text: str) -> str | None:
    """Return what the first note in a text contains, a key of NOTE_CONTENTS; None without a note."""
    match = re.search(rf"I take a note of ({'|'.join(NOTE_CONTENTS)})\.", text)
    return match and match[1]


def aside_words(rng: random.Random) -> str:
    """Draw some words that precede a block of documents; in half of the cases, return an empty text.

    Without them the policy would learn to read documents in one position only.
    """
    return " ".join(rng.sample(FORMS, rng.randint(3, 9))) if rng.random() < 0.5 else ""


def neighbouring_words(question: Question, rng: random.Random) -> str:
    """Draw one to `MAX_NOTE_WORDS` neighbouring words of a question."""
    words = question.text.rstrip("?").replace(",", "").split()
    length = rng.randint(1, MAX_NOTE_WORDS)
    start = rng.randrange(len(words) - length + 1)
    return " ".join(words[start : start + length])


def write_echo_row(rng: random.Random) -> tuple[str, list[Segment]]:
    """Write an exercise in repeating words; returns (request, turn with the answer)."""
    forms = " ".join(rng.sample([*FORMS, QUERY], rng.randint(2, 4)))
    return f"Say {forms}.", [Segment(_ending("I know enough.", forms), True)]


def _ending(thought: str, answer: str) -> str:
    """Format the end of a thought and the answer."""
    return f" {thought} </think>\n<answer> {answer} </answer>"


def batches(
    tokenizer: TokenizerBase,
    steps: int,
    mix: dict[str, int],
    seed: str,
    counts: Counter[str],
    kinds: Sequence[str] = KINDS,
) -> Iterator[list[tuple[list[int], list[int]]]]:
    """Yield a batch for each step, with (token ids, mask) for each row; each batch is about a new world.

    `mix` has the number of rows of each kind, and `kinds` those of the questions. `counts` collects the
    kinds of the rows. If the mix has no notes, a guess gets a note with probability `NOTE_SHARE`.
    """
    rng = random.Random(seed)
    for _ in range(steps):
        world = fresh_world(rng)
        search = WorldSearch(world.passages, TOPK)
        row_kinds = [kind for kind, count in mix.items() for _ in range(count)]
        questions = make_questions(world, len(row_kinds), rng.randrange(1 << 48), kinds)
        batch = []
        for kind, question in zip(row_kinds, questions, strict=True):
            if kind == "guess" and "note" not in mix and rng.random() < NOTE_SHARE:
                kind = "note"
            counts[kind] += 1
            batch.append(encode_trace(tokenizer, *_write_row(kind, question, world, search, rng)))
        yield batch


def _write_row(
    kind: str, question: Question, world: World, search: WorldSearch, rng: random.Random
) -> tuple[Protocol, list[dict[str, str]], list[Segment]]:
    """Write a row of a kind, a key of the mixes; returns (protocol, messages of the prompt, trace)."""
    # The prompt may name `query` only in rows with a block of documents, where no form is needed.
    form = rng.choice([*FORMS, QUERY] if kind in ("read", "lost") else FORMS)
    protocol = form_protocol(form)
    text = question.text
    if kind == "read":
        # Some of these rows get a note, so that a note does not imply that a guess follows.
        has_note = form != QUERY and rng.random() < READ_NOTE_SHARE
        trace = write_reading_row(question, world, search, rng, form if has_note else None)
    elif kind == "lost":
        trace = write_unrelated_row(question, world, search, rng)
    elif kind == "drill":
        question, (turn,) = write_drill(world, rng, value_text)
        # The prompt of this protocol has opened the thought already.
        text, trace = question.text, [replace(turn, text=turn.text.removeprefix("<think>"))]
    elif kind == "echo":
        text, trace = write_echo_row(rng)
    else:
        trace = write_guess_row(question, world, rng, form if kind == "note" else None)
    return protocol, protocol.messages(text), trace
