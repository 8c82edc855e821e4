"""The agent loop as veRL calls it, with a scripted engine in the place of vLLM."""

from __future__ import annotations

import json
import pickle

import pytest

from rag_r1.agent import TokenizerCodec
from rag_r1.config.agent_setup import AgentSetup, RowLimits
from rag_r1.config.schema import RagR1Config
from rag_r1.protocols import load_protocol
from tests.agent.chat_templates import tokenizer_with
from tests.plugin.scripted_loop import RESPONSE_LENGTH, ScriptedClient, config, play, score, tokens


def test_a_row_is_played_and_its_tokens_mask_and_log_probs_line_up(tokenizer):
    turns = ["<think> t </think><search> a, b </search>", "<answer> x </answer>"]
    output, client = play(tokenizer, turns)
    ids, mask = output.response_ids, output.response_mask
    assert tokenizer.decode(tokens(output, generated=1)) == "".join(turns)
    assert tokenizer.decode(tokens(output, generated=0)).startswith(
        '\n<information>\n{\n  "query": [\n    "a",\n    "b"\n  ]'
    )
    assert output.response_logprobs == [-0.5 if m else 0.0 for m in mask]
    parts = output.extra_fields["trajectory"]["logprobs"]
    assert sum(tokens for _, tokens in parts.values()) == sum(mask)
    assert sum(total for total, _ in parts.values()) == -0.5 * sum(mask)
    (first, second) = client.requests
    assert first[1] == output.prompt_ids == tokenizer.encode("Who?")
    assert second[1] == (output.prompt_ids + ids)[: len(second[1])]
    assert first[0] == second[0], "one request id keeps the turns on the replica with the cached prefix"
    assert first[2]["stop"] == ["</search>", "</answer>"] and first[2]["include_stop_str_in_output"]


def test_a_bare_text_prompt_reaches_the_engine_without_a_chat_template_and_with_its_opening(tokenizer):
    cfg = config(2000, protocol="r1_searcher")  # bytes are this tokenizer's tokens
    messages = load_protocol("r1_searcher").messages("Who?")
    turns = ["I look. <|begin_of_query|> a <|end_of_query|>", "So. </think> <answer> x </answer>"]
    output, client = play(tokenizer, turns, cfg, raw_prompt=messages)
    prompt = tokenizer.decode(client.requests[0][1])
    assert prompt == messages[0]["content"] + " <think>" and prompt.endswith("User:Who?\nAssistant: <think>")
    observed = tokenizer.decode(tokens(output, generated=0))
    assert observed == '\n\n<|begin_of_documents|>\n(1)"a"\nfact\n<|end_of_documents|>\n\n'
    assert client.requests[0][2]["stop"] == ["<|end_of_query|>", "</answer>"]


def test_a_chat_prompt_is_opened_behind_the_template(tokenizer):
    cfg = config(2000, protocol="r1_searcher_instruct")
    messages = load_protocol("r1_searcher_instruct").messages("Who?")
    _, client = play(tokenizer, ["So. </think> <answer> x </answer>"], cfg, raw_prompt=messages)
    assert tokenizer.decode(client.requests[0][1]) == messages[0]["content"] + "Who?<think>"


@pytest.mark.parametrize(("split", "count"), [("train", 1), (None, 1), ("test", 2), ("val", 2)])
def test_validation_rows_may_be_answered_by_another_number_of_documents(tokenizer, split, count):
    cfg = config(
        retriever={"tool": "tests.plugin.scripted_loop:Many", "topk": 1},
        validation_retriever={"topk": 2},
        protocol="rag_r1_sq",
    )
    row = {"extra_info": {"id": "q1", "question": "Who?", "split": split}}
    output, _ = play(tokenizer, ["<search> a </search>", "<answer> x </answer>"], cfg, **row)
    assert len(output.extra_fields["trajectory"]["turns"][0]["calls"][0]["documents"]) == count


