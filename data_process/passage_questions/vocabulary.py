"""The words and patterns that the rules share: nationalities, states, countries, occupations and names.

Rules build these patterns into their own. STATES_PATTERN, COUNTRIES_PATTERN and OCCUPATIONS are lists of
alternatives, which need a `(?:...)` around them; of names that begin alike the longer one must come first.
UPPER and NAME are complete patterns. NATION_REGEX is compiled, and its matches are keys of NATIONS.
"""

from __future__ import annotations

import re

from rag_r1.data.answer_forms import NATIONS

#: Groups of nationalities of which a person may have two: as parts or successors of one state, or by descent
#: (British and Pakistani). No question contrasts two nationalities of a group.
RELATED: tuple[frozenset[str], ...] = tuple(
    frozenset(group)
    for group in (
        {"British", "English", "Scottish", "Welsh", "Irish", "Northern Irish"},
        {"American", "Puerto Rican", "Cuban", "Filipino"},
        {"Soviet", "Russian", "Ukrainian", "Armenian", "Estonian", "Latvian", "Lithuanian"},
        {"Chinese", "Singaporean"},
        {"Austrian", "Hungarian", "German", "Czech", "Slovak"},
        {"Indian", "Pakistani", "Bangladeshi", "British"},
        {"Serbian", "Croatian", "Slovenian"},
    )
)

#: The U.S. states with unambiguous names, that is, without Georgia, New York and Washington.
STATES_PATTERN = (
    "Alabama|Alaska|Arizona|Arkansas|California|Colorado|Connecticut|Delaware|Florida|Hawaii|Idaho|Illinois|"
    "Indiana|Iowa|Kansas|Kentucky|Louisiana|Maine|Maryland|Massachusetts|Michigan|Minnesota|Mississippi|"
    "Missouri|Montana|Nebraska|Nevada|New Hampshire|New Jersey|New Mexico|North Carolina|North Dakota|Ohio|"
    "Oklahoma|Oregon|Pennsylvania|Rhode Island|South Carolina|South Dakota|Tennessee|Texas|Utah|Vermont|"
    "Virginia|West Virginia|Wisconsin|Wyoming"
)
#: Names in NATIONS that are left out: a former country, countries where a place may be said to be in two of
#: them, and the one form that is not a country.
_NOT_COUNTRIES = {
    *("Soviet Union", "Ireland", "Northern Ireland", "United Kingdom", "Puerto Rico", "United States"),
    "New Zealander",
}
COUNTRIES_PATTERN = "|".join(
    sorted(
        {names[0] for names in NATIONS.values()} - _NOT_COUNTRIES | {"New Zealand"},
        key=lambda name: (-len(name), name),
    )
)

#: Occupations: nouns with which the description of a person may end.
OCCUPATIONS = (
    "actor|actress|author|novelist|writer|poet|playwright|dramatist|screenwriter|journalist|essayist|"
    "filmmaker|director|producer|musician|singer-songwriter|singer|songwriter|rapper|composer|conductor|"
    "guitarist|drummer|bassist|pianist|violinist|saxophonist|trumpeter|cellist|comedian|model|dancer|"
    "choreographer|painter|sculptor|photographer|artist|cartoonist|illustrator|architect|footballer|"
    "cricketer|player|golfer|swimmer|boxer|wrestler|driver|athlete|runner|cyclist|coach|manager|umpire|"
    "politician|lawyer|attorney|judge|jurist|diplomat|economist|historian|philosopher|theologian|physicist|"
    "chemist|mathematician|astronomer|biologist|botanist|psychologist|psychiatrist|physician|engineer|"
    "inventor|entrepreneur|businessman|businesswoman|philanthropist|activist|broadcaster|presenter|host|"
    "personality|critic|designer|explorer|scholar|linguist|sociologist|anthropologist|DJ|soprano|tenor|"
    "vocalist|astronaut|scientist|chef|magician|skater|skier|snowboarder|gymnast|jockey|"
    "aviator|soldier|officer|general|admiral|bishop|priest|nurse|suffragist|feminist|geologist|naturalist|"
    "zoologist|ornithologist|editor|publisher|cinematographer|animator|lyricist|organist|pitcher|outfielder|"
    "quarterback|pornographic actress|executive|banker|statesman|translator|librettist|YouTuber|racer"
)

#: A Latin capital letter, plain or with one of the more frequent accents.
UPPER = "[A-ZÀ-ÖØ-ÞĀĂĄĆČĎĐĒĘĚĞĪİŁŃŇŌŐŘŚŞŠŤŪŮŹŻŽ]"
_WORD = rf"(?:(?:Jr|Sr|St)\.|(?:{UPPER}\.)+|{UPPER}[\w'’\-]*)"
#: The name of a person, of two to five words and any particles between these.
NAME = rf"{_WORD}(?: (?:(?:de|da|di|du|van|von|der|den|del|dos|la|le|el|al|bin|ibn|ten|ter) )*{_WORD}){{1,4}}"


NATION_REGEX = re.compile(rf"\b(?:{'|'.join(sorted(NATIONS, key=len, reverse=True))})\b")


def are_related(one: str, other: str) -> bool:
    """Return whether a person of one nationality may also have the other."""
    return one == other or any({one, other} <= group for group in RELATED)
