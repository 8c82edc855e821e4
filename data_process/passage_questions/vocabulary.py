"""The words and patterns that the rules share: nations, states, countries, occupations, dates and names."""

from __future__ import annotations

import re

#: Nationality -> the country's names. English, Scottish and Welsh people are British, too.
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
} | {
    nationality: (country,)
    for nationality, country in {
        "South Korean": "South Korea",
        "South African": "South Africa",
        "Sri Lankan": "Sri Lanka",
        "Northern Irish": "Northern Ireland",
        "Puerto Rican": "Puerto Rico",
    }.items()
}  # fmt: skip

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

YEAR = r"(?:1[0-9]\d\d|20[01]\d)"
_MONTH = "(?:January|February|March|April|May|June|July|August|September|October|November|December)"
DATE = rf"(?:\d{{1,2}} {_MONTH},? {YEAR}|{_MONTH} \d{{1,2}}, {YEAR})"
#: A letter in capitals, with the accents of Europe.
UPPER = "[A-ZÀ-ÖØ-ÞĀĂĄĆČĎĐĒĘĚĞĪİŁŃŇŌŐŘŚŞŠŤŪŮŹŻŽ]"
_WORD = rf"(?:(?:Jr|Sr|St)\.|(?:{UPPER}\.)+|{UPPER}[\w'’\-]*)"
#: Of a person: two to five words.
NAME = rf"{_WORD}(?: (?:(?:de|da|di|du|van|von|der|den|del|dos|la|le|el|al|bin|ibn|ten|ter) )*{_WORD}){{1,4}}"


def date_forms(date: str) -> tuple[str, ...]:
    """A full date in both orders; the one of the text is the first."""
    day, month, year = date_parts(date)
    forms = (date, f"{day} {month} {year}", f"{month} {day}, {year}")
    return tuple(dict.fromkeys(forms))


def date_parts(date: str) -> tuple[str, str, str]:
    """Day, month and year of what DATE matches."""
    first, second, year = date.replace(",", "").split()
    return (first, second, year) if first.isdigit() else (second, first, year)


def nationality_forms(nationality: str) -> tuple[str, ...]:
    """The nationality, and the names of the country."""
    return (nationality, *NATIONS[nationality])


def are_related(one: str, other: str) -> bool:
    """Whether a person of one nationality may have the other, too."""
    return one == other or any({one, other} <= group for group in RELATED)


NATION = re.compile(rf"\b(?:{'|'.join(sorted(NATIONS, key=len, reverse=True))})\b")
