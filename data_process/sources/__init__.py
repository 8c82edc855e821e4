"""The table of all sources of questions, by name.

Each entry of SOURCES has a function that converts a row of the source's file or Hub data set to a `Question`,
and the facts that are needed to read the file. To add a source, add an entry.

A row is checked against its source before it is converted. It must have the columns of one of the source's
layouts, and must not have the columns by which another source is recognised. A file that is given under a
wrong name is therefore refused, and the message names the source that it looks like. (FlashRAG gives all of
its sets the same three columns; there the name cannot be checked.)
"""

from __future__ import annotations

from data_process.sources.exams import gsm8k, medmcqa, medqa, medqa_zh
from data_process.sources.multi_hop import hotpotqa, musique, two_wiki
from data_process.sources.multi_question import several_questions
from data_process.sources.open_domain import asearcher, bamboogle, nq, popqa, triviaqa
from data_process.sources.source_kind import HubSplit, SourceKind, flashrag, hub_splits
from rag_r1.data.files.questions import LIST_KEYS, parse_row

_FLASHRAG = ("question", "golden_answers")

SOURCES: dict[str, SourceKind] = {
    source.name: source
    for source in (
        SourceKind(
            "nq", "Natural Questions: NQ-open's JSON lines, or FlashRAG's", nq,
            layouts=(_FLASHRAG, ("question", "answer")),
            hub=flashrag("nq", "train", "test"),
        ),
        SourceKind(
            "triviaqa", "TriviaQA: its own JSON (`Data`), the Hub's mandarjoshi/trivia_qa, or FlashRAG's",
            triviaqa,
            layouts=(_FLASHRAG, ("Question", "Answer"), ("question", "answer")),
            own_columns=("QuestionId", "Answer"),
            array_key="Data",
            hub=flashrag("triviaqa", "train", "test"),
        ),
        SourceKind(
            "popqa", "PopQA: popQA.tsv, JSON lines with its columns, or FlashRAG's", popqa,
            layouts=(_FLASHRAG, ("question", "possible_answers")),
            own_columns=("s_wiki_title",),
            further_columns=("prop", "paragraphs"),
            list_columns=("possible_answers",),
            hub=flashrag("popqa", None, "test"),
        ),
        SourceKind(
            "hotpotqa",
            "HotpotQA: hotpot_train_v1.1.json and the like, the Hub's hotpotqa/hotpot_qa, or FlashRAG's",
            hotpotqa,
            layouts=(_FLASHRAG, ("question", "answer", "supporting_facts")),
            own_columns=("supporting_facts", "level"),
            further_columns=("type",),
            hub=flashrag("hotpotqa", "train", "dev"),
        ),
        SourceKind(
            "2wikimultihopqa", "2WikiMultihopQA: train.json, dev.json, or FlashRAG's", two_wiki,
            layouts=(_FLASHRAG, ("question", "answer", "supporting_facts", "type")),
            own_columns=("evidences",),
            hub=flashrag("2wikimultihopqa", "train", "dev"),
        ),
        SourceKind(
            "musique", "MuSiQue: musique_ans_v1.0_*.jsonl, or FlashRAG's", musique,
            layouts=(_FLASHRAG, ("id", "question", "answer", "paragraphs")),
            own_columns=("question_decomposition",),
            further_columns=("answer_aliases", "answerable"),
            list_columns=("answer_aliases",),
            hub=flashrag("musique", "train", "dev"),
        ),
        SourceKind(
            "bamboogle", "Bamboogle: its CSV, with a header or without, or FlashRAG's", bamboogle,
            layouts=(_FLASHRAG, ("Question", "Answer"), ("question", "answer")),
            csv_header=("question", "", "", "", "answer", "", "", ""),
            hub=flashrag("bamboogle", None, "test"),
        ),
        SourceKind(
            "asearcher", "ASearcher: its training sets and its test sets (FRAMES, GAIA, ... in its columns)",
            asearcher,
            layouts=(("question", "answer"),),
            own_columns=("aug_answer",),
            further_columns=("source", "qid"),
            list_columns=("answer", "aug_answer"),
            hub={
                "train": HubSplit(
                    "inclusionAI/ASearcher-train-data", None, "train", files="ASearcher-Base-35k.jsonl"
                )
            },
        ),
        SourceKind(
            "n_questions",
            "several questions in a row: nq_hotpotqa_train_multi_N of MEM1, or {questions, golden_answers}",
            several_questions,
            layouts=(("questions", "golden_answers"), ("prompt", "reward_model")),
            own_columns=("reward_model",),
            further_columns=("question", "data_source"),
        ),
        SourceKind(
            "gsm8k", "GSM8K: its JSON lines, the answer after ####", gsm8k,
            layouts=(("question", "answer"),),
            hub=hub_splits("openai/gsm8k", "main", "train", "test"),
        ),
        SourceKind(
            "medqa", "MedQA, US, four or five options", medqa,
            layouts=(("question", "options", "answer_idx", "meta_info"),),
            own_columns=("meta_info",),
            further_columns=("realidx", "answer"),
            hub=hub_splits("GBaker/MedQA-USMLE-4-options", None, "train", "test"),
        ),
        SourceKind(
            "medqa_zh", "MedQA, Chinese, four options, in the columns of BigBio", medqa_zh,
            layouts=(("question", "choices", "answer"),),
            own_columns=("choices",),
            hub=hub_splits("fzkuji/MedQA", "med_qa_zh_4options_bigbio_qa", "train", "validation"),
        ),
        SourceKind(
            "medmcqa", "MedMCQA: the Hub's columns (opa ... opd, cop), or options by letter", medmcqa,
            layouts=(("question", "opa", "opb", "opc", "opd", "cop"), ("question", "options", "answer_idx")),
            own_columns=("opa",),
            further_columns=("realidx", "answer", "subject_name"),
            hub=hub_splits("openlifescienceai/medmcqa", None, "train", "validation"),
        ),
        SourceKind(
            "questions", "any other: question, golden_answers (or answer, answers), id", parse_row,
            layouts=(("question", "golden_answers"), ("question", "answers"), ("question", "answer")),
            further_columns=("supporting_titles",),
            list_columns=LIST_KEYS,
        ),
    )
}  # fmt: skip