def test_a_repeatable_rollout_has_a_seed_for_each_trajectory_turn_and_step(tokenizer):
    def seeds(session, step, repeatable=True):
        cfg = config()
        cfg.actor_rollout_ref.rollout.update({"full_determinism": repeatable, "seed": 7})
        turns = ["<search> a </search>", "<answer> x </answer>"]
        _, client = play(tokenizer, turns, cfg, session_id=session, global_steps=step)
        return [request[2].get("seed") for request in client.requests]

    assert seeds(0, 1) == seeds(0, 1)
    assert len({*seeds(0, 1), *seeds(1, 1), *seeds(0, 2)}) == 6, "with veRL's one seed a group has one text"
    assert seeds(0, 1, repeatable=False) == [None, None]


@pytest.mark.parametrize("info", [{}, {"id": None}])
def test_a_row_without_an_id_has_the_one_that_verl_gave_it(tokenizer, info):
    output, _ = play(tokenizer, ["<answer> x </answer>"], extra_info={"question": "Who?", **info})
    assert output.extra_fields["trajectory"]["id"] == "u#3"


@pytest.mark.parametrize(("split", "searches"), [("train", 1), ("val", 2)])
def test_validation_rows_may_have_other_limits(tokenizer, split, searches):
    limits = {"max_turns": 1, "final_turn": True, "max_turn_tokens": 25}
    cfg = config(agent=limits, validation_agent={"max_turns": 2, "max_turn_tokens": 30})
    row = {"extra_info": {"id": "q1", "question": "Who?", "split": split}}
    texts = ["<search> a </search>"] * searches + ["<answer> x </answer>"]
    output, client = play(tokenizer, texts, cfg, **row)
    record = output.extra_fields["trajectory"]
    assert (record["status"], len(record["turns"])) == ("answered", searches + 1)
    assert {request[2]["max_tokens"] for request in client.requests} == {25 if split == "train" else 30}


def test_what_the_trainer_fetches_in_every_step_is_without_the_record(tokenizer):
    turns = ["<search> a </search>"] * 2 + ["<answer> x </answer>"]
    limits = {"max_turns": 2, "max_turn_tokens": 100, "max_query_observation_tokens": 3000}
    tool = {"tool": "tests.plugin.scripted_loop:Long"}
    cfg = config(response_length=10_000, retriever=tool, agent=limits)
    output, _ = play(tokenizer, turns, cfg)
    # As veRL's agent-loop worker does: it scores, then stores.
    result = score(tokenizer, output, cfg)
    output.reward_score = result["reward_score"]
    output.extra_fields["reward_extra_info"] = result["reward_extra_info"]
    before, row = output.extra_fields, output.as_dict()
    after = row["extra_fields"]
    assert len(pickle.dumps(before)) > 5000 > 5 * len(pickle.dumps(after))
    assert set(before) - set(after) == {"trajectory"} and after["reward_extra_info"]["em"] == 1.0
    assert (after["min_global_steps"], after["max_global_steps"]) == (1, 3)
    assert float(row["rm_scores"].sum()) == result["reward_score"] == 1.0
    assert "trajectory" in output.extra_fields, "the worker keeps its own"


def test_the_record_travels_with_the_weight_versions_of_all_turns(tokenizer):
    output, _ = play(tokenizer, ["<search> a </search>", "<answer> x </answer>"])
    assert (output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]) == (1, 2)
    record = output.extra_fields["trajectory"]
    assert (record["id"], record["answer"], record["status"]) == ("q1#3", "x", "answered")
    assert output.num_turns == 4  # question, search, observation, answer


def test_a_failed_search_is_shown_to_the_policy_and_the_episode_goes_on(tokenizer):
    turns = ["<search> fail </search>", "<answer> x </answer>"]
    output, _ = play(tokenizer, turns, config(failures={"mask": [], "wait_s": 0}))
    record = output.extra_fields["trajectory"]
    assert record["turns"][0]["status"] == "tool_failure" and record["status"] == "answered"
    assert sum(output.response_mask) == sum(map(len, turns))


