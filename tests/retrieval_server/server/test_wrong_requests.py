"""What a client that is written wrongly is told: the key or the path, and what to send instead."""

from __future__ import annotations

import json

import pytest

JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    "method, path, content, status, reason",
    [
        ("POST", "/retrieve", {"queries": ["Ulm"], "topk": 0}, 422, "topk must be at least 1, not 0"),
        (
            "POST",
            "/retrieve",
            {"queries": ["a", 3, None]},
            422,
            "queries[1] must be a string, not 3; queries[2]",
        ),
        ("POST", "/retrieve", {"queries": ["Ulm"], "return_score": True}, 422, "did you mean return_scores?"),
        ("POST", "/retrieve", {"queries": ["a"] * 10_000}, 413, "10000 queries; at most 2048"),
        ("POST", "/retrieve", b"\xff\xfe\x00", 422, "the body is not uncompressed JSON"),
        ("POST", "/retrieve", b'{"queries": ["a"', 422, "at character 16"),
        ("POST", "/retrieve", b"", 422, 'such as {"queries":'),
        ("GET", "/retrieve", b"", 405, "use POST"),
        ("POST", "/retreive", {"queries": ["Ulm"]}, 404, "did you mean /retrieve?"),
        ("POST", "/rerank", {"query": "a", "documents": ["b"]}, 404, "--rerank NAME"),
        ("POST", "/documents", {"ids": ["a"] * 65}, 422, "ids: 65 items; at most 64"),
        ("POST", "/retrieve", {"queries": [1] * 103_000}, 413, "more than 102,048 values; send less"),
        ("POST", "/retrieve", b"[" * 5000, 422, "JSON"),
    ],
)
def test_a_wrong_request_is_answered_with_the_key_and_the_remedy(
    client, method, path, content, status, reason
):
    body = content if isinstance(content, bytes) else json.dumps(content)
    answer = client.request(method, path, content=body, headers=JSON)
    assert answer.status_code == status and reason in answer.json()["reason"]


def test_keys_of_other_projects_and_an_empty_list_are_accepted(client):
    body = {"queries": [], "dataset": "nq", "x" * 1_000_000: 1, **{f"key{i}": i for i in range(1000)}}
    assert client.post("/retrieve", json=body).json() == {"result": []}
