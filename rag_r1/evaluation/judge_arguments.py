"""The arguments of a judge, for the commands that can use one (judge.py)."""

from __future__ import annotations

from pydantic import model_validator

from rag_r1.options.command_line import Above0, Arguments, From0, Positive, Variable, argument
from rag_r1.options.server_address import Address
from rag_r1.rollouts.agent_arguments import JUDGE
from rag_r1.rollouts.arguments import json_body


class JudgeArguments(Arguments):
    """The address, the model and the limits of a judge of answers."""

    judge_url: Address | None = argument(
        "chat endpoint of a judge of the answers, up to and with /v1", "URL", default=None, rare=JUDGE
    )
    judge_model: str | None = argument("name of the judge at its endpoint", "NAME", default=None, rare=JUDGE)
    judge_api_key_env: Variable = argument(
        "environment variable with the API key of the judge", "NAME", default="OPENAI_API_KEY", rare=JUDGE
    )
    judge_body: str = argument(
        "further keys of each request to the judge; null leaves a key out", "JSON", default="{}", rare=JUDGE
    )
    judge_in_flight: Positive = argument("requests to the judge at a time", "N", default=16, rare=JUDGE)
    judge_rpm: Above0 | None = argument(
        "limit of requests to the judge a minute", "N", default=None, rare=JUDGE
    )
    judge_price_in: From0 = argument("judge's price of a million prompt tokens", default=0.0, rare=JUDGE)
    judge_price_out: From0 = argument("judge's price of a million generated tokens", default=0.0, rare=JUDGE)
    judge_max_cost: Above0 | None = argument("cost at which the judge is stopped", default=None, rare=JUDGE)

    # Each check is a validator of its own, since only the first error of one is reported.
    @model_validator(mode="after")
    def _judge_is_complete(self) -> JudgeArguments:
        if (self.judge_url is None) != (self.judge_model is None):
            raise ValueError("--judge-url and --judge-model are given together, or neither")
        return self

    @model_validator(mode="after")
    def _flags_fit_judge(self) -> JudgeArguments:
        names = {"judge_url", "judge_model"}
        if not any(getattr(self, name) for name in names):
            self.refuse_unused({*JudgeArguments.model_fields} - names, "there is no --judge-url")
        elif self.judge_max_cost is not None and not (self.judge_price_in or self.judge_price_out):
            raise ValueError("--judge-max-cost needs --judge-price-in and --judge-price-out")
        return self

    @model_validator(mode="after")
    def _judge_body_is_valid(self) -> JudgeArguments:
        json_body("--judge-body", self.judge_body)
        return self
