"""A small invented world to ask questions about.

- `facts`      people, towns, rivers and companies, drawn from a seed, and the passages that state them
- `questions`  four kinds of questions about them
- `prompts`    the short prompts of the demo
- `files`      corpus and rows of a demo run; `python -m rag_r1.demo.world` writes them

Because every seed draws new facts and no test name ever occurs in training, an answer can only be read in a
passage, never remembered.
"""

from rag_r1.demo.world.facts import Lookup, World, fresh_world, make_world
from rag_r1.demo.world.files import DemoData, demo_data, to_row, write_demo
from rag_r1.demo.world.prompts import PROMPT, PROMPT_FILE, demo_protocol, prompt_file
from rag_r1.demo.world.questions import INDEPENDENT, KINDS, Question, make_questions

__all__ = [
    "INDEPENDENT", "KINDS", "PROMPT", "PROMPT_FILE", "DemoData", "Lookup", "Question", "World", "demo_data",
    "demo_protocol", "fresh_world", "make_questions", "make_world", "prompt_file", "to_row", "write_demo",
]  # fmt: skip
