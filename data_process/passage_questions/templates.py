"""The wordings of the questions, by kind of entity and relation.

In ORDERS the first wordings ask which of two came first, the second whether one came before the other.
"""

from __future__ import annotations

ONE_HOP: dict[str, dict[str, tuple[str, ...]]] = {
    "person": {
        "birth year": (
            "In what year was {name} born?",
            "What year was {name} born in?",
            "Which year was {name} born?",
        ),
        "birth date": ("On what date was {name} born?", "What is the date of birth of {name}?"),
        "death year": ("In what year did {name} die?", "Which year did {name} die in?"),
        "death date": ("On what date did {name} die?", "What is the date of death of {name}?"),
        "nationality": ("What is the nationality of {name}?", "What nationality is {name}?"),
        "birthplace": ("In what place was {name} born?", "What is the birthplace of {name}?"),
    },
    "film": {
        "release year": ("In what year was {name} released?", "What year did {name} come out?"),
        "director": (
            "Who directed {name}?",
            "Who is the director of {name}?",
            "By whom was {name} directed?",
        ),
    },
    "album": {
        "artist": ("Who recorded {name}?", "Which artist or band released {name}?"),
        "release year": ("In what year was {name} released?", "What year did {name} come out?"),
    },
    "song": {
        "artist": ("Which artist or band recorded {name}?", "Who performs {name}?"),
        "release year": ("In what year was {name} released?", "What year did {name} come out?"),
    },
    "novel": {
        "author": ("Who wrote {name}?", "Who is the author of {name}?"),
        "release year": ("In what year was {name} first published?", "What year was {name} published?"),
    },
    "band": {
        "nationality": ("Which country is {name} from?", "What is the nationality of {name}?"),
        "formation year": ("In what year was {name} formed?", "What year was {name} formed in?"),
    },
    "series": {"creator": ("Who created {name}?", "Who is the creator of {name}?")},
    "organisation": {
        "founding year": ("In what year was {name} founded?", "What year was {name} established?"),
        "state": ("In which U.S. state is {name}?",),
        "country": ("In which country is {name}?",),
    },
    "place": {
        "state": ("In which U.S. state is {name}?", "Which U.S. state is {name} located in?"),
        "country": ("In which country is {name}?", "Which country is {name} located in?"),
    },
    "taxon": {"family": ("What family does {name} belong to?", "To which family does {name} belong?")},
}

DESCRIPTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "organisation": {"founder": ("the founder of {name}", "the person who founded {name}")},
    "band": {"founder": ("the founder of {name}", "the person who founded {name}")},
    "person": {
        "spouse": ("the spouse of {name}", "the person to whom {name} was married"),
        "band": ("the band of which {name} has been a member", "the band with which {name} has performed"),
    },
    "film": {
        "director": ("the director of {name}", "the person who directed {name}"),
        "source author": ("the author of the book on which {name} is based",),
        "producer": ("the producer of {name}", "the person who produced {name}"),
        "composer": ("the composer of the music of {name}", "the person who composed the music of {name}"),
        "earlier film": ("the film to which {name} is a follow-up",),
        "original film": ("the film of which {name} is a remake",),
        "source": ("the book on which {name} is based", "the work that {name} was adapted from"),
    },
    "album": {
        "artist": ("the performer of {name}", "the artist or band that recorded {name}"),
        "producer": ("the producer of {name}", "the person who produced {name}"),
    },
    "song": {
        "producer": ("the producer of {name}", "the person who produced {name}"),
        "songwriter": ("the writer of {name}", "the person who wrote {name}"),
        "film": ("the film in which {name} was used",),
        "artist": ("the performer of {name}", "the artist or band that recorded {name}"),
        "album": ("the album that includes {name}", "the album from which {name} comes"),
    },
    "novel": {"author": ("the author of {name}", "the writer of {name}")},
    "episode": {
        "director": ("the director of {name}", "the person who directed {name}"),
        "writer": ("the writer of {name}", "the person who wrote {name}"),
    },
    "series": {"creator": ("the creator of {name}", "the person who created {name}")},
}

BRIDGES: dict[str, dict[str, tuple[str, ...]]] = {
    "person": {
        "birth year": ("In what year was {name} born?", "What year was {name} born in?"),
        "birth date": ("On what date was {name} born?", "What is the date of birth of {name}?"),
        "death year": ("In what year did {name} die?",),
        "nationality": ("What is the nationality of {name}?", "What nationality is {name}?"),
        "birthplace": ("In what place was {name} born?",),
    },
    "band": {
        "nationality": ("What is the nationality of {name}?", "Which country is {name} from?"),
        "formation year": ("In what year was {name} formed?",),
    },
    "film": {"release year": ("In what year was {name} released?",), "director": ("Who directed {name}?",)},
    "album": {"release year": ("In what year was {name} released?",), "artist": ("Who recorded {name}?",)},
    "novel": {
        "author": ("Who wrote {name}?", "Who is the author of {name}?"),
        "release year": ("In what year was {name} published?",),
    },
}

TWO_FACTS: dict[str, dict[tuple[str, ...], tuple[str, ...]]] = {
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

_RELEASED = ("Was {one} released before {other}?", "Did {one} come out earlier than {other}?")
_FOUNDED = ("Was {one} founded before {other}?", "Is {one} older than {other}?")
ORDERS: dict[tuple[str, str], tuple[tuple[str, ...], tuple[str, ...]]] = {
    ("person", "birth year"): (
        ("Who was born first, {one} or {other}?", "Who was born earlier, {one} or {other}?"),
        ("Was {one} born before {other}?", "Was {one} born earlier than {other}?"),
    ),
    ("film", "release year"): (
        ("Which was released first, {one} or {other}?", "Which came out earlier, {one} or {other}?"),
        _RELEASED,
    ),
    ("album", "release year"): (("Which was released first, {one} or {other}?",), _RELEASED),
    ("song", "release year"): (("Which was released first, {one} or {other}?",), _RELEASED),
    ("novel", "release year"): (
        ("Which was published first, {one} or {other}?",),
        ("Was {one} published before {other}?",),
    ),
    ("band", "formation year"): (
        ("Which was formed first, {one} or {other}?",),
        ("Was {one} formed before {other}?",),
    ),
    ("organisation", "founding year"): (("Which was founded first, {one} or {other}?",), _FOUNDED),
}

SAME_VALUE: dict[tuple[str, str], tuple[str, ...]] = {
    ("person", "birth year"): ("Were {one} and {other} born in the same year?",),
    ("film", "release year"): ("Were {one} and {other} released in the same year?",),
    ("film", "director"): ("Were {one} and {other} directed by the same person?",),
    ("band", "formation year"): ("Were {one} and {other} formed in the same year?",),
    ("band", "nationality"): ("Are {one} and {other} from the same country?",),
    ("place", "state"): ("Are {one} and {other} in the same U.S. state?",),
}
