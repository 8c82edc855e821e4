"""A small invented world about which questions are asked.

- `facts`      draws people, towns, rivers and companies from a seed, and writes passages about them
- `questions`  draws four kinds of questions about them
- `prompts`    has the short prompts of the demo
- `files`      writes the corpus and the rows of a demo run, also by `python -m rag_r1.demo.world`

Every seed draws new facts, and no name of the test questions occurs in training. An answer can therefore only
be read in a passage, never remembered.
"""

from rag_r1.demo.world.facts import Lookup, World, fresh_world, make_world
from rag_r1.demo.world.files import DemoData, demo_data, to_row, write_demo
from rag_r1.demo.world.prompts import PROMPT, PROMPT_FILE, demo_protocol, prompt_file
from rag_r1.demo.world.questions import INDEPENDENT, KINDS, Question, make_questions

__all__ = [
    "INDEPENDENT", "KINDS", "PROMPT", "PROMPT_FILE", "DemoData", "Lookup", "Question", "World", "demo_data",
    "demo_protocol", "fresh_world", "make_questions", "make_world", "prompt_file", "to_row", "write_demo",
]  # fmt: skip
