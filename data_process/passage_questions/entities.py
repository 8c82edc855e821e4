"""Finds the entities of a corpus, their names in questions, and the links between them.

`read_entities` reads the facts of each page. Words in the parentheses of a title become part of the name, as
in `the 1950 film "Broken Arrow"` or `the composer Buddy Baker`; an entity whose name is still ambiguous is
left out. `Links` follows a fact to another entity, if it is certain which one the fact names.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from data_process.passage_questions.ambiguity import Mentions
from data_process.passage_questions.kinds import PageFacts, first_sentence, name_key, read_facts
from data_process.passage_questions.vocabulary import NATION_REGEX, OCCUPATIONS, UPPER
from rag_r1.corpus.reader import Passage
from rag_r1.data.evidence import base_title


@dataclass(frozen=True)
class Entity:
    """The subject of a page."""

    #: Id of its passage.
    id: str
    title: str
    #: The title without parentheses.
    base: str
    #: The name in a question.
    name: str
    page: PageFacts
    #: Text of its passage, without the title.
    text: str = field(repr=False)

    @property
    def kind(self) -> str:
        """The kind of its page, such as `film`."""
        return self.page.kind

    def value(self, relation: str) -> str | None:
        """Return the value of one of its facts, or None if it is not known."""
        fact = self.page.facts.get(relation)
        return fact.value if fact else None

    def forms(self, relation: str) -> tuple[str, ...]:
        """Return all forms of a fact's value. Raises KeyError if the fact is not known."""
        return self.page.facts[relation].forms


_WRITER_WORDS = r"\b(?:writ|author|novel|poet|playwright|journalist|historian|philosopher|scholar)"
#: Relation -> kinds of the linked entity, and a pattern that the first sentence of its page must match.
LINKS: dict[str, tuple[tuple[str, ...], str]] = {
    "director": (("person",), r"\b(?:film|director|directed|filmmaker|screenwriter|actor|actress)"),
    "artist": (("person", "band"), r"\b(?:sing|music|rapper|song|DJ|guitar|pian|band|album)"),
    "author": (("person",), _WRITER_WORDS),
    "creator": (("person",), r"\b(?:produc|writ|direct|comed|actor|actress|anim|cartoon|television)"),
    "source author": (("person",), _WRITER_WORDS),
    "writer": (("person",), r"\b(?:writ|produc|comed|television|author)"),
    "earlier film": (("film",), ""),
    "band": (("band",), ""),
    "album": (("album",), ""),
}
#: Kinds whose names are written without quotation marks and without a noun before them.
_UNQUOTED = ("person", "organisation", "publication", "place", "taxon")
#: Kind -> the last words in a title's parentheses that fit it; any words fit other kinds.
_TITLE_NOUNS = {
    "film": ("film",),
    "album": ("album", "EP", "soundtrack"),
    "song": ("song", "single"),
    "novel": ("novel", "novella", "book", "play", "memoir", "story", "collection"),
    "band": ("band", "group", "duo"),
    "series": ("series", "sitcom"),
}


def read_entities(passages: Iterable[Passage], mentions: Mentions, dropped: Counter[str]) -> list[Entity]:
    """Return the entities of all pages of a known kind with an unambiguous name, with their facts.

    Entities and facts that are left out are counted in `dropped`, by rule.
    """
    entities = []
    for passage in passages:
        if passage.id is None or not passage.title:
            continue
        title, text = clean(passage.title), clean(passage.contents.partition("\n")[2])
        if (page := read_facts(title, text)) is None:
            continue
        dropped["a fact with two values in its passage"] += len(page.disagreeing)
        if mentions.shares_name(title):
            dropped["an entity whose name another one has"] += 1
        elif (name := name_of(title, page, text)) is None:
            dropped["an entity without a name that tells it from others"] += 1
        else:
            facts = {key: fact for key, fact in page.facts.items() if not mentions.contradicts(title, fact)}
            dropped["a fact with another value in another passage"] += len(page.facts) - len(facts)
            page = PageFacts(page.kind, facts, page.noun)
            entities.append(Entity(passage.id, title, base_title(title), name, page, text))
    return entities


