"""The wordings of the questions, by kind of entity and relation.

A wording has fields in braces. `{name}` is the name of the entity, or a description of it; `{one}` and
`{other}` are two names. The fields of TWO_FACTS are relations, with underscores in place of blanks, and
`{noun}`, the word for the entity on its page, such as "novel".
"""

from __future__ import annotations

Wordings = tuple[str, ...]

_BORN = ("In what year was {name} born?", "What year was {name} born in?")
_BORN_ON = ("On what date was {name} born?", "What is the date of birth of {name}?")
_DIED = ("In what year did {name} die?", "Which year did {name} die in?")
_NATIONALITY = ("What is the nationality of {name}?", "What nationality is {name}?")
_BIRTHPLACE = ("In what place was {name} born?", "What is the birthplace of {name}?")
_RELEASED = ("In what year was {name} released?", "What year did {name} come out?")
_PUBLISHED = ("In what year was {name} first published?", "What year was {name} published?")
_FORMED = ("In what year was {name} formed?", "What year was {name} formed in?")
_FOUNDED = ("In what year was {name} founded?", "What year was {name} established?")
_DIRECTED = ("Who directed {name}?", "Who is the director of {name}?", "By whom was {name} directed?")
_WROTE = ("Who wrote {name}?", "Who is the author of {name}?")
_RECORDED = ("Who recorded {name}?", "Which artist or band released {name}?")

#: Kind -> relation -> questions for the fact.
ONE_HOP: dict[str, dict[str, Wordings]] = {
    "person": {
        "birth year": _BORN,
        "birth date": _BORN_ON,
        "death year": _DIED,
        "death date": ("On what date did {name} die?", "What is the date of death of {name}?"),
        "nationality": _NATIONALITY,
        "birthplace": _BIRTHPLACE,
    },
    "film": {"release year": _RELEASED, "director": _DIRECTED},
    "album": {"release year": _RELEASED, "artist": _RECORDED},
    "song": {
        "release year": _RELEASED,
        "artist": ("Which artist or band recorded {name}?", "Who performs {name}?"),
    },
    "novel": {"release year": _PUBLISHED, "author": _WROTE},
    "band": {"nationality": _NATIONALITY, "formation year": _FORMED},
    "series": {"creator": ("Who created {name}?", "Who is the creator of {name}?")},
    "organisation": {
        "founding year": _FOUNDED,
        "state": ("In which U.S. state is {name} based?", "Which U.S. state is {name} based in?"),
        "country": ("In which country is {name} based?", "Which country is {name} based in?"),
    },
    "publication": {"founding year": _FOUNDED},
    "place": {
        "state": ("In which U.S. state is {name}?", "Which U.S. state is {name} located in?"),
        "country": ("In which country is {name}?", "Which country is {name} located in?"),
    },
    "taxon": {"family": ("What family does {name} belong to?", "To which family does {name} belong?")},
}

_DIRECTOR = ("the director of {name}", "the person who directed {name}")
_PERFORMER = ("the performer of {name}", "the artist or band that recorded {name}")
#: Kind -> relation -> descriptions of the entity that the fact names, for bridge questions.
DESCRIPTIONS: dict[str, dict[str, Wordings]] = {
    "person": {
        "band": ("the band of which {name} has been a member", "the band with which {name} has performed")
    },
    "film": {
        "director": _DIRECTOR,
        "source author": ("the author of the book on which {name} is based",),
        "earlier film": ("the film to which {name} is a follow-up",),
    },
    "album": {"artist": _PERFORMER},
    "song": {
        "artist": _PERFORMER,
        "album": ("the album that includes {name}", "the album from which {name} comes"),
    },
    "novel": {"author": ("the author of {name}", "the writer of {name}")},
    "episode": {"director": _DIRECTOR, "writer": ("the writer of {name}", "the person who wrote {name}")},
    "series": {"creator": ("the creator of {name}", "the person who created {name}")},
}

#: Kind of the described entity -> relation -> bridge questions for its fact.
BRIDGES: dict[str, dict[str, Wordings]] = {
    "person": {
        "birth year": _BORN,
        "birth date": _BORN_ON,
        "death year": _DIED,
        "nationality": _NATIONALITY,
        "birthplace": _BIRTHPLACE,
    },
    "band": {"nationality": _NATIONALITY, "formation year": _FORMED},
    "film": {"release year": _RELEASED, "director": _DIRECTED},
    "album": {"release year": _RELEASED, "artist": _RECORDED},
}

#: Kind -> two relations -> questions for the entity that has both facts.
TWO_FACTS: dict[str, dict[tuple[str, str], Wordings]] = {
    "person": {
        ("nationality", "birth date"): (
            "Which {nationality} {noun} was born on {birth_date}?",
            "What is the name of the {nationality} {noun} who was born on {birth_date}?",
        ),
        ("nationality", "death date"): (
            "Which {nationality} {noun} died on {death_date}?",
            "What is the name of the {nationality} {noun} who died on {death_date}?",
        ),
    },
    "film": {
        ("director", "release year"): (
            "Which film of {release_year} was directed by {director}?",
            "What is the title of the {release_year} film directed by {director}?",
        )
    },
    "album": {
        ("artist", "release year"): (
            "Which album by {artist} was released in {release_year}?",
            "What is the title of the album that {artist} released in {release_year}?",
        )
    },
    "novel": {
        ("author", "release year"): (
            "Which {noun} by {author} was published in {release_year}?",
            "What is the title of the {noun} by {author} that was published in {release_year}?",
        )
    },
}

_RELEASES = (
    ("Which was released first, {one} or {other}?", "Which came out earlier, {one} or {other}?"),
    ("Was {one} released before {other}?", "Did {one} come out earlier than {other}?"),
)
_FOUNDINGS = (
    ("Which was founded first, {one} or {other}?",),
    ("Was {one} founded before {other}?", "Is {one} older than {other}?"),
)
#: Kind and relation -> questions for which of two came first, and for whether one came before the other.
ORDERS: dict[tuple[str, str], tuple[Wordings, Wordings]] = {
    ("person", "birth year"): (
        ("Who was born first, {one} or {other}?", "Who was born earlier, {one} or {other}?"),
        ("Was {one} born before {other}?", "Was {one} born earlier than {other}?"),
    ),
    ("film", "release year"): _RELEASES,
    ("album", "release year"): _RELEASES,
    ("song", "release year"): _RELEASES,
    ("novel", "release year"): (
        ("Which was published first, {one} or {other}?",),
        ("Was {one} published before {other}?",),
    ),
    ("band", "formation year"): (
        ("Which was formed first, {one} or {other}?",),
        ("Was {one} formed before {other}?",),
    ),
    ("organisation", "founding year"): _FOUNDINGS,
    ("publication", "founding year"): _FOUNDINGS,
}

#: Kind and relation -> question for whether two entities have the same value.
SAME_VALUE: dict[tuple[str, str], str] = {
    ("person", "birth year"): "Were {one} and {other} born in the same year?",
    ("film", "release year"): "Were {one} and {other} released in the same year?",
    ("film", "director"): "Were {one} and {other} directed by the same person?",
    ("band", "formation year"): "Were {one} and {other} formed in the same year?",
    ("band", "nationality"): "Are {one} and {other} from the same country?",
    ("place", "state"): "Are {one} and {other} in the same U.S. state?",
}
