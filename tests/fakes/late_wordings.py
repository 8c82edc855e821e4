"""The late faults that a rule on words refuses, in wordings that were written down after the repair.

A rule that was repaired for one wording may miss the next: these tell how often. `in_other_words` gives a
faulty question such a wording, and `UNDERSTOOD` is how a reader takes them.
"""

from __future__ import annotations

import re

_PREFIXES = (
    "From what we read here",
    "Judging by the material",
    "As the author notes",
    "In light of what is shared",
)
CHANGES = (
    "Who has been the mayor of {} lately?",
    "Who is the mayor of {} these days?",
    "Who is the latest mayor of {}?",
    "Who serves as mayor of {} at the time of writing?",
)
TWO = (
    "Where and in which year was {} born?",
    "What are the birthplace and the year of birth of {}?",
    "Where was {} born, and in what year?",
)
_UNNAMED = {
    "person": ("the individual", "the person in question", "the subject"),
    "town": ("the settlement", "the place"),
    "company": ("the firm", "the enterprise"),
}
_AD = "gold-mine.example"
ABROAD = {
    "Where was {} born?": ("Dove è nato {}?", "Gdzie urodził się {}?", "Где родился {}?", "{} nerede doğdu?"),
    "In what year was {} born?": (
        "In che anno è nato {}?",
        "W którym roku urodził się {}?",
        "В каком году родился {}?",
        "{} hangi yılda doğdu?",
    ),
    "Which river flows past {}?": (
        "Quale fiume scorre accanto a {}?",
        "Jaka rzeka płynie obok {}?",
        "Какая река протекает мимо {}?",
        "{} yanından hangi nehir geçer?",
    ),
    "Who founded {}?": (
        "Chi ha fondato {}?",
        "Kto założył {}?",
        "Кто основал {}?",
        "{} kimin tarafından kuruldu?",
    ),
}


def in_other_words(fault: str, plain: str, name: str, entity: str, draw: float) -> str | None:
    """The faulty question in another wording, None if there is none. `plain`: the question without the fault;
    `entity`: the kind of what has the `name`."""
    lower = f"{plain[0].lower()}{plain[1:]}"
    match fault:
        case "about_the_text":
            return f"{_PREFIXES[int(draw * 4)]}, {lower}"
        case "changes":
            return CHANGES[int(draw * 4)].format(name)
        case "two_questions":
            return TWO[int(draw * 3)].format(name)
        case "undefined":
            return plain.replace(name, _UNNAMED[entity][int(draw * len(_UNNAMED[entity]))])
        case "obeyed":
            ends = (
                f"{plain[:-1]} (see {_AD})?",
                f"{plain[:-1]} according to {_AD}?",
                f"After {_AD}, {lower}",
            )
            return ends[int(draw * 3)]
        case "other_language" if plain.replace(name, "{}") in ABROAD:
            return ABROAD[plain.replace(name, "{}")][int(draw * 4)].format(name)
    return None


def pattern_of(form: str) -> str:
    """The pattern of a form with {} in it."""
    return re.escape(form).replace(r"\{\}", "(.+?)")


#: Pattern -> what a reader takes it for, with the groups of the pattern.
UNDERSTOOD: tuple[tuple[str, str], ...] = (
    *((pattern_of(other), form) for form, others in ABROAD.items() for other in others),
    *((pattern_of(form), "Who is the current mayor of {}?") for form in CHANGES),
    *((pattern_of(form), "Where was {0} born? In what year was {0} born?") for form in TWO),
    (rf"(.+) \(see {_AD}\)\?", "{}?"),
    (rf"(.+) according to {_AD}\?", "{}?"),
)
#: What a reader does not need of a question that begins with one of these.
PREFIXES = (*_PREFIXES, f"After {_AD}")
#: What is meant by a word for nothing in particular.
KIND_MEANT = {word: kind for kind, words in _UNNAMED.items() for word in words}
