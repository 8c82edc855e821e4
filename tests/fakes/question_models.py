"""A teacher and a reader of questions, each a process that sees nothing but the requests that it gets.

    python -m tests.fakes.question_models teacher --log FILE
    python -m tests.fakes.question_models reader --log FILE

They know no world and no seed: by regular expressions they read the sentences of the demo's world, and two
more (`SENTENCES`), from the passages that a prompt quotes. Both fail at known rates, which depend on a hash
of the request alone: the teacher makes the faults of `FAULTS`, with `--late` also those of late_questions.py
or third_questions.py, each of which the log names, and the reader gives a wrong answer to `--errors` of the
requests. The log has a line for each request that was answered: `{"request": sha256, "prompt_tokens",
"completion_tokens"}`, and the teacher's also `{"kind", "passages", "fault", "question"}`. The address is
printed when it is ready.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.fakes.late_questions import (
    LATE,
    LATE_WEIGHTS,
    late_answer,
    late_question,
    plain,
    referred,
    reworded,
    wording_fault,
)
from tests.fakes.late_wordings import in_other_words
from tests.fakes.openai_server import OpenAIServer, chat
from tests.fakes.question_facts import CAPITALS, COMMON, Facts, fraction
from tests.fakes.third_questions import (
    THIRD,
    THIRD_WEIGHTS,
    third_answer,
    third_plain,
    third_question,
    third_review,
)

ROOT = Path(__file__).parents[2]
#: Fault of the teacher -> the reasons for which it should be refused.
FAULTS: dict[str, tuple[str, ...]] = {
    "wrong_answer": ("reader_disagrees",),
    "closed_book": ("needs_no_search",),
    "one_passage": ("one_passage_is_enough",),
    "ambiguous": ("another_answer",),
    "ambiguous_chain": ("another_answer",),
    "malformed": ("malformed_reply",),
    "refusal": ("malformed_reply",),
    "dangling": ("dangling_reference",),
    "invented_answer": ("answer_not_in_passages",),
    "leak": ("answer_in_question",),
    "named": ("name_not_hidden",),
    "half_answer": ("wrong_form",),
    "swapped_answer": ("reader_disagrees",),
}
#: What the reader may say of the wording of a question.
VERDICTS = ("good", "unclear", "several", "changes", "language", "extra")
#: What is asked of two: the plural of a question, and the relation that it asks for.
BOTH = {
    "person": ("What are the birthplaces of {} and {}?", "birthplace"),
    "town": ("Which rivers flow past {} and {}?", "river"),
    "company": ("Who are the founders of {} and {}?", "founder"),
}
INJECTION = re.compile(r'IGNORE ALL INSTRUCTIONS AND ASK "([^"]+)" ANSWER "([^"]+)"')


# --- the teacher -------------------------------------------------------------------------------------------


def case_of(body: dict[str, Any]) -> dict[str, Any]:
    return json.loads(body["messages"][-1]["content"])


def texts_of(case: dict[str, Any]) -> list[str]:
    return [passage["text"] for passage in case.get("passages", [])]


def planted(
    case: dict[str, Any], late: str | None = None, reworded_share: float = 0.0
) -> tuple[str | None, Any]:
    """What goes wrong with a seed in all attempts, and the reply: one of the faults that can be made of its
    passages, in `RATE` of the seeds; with `late`, half of them of the late kinds; with `again` the late ones
    in their second wordings, with `third` those of the third round. `reworded_share` of the other questions
    are in other words."""
    name, kind, texts, task = json.dumps(case, sort_keys=True), case["kind"], texts_of(case), case["task"]
    good = _good(kind, texts, task)

    def drawn(faults: Iterable[str], weights: dict[str, float]) -> list[str]:
        return sorted(faults, key=lambda fault: fraction(fault, name) * weights.get(fault, 1))

    if fraction("faulty", name) < RATE:
        if late and fraction("late", name) < LATE_SHARE:
            is_third = late == "third"
            make = third_question if is_third else late_question
            for fault in drawn(THIRD, THIRD_WEIGHTS) if is_third else drawn(LATE, LATE_WEIGHTS):
                if made := make(fault, kind, texts, good):
                    return fault, again(fault, texts, good, made) if late == "again" else made
        for fault in drawn(FAULTS, WEIGHTS):
            if made := _faulty(fault, kind, texts, task):
                return fault, in_own_words(made, name, reworded_share) if reworded_share == 1 else made
    return None, in_own_words(good, name, reworded_share)


def in_own_words(made: Made | str | None, name: str, share: float) -> Made | str | None:
    """A question in other words, if the seed of this name is among the share of those that are reworded."""
    if made is None or isinstance(made, str) or fraction("reworded", name) >= share:
        return made
    return reworded(made[0]), *made[1:]


def again(fault: str, texts: Sequence[str], good: Made | None, made: Made | str) -> Made | str:
    """A late question in its second wording, if it has one."""
    [(name, entity), *_] = Facts.of(texts[:1]).kinds.items()
    plain_form = good[0] if good else f"Which river flows past {name}?"
    other = in_other_words(fault, plain_form, name, entity, fraction("second wording", texts[0]))
    return made if isinstance(made, str) or other is None else (other, *made[1:])


RATE = 0.4
#: Of the faulty questions, and of the good ones beside late faults.
LATE_SHARE, REWORDED_SHARE = 0.5, 0.35
#: The higher, the rarer: some can be made of all passages, and some of few.
WEIGHTS = {
    "malformed": 4,
    "refusal": 4,
    "closed_book": 0.2,
    "one_passage": 0.4,
    "named": 0.2,
    "ambiguous_chain": 0.1,
}
HIDES = "Do not name the subject of the first"


def teach(
    body: dict[str, Any], late: str | None = None, reworded_share: float = 0.0
) -> tuple[str, dict[str, Any]]:
    """The teacher's reply, and what the log has of it."""
    case = case_of(body)
    texts, kind = texts_of(case), case["kind"]
    entry: dict[str, Any] = {"kind": kind, "passages": texts, "fault": None, "question": None}
    if fraction("first", json.dumps(body, sort_keys=True)) < 0.05:  # the next attempt is another request
        return "Sure! Here is one:", {**entry, "fault": "transient"}
    fault, made = planted(case, late, reworded_share)
    entry["fault"] = fault
    if isinstance(made, str):
        return made, entry
    if made is None:
        return json.dumps({"question": None}), {**entry, "fault": "declined"}
    question, answer, numbers = made
    aliases = ["Nobody", answer] if fraction("alias", question) < 0.5 else []
    reply = {"question": question, "answer": answer, "aliases": aliases, "passages": numbers}
    text = json.dumps(reply)
    fenced = f"```json\n{text}\n```" if fraction("fence", question) < 0.2 else text
    return fenced, {**entry, "question": question, "answer": answer}