def test_a_trajectory_with_a_masked_failure_ends_there_and_trains_nothing(tokenizer):
    output, client = play(tokenizer, ["<search> fail </search>", "<answer> x </answer>"])
    record = output.extra_fields["trajectory"]
    assert (record["status"], record["retries"], len(client.requests)) == ("tool_failure", 1, 1)
    assert record["failures"] == [{"kind": "tool", "turn": 0, "detail": ""}]
    assert len(output.response_ids) > 1 and not any(output.response_mask)
    result = score(tokenizer, output, config())
    info = result["reward_extra_info"]
    assert (result["reward_score"], info["masked"]) == (0.0, 1.0)
    assert (info["failed_tool"], info["failed_engine"]) == (1.0, 0.0)
    assert info["em"] is info["score"] is None


def test_a_fault_in_code_costs_one_trajectory_and_is_counted(tokenizer, monkeypatch):
    monkeypatch.setattr(TokenizerCodec, "decode", lambda self, ids: 1 / 0)
    output, _ = play(tokenizer, ["<answer> x </answer>"])
    record = output.extra_fields["trajectory"]
    assert (record["status"], record["failures"][0]["kind"]) == ("error", "error")
    assert output.response_mask == [0]


def test_every_row_has_weight_versions_also_one_for_which_nothing_was_generated(tokenizer):
    output, _ = play(tokenizer, [], extra_info=None, global_steps=7)
    assert (output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]) == (6, 6)


def test_a_term_that_could_not_be_judged_is_a_failure_of_the_judge(tokenizer):
    output, _ = play(tokenizer, ["<answer> x </answer>"])
    reward = [{"term": "em", "weight": 1.0}, {"term": f"{__name__}:unknown", "weight": 1.0}]
    info = score(tokenizer, output, config(reward=reward))["reward_extra_info"]
    assert (info["masked"], info["failed_judge"], info["score"], info["em"]) == (1.0, 1.0, None, 1.0)
    kept = config(reward=reward, failures={"mask": []})
    info = score(tokenizer, output, kept)["reward_extra_info"]
    assert (info["masked"], info["failed_judge"], info["score"]) == (0.0, 1.0, 1.0)


def unknown(trajectory, golds):
    return None


def no_tool(options):
    raise OSError("no index here")


def test_a_tool_that_cannot_be_made_is_a_failed_search(tokenizer):
    cfg = config(retriever={"tool": f"{__name__}:no_tool"})
    output, client = play(tokenizer, ["<search> a </search>"], cfg)
    record = output.extra_fields["trajectory"]
    assert (record["status"], record["retries"], len(client.requests)) == ("tool_failure", 1, 1)
    assert record["failures"] == [{"kind": "tool", "turn": 0, "detail": "OSError: no index here"}]
    assert not any(output.response_mask)


@pytest.mark.parametrize("log_probs", [None, [], [-0.5]])
def test_log_probs_that_were_asked_for_and_do_not_fit_are_the_engines_failure(tokenizer, log_probs):
    class Odd(ScriptedClient):
        async def generate(self, request_id, **kwargs):
            out = await super().generate(request_id, **kwargs)
            out.log_probs = log_probs
            return out

    output, _ = play(tokenizer, ["<answer> x </answer>"] * 2, client_class=Odd)
    record = output.extra_fields["trajectory"]
    assert (record["status"], record["failures"][0]["kind"]) == ("engine_failure", "engine")
    assert output.response_mask == [0] and output.response_logprobs == [0.0]


