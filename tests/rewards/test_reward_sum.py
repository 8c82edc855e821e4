"""The weighted sum: what it returns, what it refuses, and a term of one's own."""

from __future__ import annotations

import math
import sys
import types

import pytest

from rag_r1.agent import Trajectory, Turn
from rag_r1.protocols import load_protocol
from rag_r1.rewards import RewardError, RewardSum, register, term_names
from rag_r1.rewards.registry import find_term
from rag_r1.rewards.term_call import is_async

PARIS = Trajectory("t1", "?", "rag_r1_mq", answer="Paris, France", status="answered")
NONE = Trajectory("t2", "?", "rag_r1_mq")


@pytest.fixture
def own_module(monkeypatch):
    """A module such as a user writes beside the project."""

    def length(trajectory, golds, *, most: int = 5, strict: bool = False):
        return len(trajectory.answer or "") / most

    def judge(trajectory, golds, *, key: str):
        return {"silent": None, "nan": math.nan, "good": 0.5}[key]

    def broken(trajectory, golds):
        raise ZeroDivisionError("division by zero")

    def anything(trajectory, golds, **options):
        return options["value"]

    def knows(trajectory, golds, *, protocol):
        return float(protocol is not None and protocol.max_queries)

    module = types.ModuleType("own_rewards")
    vars(module).update(length=length, judge=judge, broken=broken, anything=anything, knows=knows, number=3)
    monkeypatch.setitem(sys.modules, "own_rewards", module)


def test_the_score_is_the_weighted_sum_and_every_term_has_its_own_key():
    reward = RewardSum.from_config(
        [{"term": "em", "weight": 1}, {"term": "f1", "weight": 0.5}, {"term": "cover_em"}]
    )
    assert reward(PARIS, ["Paris"]) == {
        "score": pytest.approx(0.5 * 2 / 3 + 1),
        "em": 0.0,
        "f1": pytest.approx(2 / 3),
        "cover_em": 1.0,
        "missing_terms": 0.0,
    }


def test_every_sample_has_the_same_keys():
    plain = [name for name in term_names() if not is_async(find_term(name, ""))]
    reward = RewardSum.from_config([{"term": name} for name in plain])
    samples = [reward(PARIS, "Paris"), reward(NONE, "Paris"), reward(PARIS, []), reward(NONE, None)]
    assert {tuple(sample) for sample in samples} == {("score", *plain, "missing_terms")}
    assert all(isinstance(value, float) for sample in samples for value in sample.values())


def test_the_same_term_twice_under_two_names():
    reward = RewardSum.from_config(
        [{"term": "cover_em"}, {"term": "cover_em", "name": "cover", "ordered": True}]
    )
    answer = Trajectory("t", "?", "rag_r1_mq", answer="York, New")
    assert reward(answer, "New York") == {"score": 1.0, "cover_em": 1.0, "cover": 0.0, "missing_terms": 0.0}


def test_the_list_may_come_from_hydra():
    omegaconf = pytest.importorskip("omegaconf")
    reward = RewardSum.from_config(omegaconf.OmegaConf.create([{"term": "em", "weight": 2}]))
    assert reward(Trajectory("t", "?", "x", answer="a b"), "A B")["score"] == 2.0


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, r" must be a list"),
        ([], r" must be a list"),
        ({"term": "em"}, r" must be a list"),
        (["em"], r"\[0\] must be"),
        ([{"weight": 1}], r"\[0\]\.term"),
        ([{"term": "em"}, {"term": "exact"}], r"\[1\]\.term: unknown term 'exact'.*em"),
        ([{"term": "no_such_module:f"}], r"\[0\]\.term: cannot import"),
        ([{"term": "own_rewards:nothing"}], r"\[0\]\.term: cannot import"),
        ([{"term": "own_rewards:number"}], r"\[0\]\.term: .* not a function"),
        ([{"term": "em"}, {"term": "math:hypot"}], r"\[1\]\.term: 'math:hypot' .* no signature"),
        ([{"term": ":f"}], r"\[0\]\.term"),
        ([{"term": "em", "weight": "1"}], r"\[0\]\.weight"),
        ([{"term": "em", "weight": True}], r"\[0\]\.weight"),
        ([{"term": "em", "weight": math.nan}], r"\[0\]\.weight"),
        ([{"term": "em", "weight": math.inf}], r"\[0\]\.weight"),
        ([{"term": "em", "weight": 10**400}], r"\[0\]\.weight"),
        ([{"term": "each_answer", "separator": ""}], r"\[0\]\.separator must not be empty"),
        ([{"term": "em", "wieght": 1}], r"\[0\]\.wieght: .*no such option"),
        ([{"term": "em"}, {"term": "cover_em", "order": 1}], r"\[1\]\.order: .*ordered"),
        ([{"term": "cover_em", "ordered": "yes"}], r"\[0\]\.ordered must be true or false"),
        ([{"term": "os:getcwd"}], r"\[0\]\.term: 'os:getcwd' cannot be called with .*too many positional"),
        ([{"term": "f1", "normaliser": "x"}], r"\[0\]\.normaliser must be one of squad, .*, not 'x'"),
        ([{"term": "em", "normaliser": 1}], r"\[0\]\.normaliser must be a text"),
        ([{"term": "search_r1_format", "structure": "big"}], r"\[0\]\.structure must be a finite"),
        ([{"term": "search_r1_format", "final": math.nan}], r"\[0\]\.final"),
        ([{"term": "search_r1_format", "protocol": "x"}], r"\[0\]\.protocol: .*no such option"),
        ([{"term": "own_rewards:anything", "protocol": "x"}], r"\[0\]\.protocol: .*no such option"),
        ([{"term": "own_rewards:judge"}], r"\[0\]\.key is missing"),
        ([{"term": "em"}, {"term": "em"}], r"\[1\]: the name 'em' is taken"),
        ([{"term": "em", "name": "score"}], r"\[0\]: the name 'score' is taken"),
        ([{"term": "em", "name": "reward"}], r"\[0\]: the name 'reward' is taken"),
        ([{"term": "em", "name": "masked"}], r"\[0\]: the name 'masked' is taken"),
        ([{"term": "em", "name": "answered"}], r"\[0\]: the name 'answered' is taken"),
        ([{"term": "em", "name": ""}], r"\[0\]\.name"),
    ],
)
def test_a_wrong_entry_is_refused_with_its_key(own_module, config, message):
    with pytest.raises(RewardError, match=r"rag_r1\.reward" + message):
        RewardSum.from_config(config)