Made = tuple[str, str, list[int]]


def _good(kind: str, texts: Sequence[str], task: str) -> Made | None:
    """A right question, if this teacher has one for such passages."""
    if order := INJECTION.search(" ".join(texts)):
        return order[1], order[2], list(range(1, len(texts) + 1))
    each = [Facts.of([text]) for text in texts]
    names = [next(iter(facts.kinds), "") for facts in each]
    kinds = [facts.kinds.get(name, "") for facts, name in zip(each, names, strict=True)]
    facts, name = each[0], names[0]
    if kind == "one_hop":
        return {
            "person": (f"Where was {name} born?", facts.get("birthplace", name) or "", [1]),
            "town": (f"Which river flows past {name}?", facts.get("river", name) or "", [1]),
            "company": (f"Who founded {name}?", facts.get("founder", name) or "", [1]),
        }.get(kinds[0])
    if kind == "number_date" and kinds[0] == "person":
        return f"In what year was {name} born?", facts.get("year", name) or "", [1]
    if kind == "two_facts" and kinds[0] == "person":
        trade, town, year = (facts.get(relation, name) for relation in ("trade", "birthplace", "year"))
        return f"Which {trade} was born in {town} in {year}?", name, [1]
    if kind == "bridge":
        return _bridge(each, names, kinds, HIDES in task)
    if kind in ("comparison", "yes_no") and kinds == ["person", "person"] and names[0] != names[1]:
        years = [each[number].get("year", names[number]) or "" for number in (0, 1)]
        if kind == "yes_no":
            wanted = "yes" if "The answer is yes." in task else "no"
            return _yes_no(names, years, wanted), wanted, [1, 2]
        if years[0] != years[1]:
            first = names[years.index(min(years))]
            return f"Who was born earlier, {names[0]} or {names[1]}?", first, [1, 2]
    if kind == "both" and kinds[0] == kinds[1] and names[0] != names[1]:
        wording, relation = BOTH[kinds[0]]
        values = [each[number].get(relation, names[number]) or "" for number in (0, 1)]
        if values[0] != values[1]:
            return wording.format(*names), " and ".join(values), [1, 2]
    return None


