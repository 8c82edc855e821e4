"""The words and patterns that the rules share: nations, states, countries, occupations, dates and names."""

from __future__ import annotations

import re

from rag_r1.data.answer_forms import NATIONS

#: Nations of which one person may have two: never contrasted with each other.
RELATED = [
    {"British", "English", "Scottish", "Welsh", "Irish", "Northern Irish"},
    {"American", "Puerto Rican", "Cuban", "Filipino"},
    {"Soviet", "Russian", "Ukrainian", "Armenian", "Estonian", "Latvian", "Lithuanian"},
    {"Chinese", "Singaporean"},
    {"Austrian", "Hungarian", "German", "Czech", "Slovak"},
    {"Indian", "Pakistani", "Bangladeshi", "British"},
    {"Serbian", "Croatian", "Slovenian"},
]

#: The U.S. states whose names are of nothing else, which leaves out Georgia, New York and Washington.
STATES = (
    "Alabama|Alaska|Arizona|Arkansas|California|Colorado|Connecticut|Delaware|Florida|Hawaii|Idaho|Illinois|"
    "Indiana|Iowa|Kansas|Kentucky|Louisiana|Maine|Maryland|Massachusetts|Michigan|Minnesota|Mississippi|"
    "Missouri|Montana|Nebraska|Nevada|New Hampshire|New Jersey|New Mexico|North Carolina|North Dakota|Ohio|"
    "Oklahoma|Oregon|Pennsylvania|Rhode Island|South Carolina|South Dakota|Tennessee|Texas|Utah|Vermont|"
    "Virginia|West Virginia|Wisconsin|Wyoming"
)
COUNTRIES = "|".join(
    sorted(
        {names[0] for nation, names in NATIONS.items() if nation not in ("New Zealand", "Soviet", "Turkish")}
        - {"Northern Ireland", "Puerto Rico", "United States", "United Kingdom", "Ireland"}
        | {"New Zealand", "Turkey"},
        key=len,
        reverse=True,
    )
)

#: Last word of what a person is, with the word that a question calls the person by.
OCCUPATIONS = (
    "actor|actress|author|novelist|writer|poet|playwright|dramatist|screenwriter|journalist|essayist|"
    "filmmaker|director|producer|musician|singer|songwriter|singer-songwriter|rapper|composer|conductor|"
    "guitarist|drummer|bassist|pianist|violinist|saxophonist|trumpeter|cellist|comedian|model|dancer|"
    "choreographer|painter|sculptor|photographer|artist|cartoonist|illustrator|architect|footballer|"
    "cricketer|player|golfer|swimmer|boxer|wrestler|driver|athlete|runner|cyclist|coach|manager|umpire|"
    "politician|lawyer|attorney|judge|jurist|diplomat|economist|historian|philosopher|theologian|physicist|"
    "chemist|mathematician|astronomer|biologist|botanist|psychologist|psychiatrist|physician|engineer|"
    "inventor|entrepreneur|businessman|businesswoman|philanthropist|activist|broadcaster|presenter|host|"
    "personality|critic|designer|explorer|scholar|linguist|sociologist|anthropologist|DJ|soprano|tenor|"
    "vocalist|astronaut|mathematician|scientist|chef|magician|skater|skier|snowboarder|gymnast|jockey|"
    "aviator|soldier|officer|general|admiral|bishop|priest|nurse|suffragist|feminist|geologist|naturalist|"
    "zoologist|ornithologist|editor|publisher|cinematographer|animator|lyricist|organist|pitcher|outfielder|"
    "quarterback|pornographic actress|executive|banker|statesman|translator|librettist|YouTuber|racer"
)

#: A letter in capitals, with the accents of Europe.
UPPER = "[A-ZÀ-ÖØ-ÞĀĂĄĆČĎĐĒĘĚĞĪİŁŃŇŌŐŘŚŞŠŤŪŮŹŻŽ]"
_WORD = rf"(?:(?:Jr|Sr|St)\.|(?:{UPPER}\.)+|{UPPER}[\w'’\-]*)"
#: Of a person: two to five words.
NAME = rf"{_WORD}(?: (?:(?:de|da|di|du|van|von|der|den|del|dos|la|le|el|al|bin|ibn|ten|ter) )*{_WORD}){{1,4}}"


def are_related(one: str, other: str) -> bool:
    """Whether a person of one nationality may have the other, too."""
    return one == other or any({one, other} <= group for group in RELATED)


NATION = re.compile(rf"\b(?:{'|'.join(sorted(NATIONS, key=len, reverse=True))})\b")
