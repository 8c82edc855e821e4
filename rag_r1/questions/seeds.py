"""Draws the seeds: the passages from which the questions of each kind are written.

    one_hop       asks for a fact of one passage
    number_date   the same, and the answer is a number or a date
    two_facts     asks for what two facts of a passage are true of
    bridge        follows a chain of two to four passages, each of which links to the next (passages/links.py)
    comparison    asks which of the subjects of two similar passages is older, larger or the like
    yes_no        asks a question about both subjects that is answered with yes or no
    both          asks for the same fact of both subjects; the answer names the two

`rag-r1 passage-questions` has these kinds except number_date and both. Passages are drawn from all sources in
turn, and within a source from all documents in turn, so that neither a large source nor a long document
dominates the set. Every random choice is a hash of the random seed and of the passages concerned; it does not
depend on the other choices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, NamedTuple, get_args

from rag_r1.questions.passages.documents import SourcePassage, is_copy
from rag_r1.questions.passages.links import Link, Links
from rag_r1.rollouts.requests import seeded_fraction

KindName = Literal["one_hop", "number_date", "two_facts", "bridge", "comparison", "yes_no", "both"]
KINDS: tuple[KindName, ...] = get_args(KindName)
#: Kinds whose questions need several passages.
MULTI_HOP = frozenset({"bridge", "comparison", "yes_no", "both"})
#: Kinds whose questions are about two similar passages.
PAIRS = frozenset({"comparison", "yes_no", "both"})
#: Kinds with two possible answers, so that half of all guesses are right.
GUESSABLE = frozenset({"comparison", "yes_no"})
#: (number of passages in a chain, share of the chains that have at most this many).
_LENGTHS = ((2, 0.6), (3, 0.9), (4, 1.0))
#: Number of passages in the longest chain.
LONGEST_CHAIN = _LENGTHS[-1][0]
#: For each wanted pair, similar passages are searched for this number of passages, since not all have one.
_STARTS_PER_PAIR = 2

#: Maps the id of a passage to the ids of similar passages, best first.
Similar = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Seed:
    """The passages from which one question is written."""

    id: str
    kind: KindName
    #: In the order of the question's steps; all are in the same split.
    passages: tuple[SourcePassage, ...]
    #: How each passage leads to the next: `title`, `url`, `name` or `similar`.
    ways: tuple[str, ...] = ()
    #: Whether the question must describe the subject of the first passage instead of naming it.
    obscure: bool = False

    @property
    def split(self) -> str:
        """The split of the passages, and so of the question."""
        return self.passages[0].split

    @property
    def planned_answer(self) -> str | None:
        """The answer that a yes_no question must have; None for other kinds.

        Half of the answers are yes, so that a policy gains nothing by always saying yes.
        """
        if self.kind != "yes_no":
            return None
        return "yes" if seeded_fraction(0, "wanted", self.id) < 0.5 else "no"


class _Step(NamedTuple):
    """A passage of a seed that is being made."""

    passage: SourcePassage
    #: How the previous passage leads to it, as in `Seed.ways`; empty for the first one.
    way: str = ""


@dataclass(frozen=True)
class SeedPlan:
    """Draws the seeds from the passages of a pool and the links between them."""

    links: Links
    kinds: Sequence[KindName]
    #: Largest number of seeds of each kind.
    per_kind: int
    #: Random seed of all choices.
    seed: int
    #: Share of the bridges that describe the first subject instead of naming it.
    obscure_share: float

    def starts_needing_similar(self) -> list[SourcePassage]:
        """Return the passages for which `draw` needs similar ones.

        These are the first passages of pairs, and those of bridges if there are too few links for chains.
        """
        passages: dict[str, SourcePassage] = {}
        for kind in self.kinds:
            count = _STARTS_PER_PAIR * self.per_kind if kind in PAIRS else 0
            if kind == "bridge":
                linked = (passage for passage in self._starts(kind) if self._links_in_split(passage))
                count = self.per_kind - sum(1 for _ in islice(linked, self.per_kind))
            passages |= {passage.id: passage for passage in islice(self._starts(kind), count)}
        return list(passages.values())

    def draw(self, similar: Similar) -> list[Seed]:
        """Draw the seeds of all kinds, each once."""
        return [seed for kind in dict.fromkeys(self.kinds) for seed in self._draw_kind(kind, similar)]

    def _draw_kind(self, kind: KindName, similar: Similar) -> list[Seed]:
        """Draw at most `per_kind` seeds of a kind."""
        seeds: dict[str, Seed] = {}
        for start in self._starts(kind):
            if len(seeds) == self.per_kind:
                break
            if seed := self._seed_from(start, kind, similar):
                seeds.setdefault(seed.id, seed)
        return list(seeds.values())

    def _starts(self, kind: KindName) -> Iterator[SourcePassage]:
        """Yield all passages in the order in which they become the first passage of a seed.

        First come the passages that are the first of their document, then the second ones, and so on. In
        each of these rounds the sources take turns. Otherwise the order is random.
        """
        shuffled = sorted(self.links.pool.passages, key=lambda passage: self._fraction(kind, passage.id))
        turns: dict[str, dict[str, int]] = defaultdict(dict)  # source -> document -> its turn in the source
        rounds: dict[str, int] = defaultdict(int)  # document -> number of its passages so far
        ranked = []
        for passage in shuffled:
            documents = turns[passage.source]
            turn = documents.setdefault(passage.document, len(documents))
            ranked.append((rounds[passage.document], turn, passage))
            rounds[passage.document] += 1
        ranked.sort(key=lambda item: item[:2])  # stable, so passages of equal rank stay shuffled
        return (passage for *_, passage in ranked)

    def _seed_from(self, start: SourcePassage, kind: KindName, similar: Similar) -> Seed | None:
        """Return the seed that begins with a passage; None if it needs a second passage and finds none."""
        steps = self._chain(start, similar) if kind == "bridge" else [_Step(start)]
        if kind in PAIRS:
            steps += self._similar_steps(start, similar)[:1]
        if kind in MULTI_HOP and len(steps) < 2:
            return None
        passages = tuple(step.passage for step in steps)
        ids = [passage.id for passage in passages]
        key = repr(sorted(ids) if kind in PAIRS else ids)
        seed_id = f"{kind}-{int(seeded_fraction(0, 'seed', key) * (1 << 48)):012x}"
        obscure = kind == "bridge" and self._fraction("obscure", seed_id) < self.obscure_share
        return Seed(seed_id, kind, passages, tuple(step.way for step in steps[1:]), obscure)

    def _chain(self, start: SourcePassage, similar: Similar) -> list[_Step]:
        """Return a chain of a random length, which is shorter if it runs out of links."""
        fraction = self._fraction("length", start.id)
        length = next(length for length, share in _LENGTHS if fraction < share)
        chain = [_Step(start)]
        while len(chain) < length and (step := self._next_step(chain, similar)):
            chain.append(step)
        return chain

    def _next_step(self, chain: Sequence[_Step], similar: Similar) -> _Step | None:
        """Return the next step of a chain, to a document that is not in it; None if there is none.

        Links by title are preferred, since the title tells what the next passage is about. Without any link,
        the first passage of a chain is followed by a similar one.
        """
        passages, last = self.links.pool.by_id, chain[-1].passage
        documents = {step.passage.document for step in chain}
        links = [
            link for link in self._links_in_split(last) if passages[link.target].document not in documents
        ]
        links = [link for link in links if link.kind == "title"] or links
        if not links:
            return next(iter(self._similar_steps(last, similar)), None) if len(chain) == 1 else None
        link = min(links, key=lambda link: self._fraction(last.id, link.target))
        return _Step(passages[link.target], link.kind)

    def _links_in_split(self, passage: SourcePassage) -> list[Link]:
        """Return the links to passages in the same split, so that no question mixes train and test."""
        links = self.links.of(passage)
        return [link for link in links if self.links.pool.by_id[link.target].split == passage.split]

    def _similar_steps(self, start: SourcePassage, similar: Similar) -> list[_Step]:
        """Return steps to the similar passages of other documents in the same split, without copies of the
        start."""
        candidates = (self.links.pool.by_id.get(candidate) for candidate in similar.get(start.id, ()))
        return [
            _Step(candidate, "similar")
            for candidate in candidates
            if candidate
            and candidate.document != start.document
            and candidate.split == start.split
            and not is_copy(start.contents, candidate.contents)
        ]

    def _fraction(self, purpose: str, key: str) -> float:
        """Return a random number from 0 to 1 that depends only on the seed, the purpose and the key."""
        return seeded_fraction(self.seed, purpose, key)
