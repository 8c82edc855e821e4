"""Markup to text."""

from __future__ import annotations

import html

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval_server.web.plain_text import document_contents, plain_text


@pytest.mark.parametrize(
    "marked_up, text",
    [
        ("<b>Ulm</b> lies on the <STRONG class='x'>Danube</strong>", "Ulm lies on the Danube"),
        ("1 &lt; 2 &amp;&amp; caf&eacute;&#33;", "1 < 2 && café!"),
        ("one<br/>two<p>three</p><pre>four</pre>f<b>iv</b>e<option>six", "one two three four five six"),
        ("if a < b and List<String> or <unknown>", "if a < b and List<String> or <unknown>"),
        ("  a\n\tb\u00a0c ", "a b c"),
        ("<a href='x'", "<a href='x'"),
        ("bell\x07 and \ud800", "bell\ufffd and \ufffd"),
        ("", ""),
    ],
)
def test_tags_go_entities_are_resolved_and_the_rest_stays(marked_up, text):
    assert plain_text(marked_up) == text


@given(st.text(st.characters(exclude_categories=("Cs", "Cc"))))
def test_a_text_that_was_escaped_for_html_comes_back(text):
    assert plain_text(html.escape(text)) == " ".join(text.split())


@given(st.text(), st.text())
def test_contents_are_a_title_in_quotes_on_one_line_and_a_snippet_on_one_line(title, snippet):
    lines = document_contents(title, snippet).split("\n")
    assert len(lines) == 2 and lines[0].startswith('"') and lines[0].endswith('"')
    "\n".join(lines).encode("utf-8")
