"""Lists the forms in which an answer may be written: dates in both orders, nationalities with country names.

Generated questions have all forms as gold answers, so an exact match does not depend, for example, on the
order of day and month.
"""

from __future__ import annotations

import re

#: Maps each nationality to the names of the country and to synonyms. The first is the name of the country,
#: except for New Zealand. English, Scottish and Welsh people are also British.
NATIONS: dict[str, tuple[str, ...]] = {
    "American": ("United States", "the United States", "USA", "U.S.", "US", "America"),
    "British": ("United Kingdom", "the United Kingdom", "UK", "Britain", "Great Britain"),
    "English": ("England", "British", "United Kingdom", "UK"),
    "Scottish": ("Scotland", "British", "United Kingdom", "UK"),
    "Welsh": ("Wales", "British", "United Kingdom", "UK"),
    "Dutch": ("Netherlands", "the Netherlands"),
    "Filipino": ("Philippines", "the Philippines", "Philippine"),
    "New Zealand": ("New Zealander",),
    "Soviet": ("Soviet Union", "USSR", "the Soviet Union"),
    "Czech": ("Czech Republic", "Czechia"),
    "Argentine": ("Argentina", "Argentinian", "Argentinean"),
    "Danish": ("Denmark", "Dane"),
    "Swedish": ("Sweden", "Swede"),
    "Spanish": ("Spain", "Spaniard"),
    "Polish": ("Poland", "Pole"),
    "Finnish": ("Finland", "Finn"),
    "Turkish": ("Turkey", "Turk"),
    "South Korean": ("South Korea",),
    "South African": ("South Africa",),
    "Sri Lankan": ("Sri Lanka",),
    "Northern Irish": ("Northern Ireland",),
    "Puerto Rican": ("Puerto Rico",),
} | {
    nationality: (country,)
    for nationality, country in (
        pair.split(":")
        for pair in (
            "Irish:Ireland Australian:Australia Canadian:Canada French:France German:Germany "
            "Italian:Italy Indian:India Japanese:Japan Chinese:China Russian:Russia Brazilian:Brazil "
            "Mexican:Mexico Norwegian:Norway Belgian:Belgium Swiss:Switzerland Austrian:Austria "
            "Hungarian:Hungary Romanian:Romania Bulgarian:Bulgaria Greek:Greece Serbian:Serbia "
            "Croatian:Croatia Slovenian:Slovenia Slovak:Slovakia Ukrainian:Ukraine Israeli:Israel "
            "Egyptian:Egypt Iranian:Iran Iraqi:Iraq Pakistani:Pakistan Bangladeshi:Bangladesh Thai:Thailand "
            "Vietnamese:Vietnam Indonesian:Indonesia Malaysian:Malaysia Singaporean:Singapore "
            "Nigerian:Nigeria Ghanaian:Ghana Kenyan:Kenya Ethiopian:Ethiopia Jamaican:Jamaica Cuban:Cuba "
            "Colombian:Colombia Chilean:Chile Peruvian:Peru Venezuelan:Venezuela Uruguayan:Uruguay "
            "Portuguese:Portugal Icelandic:Iceland Estonian:Estonia Latvian:Latvia Lithuanian:Lithuania "
            "Albanian:Albania Armenian:Armenia Moroccan:Morocco Tunisian:Tunisia Algerian:Algeria "
            "Lebanese:Lebanon Syrian:Syria Nepalese:Nepal"
        ).split()
    )
}  # fmt: skip

#: Pattern of a year from 1000 to 2019.
YEAR = r"(?:1[0-9]\d\d|20[01]\d)"
_MONTH = "(?:January|February|March|April|May|June|July|August|September|October|November|December)"
#: Pattern of a full date, with the day or the month first.
DATE = rf"(?:\d{{1,2}} {_MONTH},? {YEAR}|{_MONTH} \d{{1,2}}, {YEAR})"


def date_forms(date: str) -> tuple[str, ...]:
    """Return a full date as it is written, then in both orders, without repetitions."""
    day, month, year = date_parts(date)
    forms = (date, f"{day} {month} {year}", f"{month} {day}, {year}")
    return tuple(dict.fromkeys(forms))


def date_parts(date: str) -> tuple[str, str, str]:
    """Return the day, the month and the year of a text that matches `DATE`."""
    first, second, year = date.replace(",", "").split()
    return (first, second, year) if first.isdigit() else (second, first, year)


def nationality_forms(nationality: str) -> tuple[str, ...]:
    """Return a nationality of `NATIONS`, then the names of its country and its synonyms."""
    return (nationality, *NATIONS[nationality])


def answer_forms(answer: str) -> tuple[str, ...]:
    """Return the forms of an answer, beginning with the answer itself. Only a full date or a nationality has
    other forms."""
    if re.fullmatch(DATE, answer):
        return date_forms(answer)
    return nationality_forms(answer) if answer in NATIONS else (answer,)
