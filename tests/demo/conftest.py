"""What the tests of the demo share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

from transformers import AutoTokenizer

from rag_r1.agent import TokenizerCodec
from rag_r1.demo.policy import encode_trace, make_policy, prompt_ids, save_policy
from rag_r1.demo.traces.writer import Segment
from rag_r1.protocols import Protocol


def check_same_tokens(
    tokenizer, folder: Path, protocol: Protocol, traces: Iterable[tuple[str, Sequence[Segment]]]
) -> None:
    """Supervised training, `AutoTokenizer` and a rollout give the same tokens for traces of questions."""
    save_policy(folder, make_policy(tokenizer, 0), tokenizer)
    loaded = AutoTokenizer.from_pretrained(folder)
    codec = TokenizerCodec(loaded)
    assert len(loaded) == len(tokenizer)
    for question, trace in traces:
        messages = protocol.messages(question)
        ids, mask = encode_trace(tokenizer, protocol, messages, trace)
        prompt = prompt_ids(loaded, protocol, messages)
        if protocol.prompt_form != "text":
            chat = loaded.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
            assert prompt[: len(chat)] == chat
        pieces = [codec.encode(segment.text) for segment in trace]
        assert ids == [*prompt, *chain(*pieces)]
        generated = [[int(s.generated)] * len(piece) for s, piece in zip(trace, pieces, strict=True)]
        assert mask == [0] * len(prompt) + [*chain(*generated)]
        assert [codec.decode(piece) for piece in pieces] == [segment.text for segment in trace]
        assert "".join(codec.decode([token]) for token in chain(*pieces)) == "".join(s.text for s in trace)
