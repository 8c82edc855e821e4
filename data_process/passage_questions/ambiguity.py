"""Finds entities, facts and questions that have two right answers in the corpus, so that they are dropped.

An entity is left out if another page has its name, in the title or at the beginning of the text. A fact is
left out if another passage states another year for the same name. A question that asks for an entity by two
facts is dropped if another passage names both. A question that contains its own answer is dropped, too.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from data_process.passage_questions.facts import Fact
from data_process.passage_questions.kinds import name_key
from data_process.passage_questions.vocabulary import NAME
from rag_r1.data.answer_forms import DATE, YEAR, date_forms
from rag_r1.data.evidence import base_title

#: A title in quotation marks, or a person's name, followed by a year in parentheses.
_QUOTED_YEAR = re.compile(rf'"([^"]{{2,80}})" \((?:[\w ]+, )?({YEAR})\)')
_LIFE_YEAR = re.compile(rf"({NAME}) \((?:born )?(?:[^()]{{0,20}} )?({YEAR})\s?[)–-]")
#: The name at the beginning of a text, up to a parenthesis, a comma or the verb.
_FIRST_NAME = re.compile(r"^[\"“]?(.{2,80}?)[\"”]?(?: ?\(|, | (?:is|was|are|were) )")
#: Relation -> pattern of a name and its year in any passage; such a year may contradict another passage.
_YEAR_RELATIONS = {"birth year": _LIFE_YEAR, "release year": _QUOTED_YEAR}


class Mentions:
    """The names, years and dates that the passages of a corpus mention, and that may be second answers."""

    def __init__(self, pages: Iterable[tuple[str, str, str]]) -> None:
        """`pages` are the id, title and text of every passage."""
        #: Key of a name -> titles of the pages with that name.
        self._titles_by_name: dict[str, set[str]] = defaultdict(set)
        #: Relation and key of a name -> the years that passages state.
        self._years: dict[tuple[str, str], set[str]] = defaultdict(set)
        #: Id of a passage -> its title and text.
        self._texts: dict[str, str] = {}
        #: Value -> ids of the passages that contain it, for the values that have been searched for.
        self._matches: dict[str, set[str]] = {}
        #: Date in one form -> ids of the passages that contain it.
        self._dates: dict[str, set[str]] = defaultdict(set)
        for passage_id, title, text in pages:
            self._texts[passage_id] = f"{title}\n{text}"
            names = {base_title(title)}
            if first_name := _FIRST_NAME.match(text):
                names.add(first_name[1])
            for name in names:
                self._titles_by_name[name_key(name)].add(title)
            for relation, pattern in _YEAR_RELATIONS.items():
                for match in pattern.finditer(text):
                    self._years[relation, name_key(match[1])].add(match[2])
            for date in re.findall(DATE, text):
                self._dates[date_forms(date)[1]].add(passage_id)

    def shares_name(self, title: str) -> bool:
        """Return whether another page has the name in this title."""
        return len(self._titles_by_name[name_key(base_title(title))] | {title}) > 1

    def contradicts(self, title: str, fact: Fact) -> bool:
        """Return whether a passage states another year for an entity of this name.

        Relations other than those of _YEAR_RELATIONS are never contradicted.
        """
        return bool(self._years.get((fact.relation, name_key(base_title(title))), set()) - {fact.value})

    def passages_with_all(self, values: Sequence[str]) -> set[str]:
        """Return the ids of the passages that contain all of these names, years and dates (one or more)."""
        return set.intersection(*map(self._passages_with, values))

    def has_name(self, passage_id: str, name: str) -> bool:
        """Return whether a passage contains a name."""
        return name in self._texts[passage_id]

    def _passages_with(self, value: str) -> set[str]:
        """Return the ids of the passages that contain a value."""
        if re.fullmatch(DATE, value):
            return self._dates[date_forms(value)[1]]
        if value not in self._matches:
            self._matches[value] = {passage_id for passage_id, text in self._texts.items() if value in text}
        return self._matches[value]


def contains_answer(question: str, golds: Iterable[str]) -> bool:
    """Return whether the question contains one of its answers, as whole words in any case."""
    return any(re.search(rf"(?<!\w){re.escape(gold)}(?!\w)", question, re.IGNORECASE) for gold in golds)
