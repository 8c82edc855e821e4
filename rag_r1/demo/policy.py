"""The demo policy: a Qwen2 of about one million parameters with a vocabulary made for the demo world.

A policy folder contains config, tokenizer and weights (float16) in Hugging Face's format, so that vLLM, FSDP
and `AutoModelForCausalLM` load it like any other checkpoint. The committed warm starts are in
`rag_r1/demo/policy/<protocol>/`; `python -m rag_r1.demo.warm_start` makes them. Many callers need no
more than the folder of one, so torch and transformers are imported where a model or a tokenizer is made.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rag_r1.agent import Budget, TokenizerCodec
from rag_r1.config.agent_setup import AgentSetup, chat_template
from rag_r1.demo import world
from rag_r1.demo.names import NAME_WORDS, TRADE, YEARS
from rag_r1.demo.search import WorldSearch
from rag_r1.demo.traces.writer import Segment, write_trace
from rag_r1.protocols import Protocol, control_tokens
from rag_r1.tools import search_tools

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as TokenizerBase
    from transformers import Qwen2ForCausalLM

PROTOCOLS = ("rag_r1_sq", "rag_r1_mq")
POLICIES = Path(__file__).parent / "policy"


def policy_path(protocol: str) -> Path:
    """The folder of the committed warm start for a protocol name. Raises FileNotFoundError with the
    remedy."""
    folder = POLICIES / protocol
    if not (folder / "config.json").exists():
        names = " and ".join(sorted(path.parent.name for path in POLICIES.glob("*/config.json")))
        raise FileNotFoundError(
            f"no demo policy for protocol {protocol!r} (there is one for {names}); "
            f"make one: python -m rag_r1.demo.warm_start --protocol {protocol} --out {folder}"
        )
    return folder


def demo_tokenizer() -> TokenizerBase:
    """The tokenizer of RAG-R1's two warm starts: one token for each word, tag, year and document label."""
    from rag_r1.demo.tokenizer import make_tokenizer

    rng = random.Random(0)
    texts = ["user\nassistant\nsystem\n"]
    units = [f" {year}" for year in YEARS] + [f"Doc {rank}:" for rank in (1, 2, 3)]
    for word in (*NAME_WORDS, *TRADE):
        texts += [word, f" {word}"]
    for name in PROTOCOLS:
        protocol = world.demo_protocol(name)
        units += [text for block in protocol.blocks for text in (block.open, block.close)]
        texts.append(protocol.invalid_hint or "")
        for seed in range(8):
            small = world.make_world(seed, "train", people=20, places=10, words=12)
            search = WorldSearch(small.passages).results
            for question in world.make_questions(small, 16, seed):
                texts.append(protocol.messages(question.text)[0]["content"])
                for strategy in ("guess", "early", "sequential", "parallel"):
                    texts += [s.text for s in write_trace(question, strategy, small, protocol, search, rng)]
    return make_tokenizer(texts, units)


def make_policy(tokenizer: TokenizerBase, seed: int) -> Qwen2ForCausalLM:
    """An untrained policy in float32 whose vocabulary size is the tokenizer's length."""
    import torch
    from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        initializer_range=0.06,  # with the usual 0.02 a model this narrow learns nothing for minutes
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen2ForCausalLM(config).float()
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    return model


def save_policy(folder: Path, model: Qwen2ForCausalLM, tokenizer: TokenizerBase) -> None:
    """Write a policy folder. The weights are stored in float16; those of `model` are not changed."""
    tokenizer.save_pretrained(folder)
    half = {name: weight.half() for name, weight in model.state_dict().items() if name != "lm_head.weight"}
    model.config.dtype = "float16"
    model.save_pretrained(folder, state_dict=half)


def load_policy(folder: Path | str) -> tuple[Qwen2ForCausalLM, TokenizerBase]:
    """The model of a policy folder in float32, and its tokenizer, as the trainer and vLLM load them."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False)
    return model, AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


def demo_setup(
    tokenizer: TokenizerBase, protocol: Protocol, budget: Budget, search: WorldSearch
) -> AgentSetup:
    """The agent of the demo, which searches a world."""
    return AgentSetup(
        protocol=protocol.with_special_tokens(control_tokens(tokenizer)),
        codec=TokenizerCodec(tokenizer),
        budget=budget,
        tools=partial(search_tools, search),
        chat=chat_template(tokenizer),
    )


def prompt_ids(tokenizer: TokenizerBase, protocol: Protocol, messages: Sequence[dict[str, str]]) -> list[int]:
    """The token ids of a prompt, up to where the policy's first turn begins."""
    # Without a codec, which takes longer to make than it saves for one prompt; its ids are the same.
    encode = partial(tokenizer.encode, add_special_tokens=False)
    return protocol.prompt_ids(messages, chat_template(tokenizer), encode)


def encode_trace(
    tokenizer: TokenizerBase,
    protocol: Protocol,
    messages: Sequence[dict[str, str]],
    segments: Sequence[Segment],
) -> tuple[list[int], list[int]]:
    """The token ids and the mask (1 where generated) of a trace, of equal length.

    Every segment is encoded on its own, as in a rollout, where the policy's turns are tokens and each
    observation is encoded once. Joining the text before encoding could give other tokens at the boundaries.
    """
    ids = prompt_ids(tokenizer, protocol, messages)
    mask = [0] * len(ids)
    for segment in segments:
        piece = tokenizer(segment.text, add_special_tokens=False).input_ids
        ids += piece
        mask += [int(segment.generated)] * len(piece)
    return ids, mask