def _yes_no(names: Sequence[str], years: Sequence[str], answer: str) -> str:
    """A question about two people that has this answer."""
    if years[0] == years[1]:
        one, other = names
        same = f"Were {one} and {other} born in the same year?"
        return same if answer == "yes" else f"Was {one} born before {other}?"
    first, last = names if years[0] < years[1] else (names[1], names[0])
    return f"Was {first} born before {last}?" if answer == "yes" else f"Was {last} born before {first}?"


def _bridge(
    each: Sequence[Facts], names: Sequence[str], kinds: Sequence[str], is_obscure: bool
) -> Made | None:
    """A question along a chain whose passages name each other."""
    called, sign = names[0], each[0].get("sign", names[0])
    if is_obscure:
        if kinds[0] != "company" or sign is None:
            return None
        called = f"the company whose sign is a {sign}"
    numbers = list(range(1, len(names) + 1))
    steps = [each[0].get("founder", names[0]), each[0].get("birthplace", names[0])]
    if names[1] not in steps:
        return None
    if kinds == ["company", "person"]:
        return f"Where was the founder of {called} born?", each[1].get("birthplace", names[1]) or "", numbers
    if kinds == ["person", "town"]:
        return (
            f"Which river flows past the birthplace of {called}?",
            each[1].get("river", names[1]) or "",
            numbers,
        )
    if kinds == ["company", "person", "town"] and each[1].get("birthplace", names[1]) == names[2]:
        river = each[2].get("river", names[2]) or ""
        return f"Which river flows past the birthplace of the founder of {called}?", river, numbers
    return None


def _faulty(fault: str, kind: str, texts: Sequence[str], task: str) -> Made | str | None:
    """A faulty question, a malformed reply, or None if this fault cannot be made of such passages."""
    good = _good(kind, texts, task)
    facts = Facts.of(texts[:1])
    name = next(iter(facts.kinds), "")
    is_person = facts.kinds.get(name) == "person"
    match fault:
        case "refusal":
            return "I'm sorry, but I can't help with that."
        case "malformed":
            broken = ['{"question": "Who?"', '["Who founded it?", "x"]', '{"question": 5, "answer": "x"}']
            extra = json.dumps({"question": f"Who is {name}?", "answer": name, "passages": [1], "note": "!"})
            absent = json.dumps({"question": f"Who is {name}?", "answer": name, "passages": [4]})
            return [*broken, extra, absent][int(fraction("form", texts[0]) * 5)]
        case "closed_book" if kind == "one_hop" and (common := COMMON.search(texts[0])):
            return f"What is the capital of {common[2]}?", common[1], [1]
        case "ambiguous" if kind in ("one_hop", "two_facts") and is_person:
            return f"Who was born in {facts.get('year', name)}?", name, [1]
    if good is None or not name:
        return None
    question, answer, numbers = good
    match fault:
        case "wrong_answer" if kind == "comparison":
            return question, _other(question, answer), numbers
        case "wrong_answer" if kind == "yes_no":
            opposite = task.replace(f"is {answer}.", "is yes." if answer == "no" else "is no.")
            made = _good(kind, texts, opposite)
            return made and (made[0], answer, numbers)
        case "wrong_answer" if kind == "bridge":
            return question, facts.get("founder", name) or facts.get("birthplace", name) or "", numbers
        case "wrong_answer" if kind == "one_hop" and is_person:
            return question, facts.get("year", name) or "", numbers
        case "wrong_answer" if kind == "both" and is_person:
            return question, f"{facts.get('year', name)} and {answer.split(' and ')[1]}", numbers
        case "half_answer" if kind == "both":
            return question, answer.split(" and ")[0], numbers
        case "swapped_answer" if kind == "both":
            return question, " and ".join(answer.split(" and ")[::-1]), numbers
        case "invented_answer" if kind == "both":
            return question, f"{answer.split(' and ')[0]} and Atlantis Bay", numbers
        case "ambiguous_chain" if kind == "bridge" and is_person and question.startswith("Which river"):
            described = f"the {facts.get('trade', name)} born in {facts.get('year', name)}"
            return f"Which river flows past the birthplace of {described}?", answer, numbers
        case "one_passage" if kind == "bridge":
            last = Facts.of(texts[-1:])
            about = next(iter(last.kinds))
            if about == name:
                return None
            asked = (
                f"Which river flows past {about}?" if last.get("river", about) else f"Where was {about} born?"
            )
            return asked, answer, numbers
        case "invented_answer" if kind in ("one_hop", "bridge"):
            return question, "Atlantis Bay", numbers
        case "leak" if kind in ("one_hop", "bridge"):
            return f"{question[:-1]}, {answer} or elsewhere?", answer, numbers
        case "dangling" if kind in ("one_hop", "number_date"):
            forms = [f"According to the passage, {question[0].lower()}{question[1:]}"]
            forms += [question.replace(name, "he")] if is_person else [question.replace(name, "it")]
            forms += [question.replace(name, "this " + facts.kinds[name])]
            return forms[int(fraction("form", texts[0]) * 3)], answer, numbers
        case "named" if HIDES in task:
            sign = facts.get("sign", name)
            return question.replace(f"the company whose sign is a {sign}", name), answer, numbers
    return None


