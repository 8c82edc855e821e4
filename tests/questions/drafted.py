"""Passages, seeds and drafts for tests, made in a line each."""

from __future__ import annotations

from typing import Any

from rag_r1.questions.drafts import Draft
from rag_r1.questions.passages.documents import SourcePassage
from rag_r1.questions.rules import golds_of
from rag_r1.questions.seeds import MULTI_HOP, KindName, Seed

ANN = "Ann Lee was born in Ulm on 3 May 1903. She wrote the novel Grey Water."
ULM = "Ulm is a town in Germany. It lies on the Danube and has 126,000 people."


def passage(name: str, text: str, **more: Any) -> SourcePassage:
    values = {"title": name, "document": name.lower(), "source": "corpus.jsonl", **more}
    return SourcePassage(id=name, contents=f'"{name}"\n{text}', **values)


def draft(
    question: str,
    answer: str,
    kind: KindName = "one_hop",
    *texts: str,
    aliases: tuple[str, ...] = (),
    split: str = "train",
    name: str = "",
    page: str = "",
    obscure: bool = False,
) -> Draft:
    """A draft that names all passages of its seed, those about Ann Lee and Ulm by default. `page`: behind
    their titles, for other pages."""
    texts = texts or ((ANN, ULM) if kind in MULTI_HOP else (ANN,))
    names = ("Ann Lee", "Ulm", "Third", "Fourth")
    passages = tuple(
        passage(f"{title}{page}", text, split=split) for title, text in zip(names, texts, strict=False)
    )
    names = [name] if name else [f"{kind}-{number}" for number in range(20)]
    name = next(
        (one for one in names if Seed(one, kind, passages).planned_answer in (None, answer)), names[0]
    )
    seed = Seed(name, kind, passages, ("title",) * (len(passages) - 1), obscure)
    return Draft(seed, question, golds_of(kind, answer, aliases, passages), passages)
