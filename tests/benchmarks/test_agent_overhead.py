"""The share of repeated observations is that of the trajectories of one step."""

import pytest

from benchmarks import agent_overhead


def turn(query, *documents, observed=9):
    call = {"tool": "search", "arguments": {"query": query}, "documents": [{"id": i} for i in documents]}
    return {"calls": [call], "observed_tokens": observed}


def test_what_another_trajectory_of_the_step_was_shown_counts_as_repeated():
    first = [{"turns": [turn("a", 1, 2), turn("b", 3)]}, {"turns": [turn("a", 1, 2), turn("a", 1)]}]
    second = [{"turns": [turn("b", 3), turn("b", 3, observed=0)]}]
    assert agent_overhead.repeated_share([first, second]) == pytest.approx(1 / 5)


def test_without_observations_nothing_is_repeated():
    assert agent_overhead.repeated_share([[{"turns": []}]]) == 0.0


def test_a_folder_without_trajectories_and_a_share_beyond_1_are_refused(tmp_path, capsys):
    for arguments, message in (
        (["--repeated-as", str(tmp_path)], "no step_*.jsonl"),
        (["--repeated", "1.5"], "a share, 0 to 1"),
    ):
        with pytest.raises(SystemExit):
            agent_overhead.main(arguments)
        assert message in capsys.readouterr().err
