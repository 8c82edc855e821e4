"""Shipped tools in an episode, by the names that a protocol gives them."""

from rag_r1.protocols import load_protocol
from rag_r1.tools import shared_tools
from tests.fakes.scripted_engine import make_episode
from tests.tools.made_documents import folder_of_documents

TURNS = [
    "<reasoning>r</reasoning><search> [Document_RAG]: When does the ferry leave? </search>",
    "<reasoning>r</reasoning><search> [Calculator]: 21 * 2 </search>",
    "<reasoning>r</reasoning><search> [Wiki_RAG]: Rome </search>",
    "<reasoning>r</reasoning><search> [Nothing]: x </search>",
    "<reasoning>r</reasoning><answer> nine </answer>",
]


async def test_a_policy_calls_documents_a_calculator_and_the_search_by_its_own_names(tmp_path):
    (tmp_path / "p.yaml").write_text(
        "{extends: agentic_rag_en, name: p, tools: {Wiki_RAG: search, Document_RAG: notes, Calculator: calc}}"
    )
    protocol = load_protocol(str(tmp_path / "p.yaml"))
    docs = folder_of_documents(tmp_path / "docs")
    entries = {"notes": {"tool": "documents", "folder": str(docs)}, "calc": "calculator"}
    assert set(protocol.tools_called) <= {"search", *entries}
    episode = make_episode(protocol, TURNS, max_turns=6)
    episode.tools = {**shared_tools({}, entries), **episode.tools}
    record = await episode.run("id", "When?", [1])
    text = ["".join(map(chr, span.ids)) for span in episode.ledger.spans() if not span.generated]
    assert [call.tool for turn in record.turns for call in turn.calls] == [
        "notes",
        "calc",
        "search",
        "Nothing",
    ]
    assert "The ferry leaves at nine." in text[0] and "\n42\n" in text[1] and "Rome is a city." in text[2]
    assert "There is no tool 'Nothing'. The tools are: search, notes, calc." in text[3]
    assert (record.status, record.answer, record.failures) == ("answered", "nine", [])