def clean(text: str) -> str:
    """Resolve the HTML escapes of a text, and replace each run of white space by one blank."""
    return " ".join(html.unescape(text).split())


def name_of(title: str, page: PageFacts, text: str) -> str | None:
    """Return the name of a page's subject in questions, or None if its title gives no unambiguous one."""
    base = base_title(title)
    qualifier = title[len(base) :].strip(" ()")  # the words in parentheses
    quoted = base if page.kind in (*_UNQUOTED, "band") else f'"{base}"'
    if '"' in base or (qualifier and re.search(r"born|died|fictional|character|disambiguation", qualifier)):
        return None
    if page.kind in _UNQUOTED:
        return _qualified_name(base, qualifier, page.kind) if qualifier else _plain_name(base, page, text)
    if not qualifier:
        return f"the {page.noun} {quoted}"
    if not qualifier.endswith(_TITLE_NOUNS.get(page.kind, ("",))):
        return None
    return f"the {qualifier.removeprefix('The ')} {quoted}"


def _qualified_name(base: str, qualifier: str, kind: str) -> str | None:
    """Return a name without quotation marks, such as `Ulm School in Ulm, Ohio` or `the composer Buddy Baker`,
    or None if the qualifier can be neither a region nor words before the name."""
    if kind in ("organisation", "place") and re.fullmatch(rf"{UPPER}[\w' .]+, {UPPER}[\w' .]+", qualifier):
        return f"{base} in {qualifier}"
    if kind == "person" and not re.search(rf"\b(?:{OCCUPATIONS})$", qualifier):
        return None
    is_word = qualifier[0].islower() or NATION_REGEX.match(qualifier)
    return f"the {qualifier} {base}" if is_word and not re.search(r"\d", qualifier) else None


def _plain_name(base: str, page: PageFacts, text: str) -> str:
    """Return a name without quotation marks and qualifier, such as `the genus Rosa`, or `the Alps` if the
    text begins so."""
    if page.kind == "taxon" and page.noun == "genus":
        return f"the genus {base}"
    return f"the {base}" if text.startswith(f"The {base}") else base


#: A person's page with such a word may name the band of a relative.
_RELATIVES = r"\b(?:daughter|son|wife|husband|brother|sister|father|mother)\b"


class Links:
    """Finds the entity that a fact of another one names."""

    def __init__(self, entities: Iterable[Entity]) -> None:
        self._by_name: dict[str, list[Entity]] = {}
        for entity in entities:
            self._by_name.setdefault(name_key(entity.base), []).append(entity)

    def follow(self, entity: Entity, relation: str) -> Entity | None:
        """Return the entity that the fact names, or None if it is not certain.

        It is certain if exactly one entity of the right kind has that name, it is not `entity` itself, and
        its first sentence fits the relation (LINKS). In addition, an album must be by the artist of the
        entity, and the text must have the year of a film or novel. If the relation is `band`, the text may
        name neither several bands nor a relative.
        """
        value = entity.value(relation)
        kinds, required = LINKS[relation]
        matches = [target for target in self._by_name.get(name_key(value or ""), ()) if target.kind in kinds]
        if len(matches) != 1 or matches[0].id == entity.id:
            return None
        [target] = matches
        if relation == "album" and entity.value("artist") != target.value("artist"):
            return None  # an album of the same name by another artist
        year = target.value("release year")
        if target.kind in ("film", "novel") and (year is None or year not in entity.text):
            return None  # perhaps another work of the same name
        if relation == "band" and (
            len(re.findall(r"\bbands?\b", entity.text)) > 1 or re.search(_RELATIVES, entity.text)
        ):
            return None  # one of several bands, or the band of a relative
        return target if re.search(required, first_sentence(target.text)) else None

    def root(self, entity: Entity) -> str:
        """Return the title at the end of an entity's links, after at most four of them.

        All pages that lead to this title are in the same split.
        """
        chain = [entity]
        while len(chain) < 5:
            followed = (self.follow(chain[-1], relation) for relation in LINKS if chain[-1].value(relation))
            if (target := next(filter(None, followed), None)) is None or target in chain:
                break
            chain.append(target)
        return chain[-1].title
