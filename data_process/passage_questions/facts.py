"""Reads facts off a passage: small rules over its title and text, each for one kind of page and one relation.

    facts("Alien (film)", "Alien is a 1979 science-fiction film directed by Ridley Scott. ...")
        kind film; released: 1979; director: Ridley Scott

A passage is of the kind that its first sentence says (`X is a 1979 film`). A rule gives every value that it
finds; a relation with two different values is left out, as is what the rules do not understand whole: two
directors, a date that is disputed, a nationality with a hyphen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from data_process.passage_questions.vocabulary import (
    COUNTRIES,
    DATE,
    NAME,
    NATION,
    OCCUPATIONS,
    STATES,
    UPPER,
    YEAR,
    date_forms,
    nationality_forms,
)


@dataclass(frozen=True)
class Fact:
    """What a passage says about its subject. `forms`: of the answer, the usual one first."""

    relation: str
    value: str
    forms: tuple[str, ...]


@dataclass(frozen=True)
class PageFacts:
    """The kind of a page (`person`, `film`, ...), its facts by relation, the noun for its subject, and the
    relations that were left out because the passage has two values."""

    kind: str
    facts: dict[str, Fact]
    noun: str
    disagreeing: tuple[str, ...] = ()


Values = Iterator[tuple[str, tuple[str, ...]]]

_IS = r"(?:is|was|are|were)"
#: What may follow the name of one person; a second name may not.
_NAME_END = (
    r"(?=[.;:]|,(?! (?:and |& )?"
    + UPPER
    + r")|\s?\(|$|\s(?:and (?!"
    + UPPER
    + r")(?!his |her |their )|starring|"
    r"from|based|with|for|about|written|who|that|which|in|on|at|as|produced|released|featuring|under|set|"
    r"published|through|first|made|tells|telling|to)\b)"
)
#: Between a descriptor such as `American rock band` and the name of an artist.
_DESCRIPTOR = r"(?:(?:the )?(?:[\w\-–&/]+ ){0,6}?(?:band|group|singer|rapper|musician|artist|duo|trio|songwriter|singer-songwriter|composer|author|writer|novelist|guitarist|DJ|producer|pianist|recording artist|poet|playwright|journalist|historian)s? )?"
_UNCERTAIN = re.compile(
    r"\bc\.|circa|\bor\b|\?|baptised|baptized|O\.S\.|Old Style|disputed|probably|\bca\.|/"
)


def read_facts(title: str, text: str) -> PageFacts | None:
    """The facts of a page; None if its kind is not known."""
    base = base_title(title)
    first = first_sentence(text)
    for kind, (is_kind, rules) in KINDS.items():
        if (noun := is_kind(base, first)) is None:
            continue
        facts: dict[str, Fact] = {}
        disagreeing = []
        for relation, rule in rules.items():
            found = dict(rule(first, text))
            if len(found) == 1:
                [(value, forms)] = found.items()
                facts[relation] = Fact(relation, value, forms)
            elif found:
                disagreeing.append(relation)
        return PageFacts(kind, facts, noun, tuple(disagreeing))
    return None


def base_title(title: str) -> str:
    """The title without the words in parentheses at its end."""
    return re.sub(r" \([^()]*\)$", "", title)


def first_sentence(text: str) -> str:
    """Up to the first full stop that ends a sentence and stands in no parentheses."""
    depth = 0
    for match in re.finditer(r"[()]|(?<=[\w\"'’)\]])[.!?]\"?(?= [\"“]?[A-Z0-9])", text):
        if match[0] in "()":
            depth = max(0, depth + (1 if match[0] == "(" else -1))
        elif not depth and not re.search(
            r"(?:\b[A-Z]|\b(?:St|Dr|Mr|Mrs|Ms|Jr|Sr|vs|No|Vol|feat|Inc|Ltd|Co|Mt|Ft))$", text[: match.start()]
        ):  # noqa: E501
            return text[: match.end()]
    return text


# What kind of page it is: the noun for its subject, or None.


def _subject_is(first: str, noun: str, base: str) -> re.Match[str] | None:
    """The first sentence as `BASE ... is a DESCRIPTION NOUN`; groups `adjectives` and `noun`."""
    start = re.escape(base).replace("\\ ", " ")
    return re.match(
        rf"(?:The )?[\"“']?{start}[\"”']?(?P<between>[^.]{{0,160}}?),? {_IS} (?:an?|the|one of the) "
        rf"(?P<adjectives>(?:[\w\-–/'’&,]+ ){{0,9}}?)(?P<noun>{noun})(?![\w\-–])",
        re.sub(r"\s*\((?:[^()]|\([^()]*\))*\)", "", first),
        re.IGNORECASE,
    )


def _work(noun: str, called: str, never: str, base: str, first: str) -> str | None:
    match = _subject_is(first, noun, base)
    if match is None or _CLAUSE.search(match["adjectives"]):
        return None
    after = re.sub(r"\s*\((?:[^()]|\([^()]*\))*\)", "", first)[match.end() :]
    return None if re.match(rf" (?:{never})\b", after) else called or match["noun"].lower()


#: In the words before a noun: another phrase has begun, whose noun that is.
_CLAUSE = re.compile(r"\b(?:by|of|in|from|for|about|on|who|that|and|at|to|with|where|which|as|held|has)\b")
_LIFE = re.compile(r"^(?P<name>[^()]{3,90}?),? ?\((?P<life>(?:[^()]|\([^()]*\))*)\),?(?P<rest>.*)", re.DOTALL)


def _person(base: str, first: str) -> str | None:
    match = _LIFE.match(first)
    if match is None or not re.search(rf"born|\bb\. |{YEAR}", match["life"]) or re.match(r"\w+ of ", base):
        return None
    if base.split()[-1].lower() not in match["name"].lower() or len(base.split()) < 2:
        return None
    is_ = re.search(rf" {_IS} (?:an?|the|one of) (?P<what>[^.;]*)", match["rest"])
    if is_ is None:
        return None
    what = re.split(r",| who | best | known | from | of | for | in | at | with | and | based ", is_["what"])[
        0
    ]
    found = re.search(rf"(?:^|[\s/\-–])({OCCUPATIONS})$", what.strip())
    return found[1] if found else ("person" if re.search(rf"\b(?:{OCCUPATIONS})\b", is_["what"]) else None)


# The values of a relation.


def _life(first: str) -> tuple[str | None, str | None]:
    """Birth and death, as dates or years, of a life that is told without doubt."""
    match = _LIFE.match(first)
    if match is None or _UNCERTAIN.search(match["life"]):
        return None, None
    life = match["life"]
    when = rf"({DATE}|{YEAR})\b"
    if born := re.search(rf"\b(?:born|b\.)(?: in| on)? {when}", life):
        died = re.search(rf"\b(?:died|d\.) {when}", life) or re.search(rf"{when}$", life)
        is_other = died and died.start(1) != born.start(1)
        return born[1], died[1] if died and is_other and re.search("[–-]|died", life) else None
    lived = re.search(rf"(?:^|[;,] ?){when}(?: in [^–]+| ?, [^–\d]+)? ?[–-] ?{when}", life.strip())
    return (lived[1], lived[2]) if lived else (None, None)


def _year(which: int, first: str, text: str) -> Values:
    if date := _life(first)[which]:
        yield date[-4:], (date[-4:],)


def _full_date(which: int, first: str, text: str) -> Values:
    if (date := _life(first)[which]) and re.fullmatch(DATE, date):
        yield date_forms(date)[1], date_forms(date)


def _nationality(first: str, text: str) -> Values:
    match = _LIFE.match(first)
    rest = match["rest"] if match else first
    is_ = re.search(
        rf" {_IS} an? (?:former |retired |late |professional |prominent |noted |independent |award-winning |"
        rf"Grammy Award-winning |pioneering |leading |influential |contemporary |young )*(?P<what>[^.;]*)",
        rest,
    )
    nation = is_ and NATION.match(is_["what"])
    if not nation:
        return
    clause = re.split(r"\b(?:who|known|best|whose|where)\b", is_["what"])[0]
    after = is_["what"][nation.end() :]
    if re.match(
        r"(?:[-–/]|,? (?:and|or|&)\b|,? ?born| (?:football|rules|literature|language|gridiron|Idol|folk music"
        r"|Civil|Revolutionary|Army|Navy|Air|League|Premier|Open|descent)\b)",
        after,
    ):
        return
    if len({found[0] for found in NATION.finditer(clause)}) == 1:
        yield nation[0], nationality_forms(nation[0])


def _work_nationality(noun: str, first: str, text: str) -> Values:
    """The only nationality before the noun."""
    match = re.search(rf" {_IS} an? ((?:[\w\-–/,]+ ){{1,9}}?)(?:{noun})\b", first)
    found = {nation[0] for nation in NATION.finditer(match[1])} if match else set()
    if match and len(found) == 1 and not re.search(r"[A-Z]\w+[-–/][A-Z]|[A-Z]\w+ and ", match[1]):
        [nation] = found
        yield nation, nationality_forms(nation)


def _linked(pattern: str, first: str, text: str) -> Values:
    """Names that count only as links: of several, each is a value."""
    for match in re.finditer(pattern, text):
        yield match[1].strip(' ,"'), (match[1].strip(' ,"'),)


def _birthplace(first: str, text: str) -> Values:
    match = _LIFE.match(first)
    if match and not _UNCERTAIN.search(match["life"]):
        place = rf"{UPPER}[\w'’\-]+(?: {UPPER}[\w'’\-]+)*"
        found = re.search(
            rf"born (?:{DATE}|{YEAR}) in ({place}), ({place})(?:, ({place}))?(?=[;)–]|$| –)", match["life"]
        )
        if found:
            whole = ", ".join(filter(None, found.groups()))
            yield whole, tuple(dict.fromkeys((f"{found[1]}, {found[2]}", whole, found[1])))


def _matches(pattern: str, where: str, first: str, text: str) -> Values:
    """The values that a pattern finds in the first sentence or in the whole passage."""
    for match in re.finditer(pattern, first if where == "first" else text):
        value = next(group for group in match.groups() if group)
        yield value, (value,)


def _released(nouns: str, first: str, text: str) -> Values:
    """The year before the noun; otherwise the only year of a release in the passage."""
    if match := re.search(
        rf" {_IS} an? (?:[\w\-–]+ ){{0,3}}?({YEAR}) (?:[\w\-–/,]+ ){{0,8}}?(?:{nouns})\b", first
    ):
        yield match[1], (match[1],)
    for match in re.finditer(
        rf"\b(?:released|premiered|published)\b(?: \w+){{0,3}}? (?:on|in) (?:{DATE}|(?:\w+ )?{YEAR})", text
    ):
        year = match[0][-4:]
        yield year, (year,)


def _person_value(lead: str, where: str, first: str, text: str) -> Values:
    """The one person that stands after words such as `directed by`; of several, none."""
    source = first if where == "first" else text
    for match in re.finditer(rf"{lead} {_DESCRIPTOR}({NAME})?({_NAME_END})?", source):
        if match[1] is None or match[2] is None:
            yield match[0], ()
            yield "", ()
        else:
            yield match[1], (match[1],)


def _artist(nouns: str, first: str, text: str) -> Values:
    found = re.search(
        rf"\b(?:{nouns}) (?:recorded |performed |released |written and recorded )?by {_DESCRIPTOR}"
        rf"((?:The |the )?{UPPER}[\w'’\-.!$]*(?: (?:of|and the|the|&) (?={UPPER})| {UPPER}[\w'’\-.!$]*)*)"
        r"(?=,? (?:released|issued|from|which|that|recorded|on|featuring|produced|taken|and (?!"
        + UPPER
        + r"))|,? and (?:is|was)|\.$|\. |, (?!"
        + UPPER
        + r"))",  # noqa: E501
        first,
    )
    if found and not re.match(rf"(?:{'|'.join(('American', 'British', 'English', 'Various'))})\b", found[1]):
        name = re.sub(r"^[Tt]he ", "", found[1].rstrip("."))
        yield name, (found[1].rstrip("."), name)


def _founded(first: str, text: str) -> Values:
    for match in re.finditer(
        rf"(?:\b(?:[Ff]ounded|[Ee]stablished|[Ff]ormed|[Ii]ncorporated|[Ll]aunched|[Oo]pened)\b)"
        rf"(?: [\w',\-]+){{0,6}}? (?:in|on) (?:{DATE}|(?:\w+ )?({YEAR}))",
        text,
    ):
        year = re.search(rf"{YEAR}$", match[0])
        if year:
            yield year[0], (year[0],)


def _place(names: str, first: str, text: str) -> Values:
    """The only state or country that the passage names, if the first sentence says `in ... NAME`."""
    if names == COUNTRIES and re.search(
        r"\b(?:United States|U\.S\.|United Kingdom|Ireland|Soviet|Scottish)\b", text
    ):
        return
    found = {
        match[0] for match in re.finditer(rf"\b(?:{names})\b(?!n|'s| County| City| Avenue| Street)", text)
    }
    if len(found) == 1 and re.search(rf"\b(?:in|near|of) [^.;]*\b{next(iter(found))}\b", first):
        [name] = found
        yield name, (name,)


_FILM = "(?<!short )film"
_PLACES = (
    "village|town|city|township|municipality|suburb|neighborhood|neighbourhood|hamlet|unincorporated community|"
    "census-designated place|commune|airport|museum|stadium|arena|university|college|high school|school|hospital|"
    "church|cathedral|castle|hotel|skyscraper|building|shopping mall|shopping center|theatre|theater|park|lake|"
    "island|library|prison|zoo|winery|brewery|house|mansion|state park|ski resort|amusement park|golf course"
)  # fmt: skip
_ORGANISATIONS = (
    "company|corporation|manufacturer|retailer|organization|organisation|charity|newspaper|magazine|publisher|"
    "record label|airline|bank|university|college|school|institute|museum|brewery|football club|orchestra|"
    "political party|trade union|think tank|fraternity|sorority|law firm|supermarket chain|restaurant chain|journal"
)

Kind = tuple[Callable[[str, str], str | None], dict[str, Callable[[str, str], Values]]]
#: By kind: whether a page is of it, and the rules. The first kind that fits is taken.
KINDS: dict[str, Kind] = {
    "person": (
        _person,
        {
            "birth year": partial(_year, 0),
            "birth date": partial(_full_date, 0),
            "death year": partial(_year, 1),
            "death date": partial(_full_date, 1),
            "nationality": _nationality,
            "birthplace": _birthplace,
            "band": partial(
                _linked,
                rf"(?:singer|vocalist|vocals|guitarist|drummer|bassist|frontman|frontwoman|keyboardist|member)\b"
                rf"[^.]{{0,30}}? (?:of|for|in) (?:the )?(?:[\w\-]+ ){{0,4}}?(?:band|group|duo|trio) ((?:The )?{UPPER}[\w'’\-]*(?: (?:(?:of|and|the) )*{UPPER}[\w'’\-]*)*)",
            ),
        },
    ),
    "film": (
        partial(_work, "film", "film", "director|producer|actor|critic|score|series|festival|editor|company|studio|award|awards|school|archive|trilogy|franchise|magazine|noir series|production|distributor|adaptations|serial", ),  # noqa: E501
        {
            "release year": partial(_released, "film"),
            "director": partial(_person_value, r"(?:[Dd]irected|[Dd]irected and (?:\w+-?\w*)|[Dd]irected, \w+(?:,| and)[\w ,]{0,20}?) by", "text"),  # noqa: E501
            "nationality": partial(_work_nationality, "film"),
            "source": partial(_linked, r"based on (?:the|his|her|a)(?: \w+){0,4} (?:novel|book|play|memoir|novella),? (\"[^\"]+\")"),
        },
    ),
    "album": (
        partial(_work, "album|extended play|EP", "album", "series|chart|cover"),
        {"artist": partial(_artist, "album|EP|extended play"), "release year": partial(_released, "album|EP|play")},
    ),
    "song": (
        partial(_work, "song|single", "song", "series|cycle|contest|written"),
        {"artist": partial(_artist, "song|single"), "release year": partial(_released, "song|single"),
         "album": partial(_linked, r"from (?:the|his|her|their|its)\b[^.\"]{0,60}? album,? (\"[^\"]+\")")},
    ),
    "novel": (
        partial(_work, "novel|novella|book|memoir|play|short story|short story collection|poetry collection", "", "series|publisher|chain"),  # noqa: E501
        {
            "author": partial(_person_value, r"(?:novel|novella|book|memoir|play|story|collection)(?: written)? by", "first"),  # noqa: E501
            "release year": partial(_released, "novel|novella|book|memoir|play|story"),
        },
    ),
    "band": (
        partial(_work, "band|group|duo|trio", "band", "member|of companies|show"),
        {"nationality": _nationality, "formation year": _founded},
    ),
    "series": (
        partial(_work, "television series|TV series|sitcom|drama series|television show|anime series|television sitcom", "television series", "of|created for"),  # noqa: E501
        {"creator": partial(_person_value, r"[Cc]reated(?: and \w+)? by", "text"), "nationality": partial(_work_nationality, "television|TV|sitcom")},
    ),
    "organisation": (
        partial(_work, _ORGANISATIONS, "", "district|team|of"),
        {"founding year": _founded, "state": partial(_place, STATES), "country": partial(_place, COUNTRIES)},
    ),
    "place": (
        partial(_work, _PLACES, "", "district|team|station|album"),
        {"state": partial(_place, STATES), "country": partial(_place, COUNTRIES)},
    ),
    "taxon": (
        partial(_work, "genus|species", "", "complex"),
        {"family": partial(_matches, r"\bfamily,? \(?\"?([A-Z][a-z]+(?:aceae|idae))\b", "text")},
    ),
}  # fmt: skip
