"""Makes, saves and loads demo policies: Qwen2 models of about one million parameters for the demo world.

A policy folder contains the config, the tokenizer and the weights (float16) in Hugging Face's format, so that
vLLM, FSDP and `AutoModelForCausalLM` load it like any other checkpoint. The committed warm starts are in
`rag_r1/demo/policy/<protocol>/`, and are made by `python -m rag_r1.demo.warm_start`. Many callers only need
the path of a folder, so torch and transformers are imported inside the functions that need them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from rag_r1.agent import Budget, TokenizerCodec
from rag_r1.config.agent_setup import AgentSetup, chat_template
from rag_r1.demo import world
from rag_r1.demo.names import NAME_WORDS, TRADE, YEARS
from rag_r1.demo.search import WorldSearch
from rag_r1.demo.traces.mixes import Strategy
from rag_r1.demo.traces.writer import Segment, write_trace
from rag_r1.protocols import Protocol, control_tokens
from rag_r1.tools import search_tools

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as TokenizerBase
    from transformers import Qwen2ForCausalLM

#: The protocols of RAG-R1 for which there is a warm start.
PROTOCOLS = ("rag_r1_sq", "rag_r1_mq")
#: Contains the folder of each warm start, named after its protocol.
POLICIES = Path(__file__).parent / "policy"


def policy_path(protocol: str) -> Path:
    """Return the folder of the committed warm start for a protocol.

    Raises FileNotFoundError, which names the protocols that have one, if there is none.
    """
    folder = POLICIES / protocol
    if not (folder / "config.json").exists():
        names = ", ".join(sorted(path.parent.name for path in POLICIES.glob("*/config.json")))
        message = f"no demo policy for protocol {protocol!r}: there is one for {names}; choose one"
        raise FileNotFoundError(message)
    return folder


def demo_tokenizer() -> TokenizerBase:
    """Make the tokenizer of RAG-R1's warm starts; each word, tag, year and document label is one token."""
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
                for strategy in get_args(Strategy):
                    trace = write_trace(question, strategy, small, protocol, search, rng)
                    texts += [segment.text for segment in trace]
    return make_tokenizer(texts, units)


def make_policy(tokenizer: TokenizerBase, seed: int) -> Qwen2ForCausalLM:
    """Make an untrained policy in float32, whose vocabulary size is the length of the tokenizer."""
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
    """Write a policy folder. The weights are stored in float16, and those of `model` are not changed; the
    config names float32, in which they are loaded."""
    tokenizer.save_pretrained(folder)
    half = {name: weight.half() for name, weight in model.state_dict().items() if name != "lm_head.weight"}
    model.save_pretrained(folder, state_dict=half)


def load_policy(folder: Path | str) -> tuple[Qwen2ForCausalLM, TokenizerBase]:
    """Load the model of a policy folder in float32, and its tokenizer, as the trainer and vLLM do."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False)
    return model, AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


def demo_setup(
    tokenizer: TokenizerBase, protocol: Protocol, budget: Budget, search: WorldSearch
) -> AgentSetup:
    """Make the agent of the demo, whose tool searches a world."""
    return AgentSetup(
        protocol=protocol.with_special_tokens(control_tokens(tokenizer)),
        codec=TokenizerCodec(tokenizer),
        budget=budget,
        tools=partial(search_tools, search),
        chat=chat_template(tokenizer),
    )


def prompt_ids(tokenizer: TokenizerBase, protocol: Protocol, messages: Sequence[dict[str, str]]) -> list[int]:
    """Return the token ids of a prompt, up to the beginning of the policy's first turn."""
    # Not with a TokenizerCodec: making one takes longer than encoding a prompt, and the ids are the same.
    encode = partial(tokenizer.encode, add_special_tokens=False)
    return protocol.prompt_ids(messages, chat_template(tokenizer), encode)


def encode_trace(
    tokenizer: TokenizerBase,
    protocol: Protocol,
    messages: Sequence[dict[str, str]],
    segments: Sequence[Segment],
) -> tuple[list[int], list[int]]:
    """Return the token ids of a prompt with its trace, and a mask of the same length (1 where generated).

    Every segment is encoded separately, as in a rollout, where turns are generated as tokens and each
    observation is encoded once. If the texts were joined first, the tokens at their boundaries could differ.
    """
    ids = prompt_ids(tokenizer, protocol, messages)
    mask = [0] * len(ids)
    for segment in segments:
        piece = tokenizer(segment.text, add_special_tokens=False).input_ids
        ids += piece
        mask += [int(segment.generated)] * len(piece)
    return ids, mask
