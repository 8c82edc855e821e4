"""Creates the agent of a run, and the engine of each of its episodes.

Lengths are counted in the tokens of a Hugging Face tokenizer or, without one, in characters
(rag_r1/inference/character_codec.py). The engine depends on the format of the endpoint's responses, which
response_format.py finds out:

    format      engine             endpoint
    chat        ChatEngine         any OpenAI-compatible chat endpoint
    token ids   CompletionEngine   vLLM, which takes token ids and returns them
    text        CompletionEngine   a completions endpoint that takes token ids and returns text
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from typing import Protocol as Interface

from rag_r1.agent import Engine
from rag_r1.config.agent_setup import AgentSetup, RowLimits
from rag_r1.config.schema import RagR1Config
from rag_r1.inference.character_codec import CharacterCodec, character_budget
from rag_r1.inference.client import Endpoint, EndpointOptions
from rag_r1.inference.engines.chat import ChatEngine
from rag_r1.inference.engines.completions import CompletionEngine
from rag_r1.inference.episode_client import EpisodeClient
from rag_r1.inference.streaming import OnText
from rag_r1.inference.tokenizer import load_tokenizer, why_not_loaded
from rag_r1.protocols import ChatTemplateError
from rag_r1.rollouts.arguments import EndpointArguments
from rag_r1.rollouts.requests import EpisodeRequest
from rag_r1.rollouts.response_format import CHAT, IDS
from rag_r1.runs.errors import RunError
from rag_r1.runs.response_cache import ResponseCache, Usage
from rag_r1.system.installation import pip_command
from rag_r1.tools import shared_tools


class MeteredEngine(Engine, Interface):
    """An engine that counts the requests of its episode and their tokens."""

    usage: Usage


#: Makes the engine of a request's episode.
MakeEngine = Callable[[EpisodeRequest], MeteredEngine]


@dataclass(frozen=True)
class TokenUnit:
    """The unit in which lengths are counted: a token of a Hugging Face tokenizer, or a character."""

    #: The name or folder of the tokenizer; `characters` without one.
    name: str
    tokenizer: Any = None

    @classmethod
    def of(cls, tokenizer: str | None, *, is_model: bool = False) -> TokenUnit:
        """Return the unit of `--tokenizer`, characters for None. Raises RunError if it cannot be loaded; with
        `is_model`, the message names --model, whose tokenizer is used without the flag."""
        if tokenizer is None:
            return cls("characters")
        try:
            return cls(tokenizer, load_tokenizer(tokenizer))
        except ModuleNotFoundError as error:
            raise RunError(
                f"--tokenizer {tokenizer} needs {error.name}, which is not installed: "
                f"{pip_command('retrieval')}; or ask with --engine chat, which needs no tokenizer"
            ) from error
        except Exception as error:  # transformers and its HTTP clients raise errors of many types
            reason = why_not_loaded(tokenizer, error)
            subject = f"the tokenizer of --model {tokenizer}" if is_model else f"--tokenizer {tokenizer}"
            raise RunError(
                f"{subject} cannot be loaded: {reason}; give --tokenizer a folder that "
                "has one, as a checkpoint does, or ask with --engine chat, which needs none"
            ) from error


def agent_setup(
    config: RagR1Config, tokens: TokenUnit, limits: RowLimits, *, validation: bool = False
) -> AgentSetup:
    """Return the agent that counts lengths in `tokens`, with the limits and the search of training or, with
    `validation`, of a validation. `limits` are always in tokens and are converted for an agent that counts
    characters. Raises RunError if the protocol needs a chat template that is missing or does not work, and
    ValueError if another part of the agent cannot be built."""
    if tokens.tokenizer is None:
        return _setup_in_characters(config, limits, validation=validation)
    if config.protocol.prompt_form == "chat" and not tokens.tokenizer.chat_template:
        raise RunError(
            f"--tokenizer {tokens.name} has no chat template, which the protocol {config.protocol.name} "
            "needs: give that of a chat model, or use a protocol with a plain text as its prompt"
        )
    try:
        setup = AgentSetup.of(config, tokens.tokenizer, limits)
    except ChatTemplateError as error:
        raise RunError(f"--tokenizer {tokens.name}: {error}; {error.remedy}") from error
    return setup.for_validation(config, limits) if validation else setup


def _setup_in_characters(config: RagR1Config, limits: RowLimits, *, validation: bool) -> AgentSetup:
    """Return the agent that counts characters, with its limits converted from tokens. Raises RunError for a
    protocol that needs the model's chat template."""
    if config.protocol.turns == "chat":
        raise RunError(
            f"the protocol {config.protocol.name} takes its turns from the model's chat template: give the "
            "model's --tokenizer"
        )
    codec = CharacterCodec()
    budget = config.budget(limits.response_tokens, validation=validation)
    retriever = config.validation_retriever if validation else config.retriever
    return AgentSetup(
        protocol=config.protocol,
        codec=codec,
        budget=character_budget(limits.within(budget)),
        tools=partial(shared_tools, retriever, config.tools),
        chat=codec.chat,
        failures=config.failures,
        own_prompt=config.own_prompt,
    )


def engine_maker(
    response_format: str,
    setup: AgentSetup,
    endpoint: Endpoint,
    cache: ResponseCache,
    sampling: Mapping[str, Any],
    extra_body: Mapping[str, Any],
    *,
    logprobs: bool = False,
    on_text: OnText | None = None,
) -> MakeEngine:
    """Return a function that makes the engine of an episode.

    `response_format` is one of the formats of response_format.py. Each request has the keys of `sampling`,
    the temperature and seed of its episode, and the user's keys `extra_body`. With `logprobs`, a completions
    engine also requests the log-probs of tokens. `on_text` is called when a generation starts, and returns
    the function for its pieces (rag_r1/inference/streaming.py).
    """

    def make(request: EpisodeRequest) -> MeteredEngine:
        """Return a new engine, which sends the requests of one episode."""
        client = EpisodeClient(request.id, endpoint, cache, on_text)
        agent = request.setup or setup
        keys = {**sampling, "temperature": request.temperature}
        if response_format == CHAT:
            messages = agent.messages(request.question, request.messages)
            messages = agent.protocol.harmless(messages, request.question)
            return ChatEngine(client, agent.codec, agent.protocol, messages, keys, request.seed, extra_body)
        return CompletionEngine(
            client,
            agent.codec,
            agent.protocol,
            keys,
            request.seed,
            returns_ids=response_format == IDS,
            logprobs=logprobs,
            extra_body=extra_body,
        )

    return make


def endpoint_options(args: EndpointArguments, url: str, key_variable: str) -> EndpointOptions:
    """Return the options for requests to the server at `url`, whose API key is in the environment variable
    `key_variable`."""
    return EndpointOptions(
        url,
        key_variable,
        timeout_s=args.timeout_s,
        retries=args.retries,
        backoff_s=args.backoff_s,
        in_flight=args.in_flight,
        trust_env=args.trust_env,
    )