def test_ids_that_the_model_does_not_have_are_the_engines_failure(tokenizer, tmp_path):
    size = len(tokenizer) + 10  # as in a padded embedding
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2", "vocab_size": size}))
    cfg = config()
    cfg.actor_rollout_ref.model = {"path": str(tmp_path)}

    class Odd(ScriptedClient):
        async def generate(self, request_id, **kwargs):
            out = await super().generate(request_id, **kwargs)
            out.token_ids.append(self.last)
            out.log_probs.append(-0.5)
            return out

    for Odd.last, status in ((size - 1, "answered"), (size, "engine_failure")):
        output, _ = play(tokenizer, ["<answer> x </answer>"] * 2, cfg, client_class=Odd)
        assert output.extra_fields["trajectory"]["status"] == status


def test_an_aborted_generation_is_asked_for_again(tokenizer):
    output, client = play(tokenizer, [None, "<answer> x </answer>"])
    record = output.extra_fields["trajectory"]
    assert (record["status"], record["retries"], record["failures"]) == ("answered", 1, [])
    assert client.requests[0][1] == client.requests[1][1]


def test_a_generation_that_stays_aborted_trains_nothing_and_does_not_raise(tokenizer):
    output, _ = play(tokenizer, [None, None])
    assert output.extra_fields["trajectory"]["status"] == "engine_failure"
    assert output.response_mask == [0]


def test_the_row_never_outgrows_the_response_length(tokenizer):
    texts = [f"<search> {'a ' * 40}</search>"] * 3
    output, _ = play(tokenizer, texts, config(agent={"max_turns": 8, "max_turn_tokens": 100}))
    assert len(output.response_ids) <= RESPONSE_LENGTH
    assert output.extra_fields["trajectory"]["status"] == "token_limit"


def test_a_prompt_of_ones_own_replaces_the_rows(tokenizer, tmp_path):
    (tmp_path / "prompt.txt").write_text("Find out: {question}")
    output, _ = play(tokenizer, ["<answer> x </answer>"], config(prompt=str(tmp_path / "prompt.txt")))
    assert tokenizer.decode(output.prompt_ids) == "Find out: Who?"


@pytest.mark.parametrize(
    ("rag_r1", "key"),
    [
        ({"prompt": "no/such/file"}, "rag_r1.prompt"),
        ({"agent": {"paths": 3}}, "rag_r1.agent.paths is 3"),
        ({"agent": {"max_turns": "four"}}, "rag_r1.agent.max_turns"),
        ({"failures": {"mask": "all"}}, "rag_r1.failures.mask"),
        ({"failures": {"engine_timeout_s": "long"}}, "rag_r1.failures.engine_timeout_s"),
    ],
)
def test_a_wrong_configuration_is_named(tokenizer, rag_r1, key):
    with pytest.raises(ValueError, match=key):
        play(tokenizer, [], config(**rag_r1))


def test_turns_of_the_chat_template_begin_with_verls_prompt_and_follow_each_other_as_it_writes_them():
    tokenizer, cfg = tokenizer_with("plain"), config(1000, protocol="agentic_rag_tools")
    call = '<tool_call>{"name": "search", "arguments": {"query": "Ulm"}}</tool_call>'
    messages = load_protocol("agentic_rag_tools").messages("Who?")
    turns = [call + "<|im_end|>", "<answer> x </answer>"]
    output, client = play(tokenizer, turns, cfg, raw_prompt=messages)
    settings = RagR1Config.from_config({"protocol": "agentic_rag_tools"})
    setup = AgentSetup.of(settings, tokenizer, RowLimits(1000, RESPONSE_LENGTH))
    assert output.prompt_ids == setup.prompt_ids("Who?")
    observed = '\n<|im_start|>tool\nDoc 1: "Ulm"\nfact<|im_end|>\n<|im_start|>assistant\n'
    assert tokenizer.decode(tokens(output, generated=0)) == observed
    assert tokenizer.decode(output.response_ids) == turns[0] + observed + turns[1]
    assert client.requests[0][2]["stop"] == ["</answer>", "<tool_response>"]