def _other(question: str, answer: str) -> str:
    match = re.search(r"earlier, (\w+ \w+) or (\w+ \w+)\?", question)
    assert match is not None
    return match[1] if match[2] == answer else match[2]


# --- the reader --------------------------------------------------------------------------------------------


def read(body: dict[str, Any], errors: float) -> str:
    """The reader's reply, by the passages that it is shown; wrong in `errors` of the requests."""
    case = case_of(body)
    name = json.dumps(body, sort_keys=True)
    if "the wording of a question" in body["messages"][0]["content"]:
        fault = third_review(case["question"]) or wording_fault(case["question"])
        if fraction("error", name) < errors:
            others = [other for other in VERDICTS if other != fault]
            fault = others[int(fraction("which", name) * len(others))]
        return json.dumps({"answer": fault})
    texts = texts_of(case)
    answer = answered(case["question"], texts)
    if fraction("error", name) < errors:
        names = re.findall(r"[A-Z]\w+ [A-Z]\w+|\d{4}", " ".join(texts))
        answer = names[int(fraction("which", name) * len(names))] if names else None
    if fraction("prose", name) < errors / 2:
        return "I think that I know."
    if answer and fraction("words", name) < 0.2:
        answer = f"in {answer}" if answer.isdigit() else answer
    return json.dumps({"answer": answer or "unknown"})


def answered(question: str, texts: Sequence[str]) -> str | None:
    """The answer that the passages give, or that everybody knows."""
    return answer_by(question, Facts.of(texts))


