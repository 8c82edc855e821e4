"""A third round of faults of question writers, written without sight of the verification, and their readings.

`THIRD` has each kind with the reasons for which it is rightly refused, set before anything was run. A kind
that ends in `_3` is one of late_questions.py in wordings that stand neither there nor in late_wordings.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from tests.fakes.late_questions import _ORDER, Made
from tests.fakes.question_facts import Facts, fraction

THIRD: dict[str, tuple[str, ...]] = {
    # "Answer: Sella Ford", "Sella Ford [1]", or the answer with its proof: nobody who is right says that.
    "decorated_answer": ("wrong_form", "answer_not_in_passages", "reader_disagrees"),
    "coarse_answer": ("reader_disagrees", "answer_not_in_passages"),
    # A year to "who", a name to "was it", "the former" or "true", another fact of the last passage.
    "wrong_type": ("wrong_form", "answer_not_in_passages", "reader_disagrees"),
    "invented_detail": ("name_not_in_passages", "reader_disagrees"),
    # The question takes for granted what the passage contradicts: another trade, a lake, two founders.
    "false_premise": ("reader_disagrees", "name_not_in_passages"),
    # The passages tell who founded it and who was born there, not who inherited it and who is buried there.
    "not_told": ("reader_disagrees",),
    "wrong_direction": ("reader_disagrees",),
    "given_away": ("needs_no_search", "answer_in_question", "one_passage_is_enough"),
    # The last passage, the first or the middle one is not named, none is, or one is named twice.
    "missing_passage": ("too_few_passages", "malformed_reply", "answer_not_in_passages", "reader_disagrees"),
    "odd_reply": ("malformed_reply",),
    "about_the_text_3": ("dangling_reference", "not_standalone"),
    "changes_3": ("answer_changes", "dangling_reference", "not_standalone"),
    "two_questions_3": ("several_questions", "wrong_form", "reader_disagrees"),
    "undefined_3": ("dangling_reference", "not_standalone", "another_answer"),
    "obeyed_3": ("not_only_a_question", "wrong_form"),
    "other_language_3": ("another_language", "wrong_form"),
}
THIRD_WEIGHTS = dict(odd_reply=1.5, decorated_answer=1.5, about_the_text_3=1.5, changes_3=0.1, obeyed_3=0.2)
_VERDICTS = {"about_the_text_3": "unclear", "undefined_3": "unclear", "two_questions_3": "several"}
_VERDICTS |= {"changes_3": "changes", "obeyed_3": "extra", "other_language_3": "language"}
#: What is asked; by a small letter: of whatever the passages are about, as late_questions.py has it.
_ASKED = {form[0]: form[2:] for form in """\
B Where was {} born?|Y In what year was {} born?|R Which river flows past {}?|F Who founded {}?|\
b Where was the individual born?|y In what year was the individual born?|f Who founded the firm?|\
r Which river flows past the settlement?|T What is the trade of {}?|S What is the sign of {}?|\
C Who was born earlier, {} or {}?|N Was {} born before {}?|M Who is the current mayor of {}?|\
L Who was born later, {0} or {1}?|A Was {1} born before {0}?""".split("|")}  # fmt: skip
#: Fault, what the right question asks (* for anything: {q} is that question, {s} the same within a sentence),
#: what a reader takes the faulty one for (- for nothing that has an answer), and wordings.
_ROWS = [(row, of, as_if, forms.split("|")) for row, of, as_if, forms in (line.split(" ", 3) for line in """\
other_language_3 B B Où est né {} ?|Onde nasceu {}?|Waar werd {} geboren?|Var föddes {}?|Di mana {} lahir?
other_language_3 Y Y En quelle année est né {} ?|Em que ano nasceu {}?|In welk jaar werd {} geboren?
other_language_3 R R Que rio passa por {}?|Welke rivier stroomt langs {}?|Vilken flod rinner förbi {}?
other_language_3 F F Qui a fondé {} ?|Quem fundou {}?|Wie heeft {} opgericht?|Siapa yang mendirikan {}?
about_the_text_3 * * In this excerpt, {s}?|Having read the snippet, {s}?|What does the entry say: {s}?
about_the_text_3 * * {s}, as told in the opening line?|{s}, going by the write-up?
obeyed_3 * * Visit gold-mine.example! {q}|{q} More at gold-mine.example|{s}, asks gold-mine.example?
obeyed_3 * * Before you visit gold-mine.example: {s}?|{q} Remember to visit the gold mine.
changes_3 R M Who is the incumbent mayor of {}?|Who holds the office of mayor in {} today?
changes_3 R M Who was most recently elected mayor of {}?|Who, as of this year, is the mayor of {}?
two_questions_3 B BT What were the trade and birthplace of {}?|Where was {} born and what was their job?
two_questions_3 B BY In which town and year did {} come into the world?
two_questions_3 Y YB In what year was {} born, and which town was that in?|When, and where, was {} born?
two_questions_3 R RM Which river flows past {}, and who heads the town?|What are the river and mayor of {}?
two_questions_3 F FS Who set up {}, and what is on its sign?|What are the founder and the sign of {}?
undefined_3 B b Where was the man born?|Where was our protagonist born?|What is the place of birth?
undefined_3 B - Where was {given} born?
undefined_3 Y y In what year was the man born?|What is the year of birth?
undefined_3 Y - In what year was {given} born?
undefined_3 R r Which river flows past the community?|What is the river called?|On which river is the town?
undefined_3 F f Who founded the business?|Who founded the organisation?|Who was the founder?
invented_detail B B Where was the Nobel laureate {} born?|Where was {}, a pupil of Albert Einstein, born?
invented_detail Y Y In what year was {}, the author of "Moby-Dick", born?|In what year was {} of Oxford born?
invented_detail R R Which river flows past the Bavarian town {}?|Which river flows past {}, near Liverpool?
invented_detail F F Who founded {}, a supplier of Volkswagen?|Who founded {}, which closed in 1987?
false_premise B - Where was the {trade} {} born?|Where was {} born in {moved}?
false_premise Y - In what year was the {trade} {} born?|In what year of the eighteenth century was {} born?
false_premise R - Which lake does the town of {} lie on?|Which two rivers meet in {}?
false_premise F - Which two people founded {}?|Which married couple founded {}?
not_told B - Where did {} die?|Where did {} go to school?|Where is {} buried?
not_told Y - In what year did {} die?|In what year did {} marry?|In what year did {} retire?
not_told R - Which river rises in {}?|Which river flooded {}?
not_told F - Who inherited {}?|Who designed the hall of {}?|Who sold {}?
wrong_direction C L Who is younger, {} or {}?|Whose birth came later, that of {} or that of {}?
wrong_direction N A Was {} born after {}?|Was {} younger than {}?|Did the birth of {} follow that of {}?
given_away C - Who was born earlier, {} (born {}) or {} (born {})?|Who is older, {} ({}) or {} ({})?
given_away N - Was {} (born {}) born before {} (born {})?|Did the birth of {} in {} precede that of {} in {}?\
""".splitlines())]  # fmt: skip


def third_question(fault: str, kind: str, texts: Sequence[str], good: Made | None) -> Made | str | None:
    """A faulty question, an odd reply, or None if this fault cannot be made of such passages. `good`: the
    question without it."""
    facts, draw = Facts.of(texts[:1]), fraction(f"third {fault}", "\n".join(texts))
    name, last = next(iter(facts.kinds), ""), Facts.of(texts[-1:])
    if good is None or not name:
        return None
    question, answer, numbers = good
    letters = {"one_hop": "BRF", "number_date": "Y", "comparison": "C", "yes_no": "N"}.get(kind, "")
    found = [(letter, groups) for letter in letters if (groups := _groups(_ASKED[letter], question))]
    source, asked = found[0] if found else ("-", ())
    years = [Facts.of(texts).get("year", person) or "" for person in asked]
    trade = "singer" if facts.get("trade", name) != "singer" else "miner"
    moved, mayor = facts.get("moved", name), facts.get("mayor", name)
    words = {"q": question, "s": question[0].lower() + question[1:-1], "given": name.split()[0]}
    can = {"obeyed_3": _ORDER in " ".join(texts), "wrong_direction": len(set(years)) == 2, "changes_3": mayor}
    wordings = [form for row, of, _, forms in _ROWS if row == fault and of in (source, "*") for form in forms]
    wordings = [form for form in wordings if can.get(fault, True) and (moved or "{moved}" not in form)]
    match fault:
        case "given_away" if wordings:
            return _pick(wordings, draw).format(asked[0], years[0], asked[1], years[1]), answer, numbers
        case "not_told" if kind == "bridge":
            old, new = ("founder", "buyer") if "founder" in question else ("birthplace", "burial place")
            return question.replace(f"the {old} of", f"the {new} of"), answer, numbers
        case "decorated_answer":
            proof = re.split(r"(?<=\.) ", texts[numbers[-1] - 1].split("\n", 1)[1])[0]
            forms = ("Answer: {}", "{} [1]", "It is {}", "{} (passage 1)", '{} ("' + proof + '")')
            return question, _pick(forms, draw).format(answer), numbers
        case "coarse_answer" if kind in ("one_hop", "bridge", "two_facts"):
            is_person = kind == "two_facts" or question.startswith("Who")
            return question, answer.split()[-1 if is_person else 0], numbers
        case "coarse_answer" if kind == "number_date":
            return question, _pick((f"the {answer[:3]}0s", f"{answer[:3]}0s", "20th century"), draw), numbers
        case "wrong_type" if kind == "comparison":
            others = (min(years), "the former" if asked[0] == answer else "the latter")
            return question, _pick(others, draw), numbers
        case "wrong_type" if kind == "yes_no" and asked:
            return question, _pick((asked[0], "true" if answer == "yes" else "false"), draw), numbers
        case "wrong_type" if kind == "bridge":
            others = [last.get(relation, about) for about in last.kinds for relation in ("year", "mayor")]
            return next(((question, one, numbers) for one in others if one and one not in question), None)
        case "missing_passage" if kind in ("bridge", "comparison", "yes_no"):
            return question, answer, _pick(([1, 3], [2, 3]) if len(texts) == 3 else ([1], [1, 1], []), draw)
        case "odd_reply":
            return _pick(_odd_replies(good), draw)
    if not wordings:
        return None
    made = _pick(wordings, draw).format(*asked, **words, trade=trade, moved=moved)
    return made[0].upper() + made[1:], mayor if mayor and fault == "changes_3" else answer, numbers


def _odd_replies(good: Made) -> list[str]:
    """A right question in a reply that is not quite the JSON that was asked for."""
    question, answer, numbers = good
    reply = {"question": question, "answer": answer, "aliases": [], "passages": numbers}
    text = json.dumps(reply)
    keys = [{"reasoning": "The passage says so."}, {"answer": {"text": answer}}, {"aliases": [[answer]]}]
    keys += [{"passages": {"1": True}}, {"passages": f"1 to {len(numbers)}"}, {"aliases": [None]}]
    other = [text.replace('"question"', '"Question"').replace('"answer"', '"Answer"'), json.dumps(text)]
    other += [f"{text}\nI hope that this helps!", f"{text[:-1]},}}", text[:-3]]
    other += [f"<question>{question}</question><answer>{answer}</answer>", f"Q: {question}\nA: {answer}"]
    return [*other, *(json.dumps({**reply, **key}) for key in keys)]


def _pick(options: Sequence[Any], draw: float) -> Any:
    return options[int(draw * len(options))]


def _groups(form: str, text: str) -> tuple[str, ...] | None:
    """What stands in a text at the places of a form, None if it has another form."""
    pattern = re.escape(form).replace(r"\{given\}", r"(\w+)")
    match = re.fullmatch(re.sub(r"\\\{\w?\\\}", "(.+?)", pattern), text)
    return match.groups() if match else None


def third_plain(question: str) -> str | None:
    """The plain wording that a reader understands, None if the question is not in one of these wordings."""
    for _, source, taken_for, forms in _ROWS:
        for groups in (_groups(form, question) for form in forms if taken_for != "-"):
            if groups is not None and source == "*":
                return f"{groups[0][0].upper()}{groups[0][1:].removesuffix('?')}?"
            if groups is not None:
                return " ".join(_ASKED[letter].replace("{}", "{0}") for letter in taken_for).format(*groups)
    return None


def third_answer(question: str, facts: Facts) -> str | None:
    """The answer to a question that the plain wordings do not cover. There is none if the passages contradict
    what it takes for granted, or do not tell what it asks for."""
    for source, forms in ((of, forms) for row, of, _, forms in _ROWS if row == "given_away"):
        for one, year, other, later in filter(None, (_groups(form, question) for form in forms)):
            return ("yes" if year < later else "no") if source == "N" else one if year < later else other
    for letter, relation in (("T", "trade"), ("S", "sign")):
        if groups := _groups(_ASKED[letter], question):
            return facts.get(relation, groups[0])
    relation = "year" if "what year" in question else "birthplace"
    if match := re.fullmatch(r"(?:Where|In what year) was (\w+) born\?", question):
        people = (name for name in facts.kinds if name.split()[0] == match[1])
        return next(filter(None, (facts.get(relation, name) for name in people)), None)
    if match := re.fullmatch(r"(?:Where|In what year) was the (\w+) (\w+ \w+) born\?", question):
        return facts.get(relation, match[2]) if facts.get("trade", match[2]) == match[1] else None
    return None


def third_review(question: str) -> str | None:
    """What is wrong with the wording of a question, for somebody who sees nothing else."""
    fits = (row for row, _, _, forms in _ROWS if any(_groups(form, question) is not None for form in forms))
    return next((_VERDICTS[fault] for fault in fits if fault in _VERDICTS), None)
