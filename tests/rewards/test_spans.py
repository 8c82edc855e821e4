"""Where blocks stand in the policy's text."""

import re

from hypothesis import given
from hypothesis import strategies as st

from rag_r1.protocols import Tag
from rag_r1.rewards.spans import whole_blocks

TAG = Tag("<s>", "</s>")


@given(st.lists(st.sampled_from(["<s>", "</s>", "<", "s>", "x\n"]), max_size=12).map("".join))
def test_a_block_goes_from_an_opening_tag_to_the_next_closing_one(text):
    assert whole_blocks(TAG, text) == [m.span() for m in re.finditer("<s>.*?</s>", text, re.DOTALL)]


def test_a_text_of_nothing_but_opening_tags_is_read_once():
    assert whole_blocks(TAG, "<s>" * 300_000) == []