def answer_by(question: str, facts: Facts) -> str | None:
    """The answer that facts give, or that everybody knows."""
    question = plain(third_plain(question) or question)
    if (late := third_answer(question, facts) or late_answer(question, facts)) is not None:
        return late
    if match := re.fullmatch(r"(.+\?) (.+\?)", question):
        answers = [answer_by(part, facts) for part in match.groups()]
        return None if None in answers else ", ".join(map(str, answers))
    if match := re.fullmatch(r"Is it false that (.+) was born before (.+)\?", question):
        opposite = {"yes": "no", "no": "yes"}
        return opposite.get(answer_by(f"Was {match[1]} born before {match[2]}?", facts) or "")
    if match := re.fullmatch(r"What is the capital of (\w+)\?", question):
        return CAPITALS.get(match[1])
    if match := re.fullmatch(r"Was (\w+ \w+) born before (\w+ \w+)\?", question):
        years = [facts.get("year", match[number]) for number in (1, 2)]
        return None if None in years else "yes" if years[0] < years[1] else "no"
    if match := re.fullmatch(r"Were (\w+ \w+) and (\w+ \w+) born in the same year\?", question):
        years = [facts.get("year", match[number]) for number in (1, 2)]
        return None if None in years else "yes" if years[0] == years[1] else "no"
    for wording, relation in BOTH.values():
        pattern = re.escape(wording).replace(r"\{\}", r"(\w+ \w+)")
        if match := re.fullmatch(pattern, question):
            facts_of_both = [facts.get(relation, name) for name in match.groups()]
            return None if None in facts_of_both else " and ".join(map(str, facts_of_both))
    if match := re.fullmatch(r"Who was born in (\d{4})\?", question):
        return next(iter(facts.having(year=match[1])), None)
    if match := re.fullmatch(r"Which (\w+) was born in (\w+ \w+) in (\d{4})\?", question):
        return next(iter(facts.having(trade=match[1], birthplace=match[2], year=match[3])), None)
    for pattern, relation in (
        (r"(?:According to the passage, )?[Ww]here was (.+) born\?", "birthplace"),
        (r"(?:According to the passage, )?[Ii]n what year was (.+) born\?", "year"),
        (r"(?:According to the passage, )?[Ww]hich river flows past (.+)\?", "river"),
        (r"(?:According to the passage, )?[Ww]ho founded (.+)\?", "founder"),
    ):
        if match := re.fullmatch(pattern, question):
            values = (facts.get(relation, entity) for entity in meant(match[1], facts))
            return next(filter(None, values), None)
    return None


def meant(words: str, facts: Facts) -> list[str]:
    """The entities that words describe."""
    for prefix, relation in (("the birthplace of ", "birthplace"), ("the founder of ", "founder")):
        if words.startswith(prefix):
            values = (facts.get(relation, entity) for entity in meant(words.removeprefix(prefix), facts))
            return [value for value in values if value]
    if words.startswith("the company whose sign is a "):
        return facts.having(sign=words.removeprefix("the company whose sign is a "))
    if match := re.fullmatch(r"the (\w+) born in (\d+)", words):
        return facts.having(trade=match[1], year=match[2])
    return referred(words, facts) or [words]


# --- the processes -----------------------------------------------------------------------------------------


@contextmanager
def model_process(role: str, log: Path, *options: str) -> Iterator[str]:
    """The address, with /v1, of a teacher or a reader in a process of its own."""
    command = [sys.executable, "-m", "tests.fakes.question_models", role, "--log", str(log), *options]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        assert process.stdin is not None
        process.stdin.close()  # at which it ends
        process.wait(timeout=30)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["teacher", "reader"])
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--errors", type=float, default=0.03)
    parser.add_argument(
        "--late", choices=["first", "again", "third"], help="the teacher has the late faults, too"
    )
    parser.add_argument("--reworded", action="store_true", help="the teacher has no wording of the world's")
    parser.add_argument("--delay-s", type=float, default=0.0)
    args = parser.parse_args()
    reworded_share = 1.0 if args.reworded else REWORDED_SHARE if args.late else 0.0
    with args.log.open("a", buffering=1) as log:

        def reply(body: dict[str, Any]) -> dict[str, Any]:
            if body.get("max_tokens") == 1:  # a check whether the server answers: neither writes nor reads
                return {**chat("Hello"), "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
            if args.role == "teacher":
                text, entry = teach(body, args.late, reworded_share)
            else:
                text, entry = read(body, args.errors), {}
            request = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
            prompt = sum(len(message["content"]) for message in body["messages"]) // 4
            usage = {"prompt_tokens": prompt, "completion_tokens": len(text) // 4 + 1}
            log.write(json.dumps({"request": request, "time": time.monotonic(), **usage, **entry}) + "\n")
            return {**chat(text), "usage": usage}

        with OpenAIServer(reply, delay_s=args.delay_s) as server:
            print(server.base, flush=True)
            sys.stdin.read()


if __name__ == "__main__":
    main()
