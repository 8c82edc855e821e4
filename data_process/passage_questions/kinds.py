"""Recognises the kind of a page (a person, a film, ...), and reads the facts of that kind.

    read_facts("Alien (film)", "Alien is a 1979 science-fiction film directed by Ridley Scott. ...")
        kind film; release year: 1979; director: Ridley Scott

The first sentence tells the kind: `TITLE is a ... NOUN`. The table KINDS lists the kinds, each with the rules
that read its facts. A relation is left out if its rule finds two values in the passage.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from data_process.passage_questions import facts, vocabulary
from data_process.passage_questions.facts import IS, LIFE, Fact, Values
from data_process.passage_questions.vocabulary import NATION_REGEX, OCCUPATIONS, UPPER
from rag_r1.data.answer_forms import YEAR
from rag_r1.data.evidence import base_title


@dataclass(frozen=True)
class PageFacts:
    """The kind of a page and its facts."""

    #: A key of KINDS, such as `film`.
    kind: str
    #: Relation -> fact.
    facts: dict[str, Fact]
    #: The noun for the subject of the page.
    noun: str
    #: Relations that were left out because the passage has two values.
    disagreeing: tuple[str, ...] = ()


def read_facts(title: str, text: str) -> PageFacts | None:
    """Read the facts of a page; returns None if its kind is not known."""
    base, opening = base_title(title), first_sentence(text)
    for kind, (noun_of, rules) in KINDS.items():
        if (noun := noun_of(base, opening)) is None:
            continue
        found = {relation: dict(rule(opening, text)) for relation, rule in rules.items()}
        unique: dict[str, Fact] = {}
        for relation, forms_of in found.items():
            if len(forms_of) == 1:
                [(value, forms)] = forms_of.items()
                unique[relation] = Fact(relation, value, forms)
        return PageFacts(kind, unique, noun, tuple(name for name, values in found.items() if len(values) > 1))
    return None


def name_key(name: str) -> str:
    """Return a key that is the same for a name with and without `The`, in any case."""
    return name.casefold().removeprefix("the ")


def first_sentence(text: str) -> str:
    """Return the text up to the first full stop that ends a sentence and is not in parentheses."""
    depth = 0
    for match in re.finditer(r"[()]|(?<=[\w\"'’)\]])[.!?]\"?(?= [\"“]?[A-Z0-9])", text):
        if match[0] in "()":
            depth = max(0, depth + (1 if match[0] == "(" else -1))
        elif not depth and not _ABBREVIATION.search(text[max(0, match.start() - 5) : match.start()]):
            return text[: match.end()]
    return text


#: What stands before a full stop that ends no sentence. `first_sentence` looks at five characters: the four
#: of the longest, and the one before them.
_ABBREVIATION = re.compile(r"\b(?:[A-Z]|St|Dr|Mr|Mrs|Ms|Jr|Sr|vs|No|Vol|feat|Inc|Ltd|Co|Mt|Ft)$")
_IN_PARENTHESES = re.compile(r"\s*\((?:[^()]|\([^()]*\))*\)")
#: Words that begin another phrase; a noun after one of them belongs to that phrase.
_CLAUSE = re.compile(r"\b(?:by|of|in|from|for|about|on|who|that|and|at|to|with|where|which|as|held|has)\b")
#: What may follow the noun. A further noun may not, since the first would only describe it.
_AFTER_NOUN = (
    r"(?=[.,;:]|$| (?:by|of|in|from|for|about|on|who|that|and|at|to|with|where|which|as|held|has|is|was|set|"
    r"near|within|based|co|starring|featuring|consisting|making|playing|north|south|east|west|situated|led|"
    r"between|under|through|comedy|just|built|made|run|serving|owned|\w+ed|\w+ly|written|known|taken|shot|"
    r"off|whose|operating|belonging|fronted)\b)"
)
#: Occupations that are only clear together with the word before them.
_VAGUE = (
    "player|driver|coach|manager|artist|officer|designer|personality|host|executive|editor|general|runner"
)


def _noun(nouns: str, fixed_noun: str, base: str, opening: str) -> str | None:
    """Return the noun of a first sentence `BASE is a ... NOUN`, where NOUN is one of `nouns`.

    A non-empty `fixed_noun` is returned in its place. Returns None if the sentence has another form.
    """
    if re.search(rf"\(.{{0,60}}?\bborn\b|\((?:[^()]* )?{YEAR} ?[–-] ?[^()]*{YEAR}\)", opening[:200]):
        return None  # a person
    match = re.match(
        rf"(?:The )?[\"“']?(?i:{re.escape(base)})[\"”']?[^.]{{0,160}}?,? {IS} (?:an?|the|one of the) "
        rf"(?P<adjectives>(?:[\w\-–/'’&,]+ ){{0,9}}?)(?P<noun>{nouns})(?![\w\-–]){_AFTER_NOUN}",
        _IN_PARENTHESES.sub("", opening),
    )
    return None if match is None or _CLAUSE.search(match["adjectives"]) else fixed_noun or match["noun"]


def _person(base: str, opening: str) -> str | None:
    """Return the occupation at the end of a person's description, or `person` if it is not known.

    Returns None if the page is not about a person.
    """
    match = LIFE.match(opening)
    is_life = match and re.search(rf"born|\bb\. |{YEAR}", match["life"])
    name, description = match.group("name", "rest") if is_life else (opening[: len(base)], opening)
    if len(base.split()) < 2 or base.split()[-1].lower() not in name.lower() or re.match(r"\w+ of ", base):
        return None
    predicate = re.search(rf" {IS} (?:an?|the|one of) ([^.;]*)", description)
    if predicate is None or (not is_life and not NATION_REGEX.match(predicate[1])):
        return None
    end = r",| who | best | known | from | of | for | in | at | with | and | based "
    phrase = re.split(end, predicate[1])[0].strip()
    occupation = re.search(rf"(?:(?:^|\s)[a-z]+ (?:{_VAGUE})|(?:^|[\s/\-–])(?:{OCCUPATIONS}))$", phrase)
    if occupation and (noun := occupation[0].strip(" /-–")) and not re.fullmatch(_VAGUE, noun):
        return noun
    return "person" if is_life and re.search(rf"\b(?:{OCCUPATIONS})\b", predicate[1]) else None


_MUSIC = (
    "rock|pop|hip hop|hip-hop|rap|music|musical|vocal|metal|punk|girl|boy|jazz|folk|soul|R&B|idol|electronic|"
    "funk|K-pop|dance|synthpop|gospel|blues|grunge|indie"
)
_BANDS = f"band|(?:{_MUSIC}) (?:group|duo|trio)"
_MEMBER = "singer|vocalist|vocals|guitarist|drummer|bassist|frontman|frontwoman|keyboardist|member"
_BAND_NAME = rf"(?:The )?{UPPER}[\w'’\-]*(?: (?:(?:of|and|the) )*{UPPER}[\w'’\-]*)*"
_OF_BAND = (
    rf"(?:{_MEMBER})\b[^.]{{0,30}}? (?:of|for|in) (?:the )?(?:[\w\-]+ ){{0,4}}?(?:band |group |duo |trio )?"
    rf"(?:the )?({_BAND_NAME})"
)
_DIRECTED = r"[Dd]irected by|[Dd]irected and [\w-]+ by|[Dd]irected, [\w-]+(?:,| and)[\w ,-]{0,20}? by"
_SEQUEL = r"(?:[Ss]equel|[Pp]requel|[Ff]ollow-up) to (?:the|his|her)?(?: \w+){0,4}? ?(\"[^\"]+\")"
_BOOK_OF = (
    r"based on (?:the|a)(?: [\w-]+){0,5} (?:novel|book|play|memoir|novella|story)(?:,? \"[^\"]+\",?)?"
    "(?: of the same name)? by"
)
_FROM_ALBUM = r"from (?:the|his|her|their|its)\b[^.\"]{0,60}? album,? (\"[^\"]+\")"
_BOOKS = "novel|novella|book|memoir|play|short story|short story collection|poetry collection"
_BY = r"(?:novel|novella|book|memoir|play|story|collection)(?: written)? by"
_SERIES = "(?:television|TV|drama|anime|comedy) series|television show|(?:television )?sitcom"
_PLACES = (
    "village|town|city|township|municipality|suburb|neighborhood|neighbourhood|hamlet|commune|airport|museum|"
    "unincorporated community|census-designated place|stadium|arena|university|college|high school|school|"
    "hospital|church|cathedral|castle|hotel|skyscraper|building|shopping mall|theatre|theater|park|"
    "lake|island|library|prison|zoo|winery|house|mansion|ski resort|amusement park|golf course"
)
_ORGANISATIONS = (
    "company|corporation|manufacturer|retailer|organization|organisation|charity|record label|airline|bank|"
    "university|college|school|institute|museum|brewery|football club|orchestra|"
    "political party|trade union|think tank|fraternity|sorority|law firm|supermarket chain|restaurant chain|"
    "publisher|high school"
)
_PUBLICATIONS = "newspaper|magazine|journal"
_OTHER_COUNTRIES = r"United States|U\.S\.|American|New York|United Kingdom|Ireland|Soviet|Scottish"
_REGION = {
    "state": partial(facts.place, vocabulary.STATES_PATTERN, "New York|Georgia|Washington"),
    "country": partial(facts.place, vocabulary.COUNTRIES_PATTERN, _OTHER_COUNTRIES),
}


class PageKind(NamedTuple):
    """A kind of pages."""

    #: Returns the noun for the subject of a page, from its base title and first sentence; None if the page is
    #: not of this kind.
    noun_of: Callable[[str, str], str | None]
    #: Relation -> the rule that reads it from the first sentence and the text.
    rules: dict[str, Callable[[str, str], Values]]


#: The kinds by name. A page has the first kind that fits.
KINDS: dict[str, PageKind] = {
    "person": PageKind(
        _person,
        {
            "birth year": partial(facts.year_of_life, "birth"),
            "birth date": partial(facts.date_of_life, "birth"),
            "death year": partial(facts.year_of_life, "death"),
            "death date": partial(facts.date_of_life, "death"),
            "nationality": facts.nationality,
            "birthplace": facts.birthplace,
            "band": partial(facts.named, _OF_BAND),
        },
    ),
    "film": PageKind(
        partial(_noun, "film", "film"),
        {
            "release year": partial(facts.released, "film"),
            "director": partial(facts.person_after, _DIRECTED),
            "source author": partial(facts.person_after, _BOOK_OF),
            "earlier film": partial(facts.named, _SEQUEL),
        },
    ),
    "album": PageKind(
        partial(_noun, "album|extended play|EP", "album"),
        {
            "artist": partial(facts.artist, "album|EP|extended play"),
            "release year": partial(facts.released, "album|EP|play"),
        },
    ),
    "song": PageKind(
        partial(_noun, "song|single", "song"),
        {
            "artist": partial(facts.artist, "song|single"),
            "release year": partial(facts.released, "song|single"),
            "album": partial(facts.named, _FROM_ALBUM),
        },
    ),
    "novel": PageKind(
        partial(_noun, _BOOKS, ""),
        {
            "author": partial(facts.person_after, _BY),
            "release year": partial(facts.released, "novel|novella|book|memoir|play|story"),
        },
    ),
    "band": PageKind(
        partial(_noun, _BANDS, "band"), {"nationality": facts.nationality, "formation year": facts.founded}
    ),
    "series": PageKind(
        partial(_noun, _SERIES, "television series"),
        {"creator": partial(facts.person_after, r"[Cc]reated by|[Cc]reated and \w+ by")},
    ),
    "episode": PageKind(
        partial(_noun, "episode", "episode"),
        {
            "director": partial(facts.person_after, "[Dd]irected by"),
            "writer": partial(facts.person_after, "[Ww]ritten by"),
        },
    ),
    "organisation": PageKind(partial(_noun, _ORGANISATIONS, ""), {"founding year": facts.founded, **_REGION}),
    "publication": PageKind(partial(_noun, _PUBLICATIONS, ""), {"founding year": facts.founded}),
    "place": PageKind(partial(_noun, _PLACES, ""), dict(_REGION)),
    "taxon": PageKind(
        partial(_noun, "genus|species", ""),
        {"family": partial(facts.named, r"\bfamily,? \(?\"?([A-Z][a-z]+(?:aceae|idae))\b")},
    ),
}