def test_a_term_of_ones_own_by_import_path(own_module):
    reward = RewardSum.from_config([{"term": "own_rewards:length", "weight": 2.0, "most": 10}])
    assert reward(PARIS, "x") == {"score": 2.6, "length": 1.3, "missing_terms": 0.0}
    reward = RewardSum.from_config([{"term": "own_rewards:anything", "value": 7}])
    assert reward(PARIS, "x")["anything"] == 7.0


def test_a_term_of_ones_own_may_check_its_options(own_module):
    def check(options, key):
        return [] if options.get("most", 5) > 0 else [f"{key}.most must be above 0"]

    sys.modules["own_rewards"].length.check_options = check
    entry = {"term": "own_rewards:length"}
    assert RewardSum.from_config([{**entry, "most": 10}])(PARIS, "x")["length"] == 1.3
    with pytest.raises(RewardError, match=r"^rag_r1\.reward\[1\]\.most must be above 0$"):
        RewardSum.from_config([{"term": "em"}, {**entry, "most": 0}])


def test_the_normaliser_is_an_option_of_the_answer_terms():
    turn = Turn("", "answer", repeated_queries=1)
    answer = Trajectory("t", "?", "r1_searcher", turns=[turn], answer="Jean Luc Godard")
    for term in ("em", "f1", "cover_em", "each_answer", "turn_cost", "repeat_cost"):
        scores = [
            RewardSum.from_config([{"term": term, **option}])(answer, "Jean-Luc Godard")[term]
            for option in ({"normaliser": "r1_searcher"}, {})
        ]
        assert scores[0] == 1.0 > scores[1]


def test_a_term_whose_annotations_cannot_be_read_is_used_as_it_is(own_module):
    def odd(trajectory, golds, *, mode: NotImported = "x"):  # noqa: F821
        return float(mode == "y")

    sys.modules["own_rewards"].odd = odd
    assert RewardSum.from_config([{"term": "own_rewards:odd", "mode": "y"}])(PARIS, "x")["odd"] == 1.0


def test_a_term_that_asks_for_the_protocol_gets_the_runs(own_module):
    reward = RewardSum.from_config([{"term": "own_rewards:knows"}], load_protocol("rag_r1_mq"))
    assert reward(PARIS, "x")["knows"] == 3.0


@pytest.mark.parametrize("kind", ["silent", "nan"])
def test_a_term_that_could_not_be_judged_is_left_out_and_marked(own_module, kind):
    config = [{"term": "cover_em"}, {"term": "own_rewards:judge", "weight": 4, "key": kind}]
    sample = RewardSum.from_config(config)(PARIS, "Paris")
    assert sample == {"score": 1.0, "cover_em": 1.0, "judge": None, "missing_terms": 1.0}
    config[1]["key"] = "good"
    judged = RewardSum.from_config(config)(PARIS, "Paris")
    assert judged == {"score": 3.0, "cover_em": 1.0, "judge": 0.5, "missing_terms": 0.0}
    assert tuple(judged) == tuple(sample)


def test_a_term_that_raises_is_named_with_the_trajectory(own_module):
    reward = RewardSum.from_config([{"term": "own_rewards:broken"}])
    with pytest.raises(RewardError, match="'broken' failed on trajectory 't1': ZeroDivisionError"):
        reward(PARIS, "x")


def test_registering_gives_a_short_name_once():
    @register("always_half_for_this_test")
    def half(trajectory, golds):
        return 0.5

    assert RewardSum.from_config([{"term": "always_half_for_this_test"}])(NONE, "x")["score"] == 0.5
    with pytest.raises(RewardError, match="already"):
        register("always_half_for_this_test")(half)
