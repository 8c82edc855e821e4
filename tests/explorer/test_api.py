"""The API of `rag-r1 view` over real HTTP: what it answers, and to whom."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import duckdb
import httpx
import pytest
import uvicorn

from rag_r1.explorer import queries
from rag_r1.explorer.app import create_app
from rag_r1.explorer.charts import charts
from rag_r1.explorer.filters import Selection
from rag_r1.explorer.page import PAGE_FILES
from rag_r1.explorer.store import Store
from rag_r1.explorer.trajectory import trajectory
from rag_r1.http_server.idle_timeout import uvicorn_config
from rag_r1.http_server.listening import bind_socket
from rag_r1.http_server.request_guard import HEADERS
from rag_r1.io.errors import DataError
from tests.explorer.made_records import GOLD, answered, record, searched, training, write
from tests.fakes.waiting import wait_until

TOKEN = "s3cret"


@contextmanager
def server(paths: list[Path], **options) -> Iterator[httpx.Client]:
    """A server as the command runs it, in a thread, and its client."""
    with closing(Store(paths)) as store, bind_socket("127.0.0.1", 0) as listener:
        running = uvicorn.Server(uvicorn_config(create_app(store, **options), stop_s=1, lifespan="on"))
        thread = threading.Thread(target=asyncio.run, args=(running.serve(sockets=[listener]),))
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            with httpx.Client(base_url=url, timeout=30, trust_env=False, verify=False) as client:
                yield client
        finally:
            running.should_exit = True
            thread.join()


def get(client: httpx.Client, path: str, **parameters) -> dict:
    response = client.get(f"/api/{path}", params=parameters)
    assert response.status_code == 200, response.text
    return response.json()


def wait_for(client: httpx.Client, total: int) -> None:
    wait_until(lambda: get(client, "trajectories", limit=0)["total"] == total)


def make_runs(folder: Path) -> Path:
    """A training of three steps with a group of four, its validation, and two evaluations."""
    run = folder / "runs" / "grpo"
    for step in range(1, 4):
        scores = [(GOLD, 1.0), ("x", 0.0), ("y", 0.0), (GOLD, 1.0)]
        group = [
            training(f"q#{i}", step, answer, rewards={"score": score, "em": score, "format": 0.5})
            for i, (answer, score) in enumerate(scores)
        ]
        write(run / "trajectories" / "train" / f"step_{step:06d}-1.jsonl", group)
        answer = GOLD if step > 1 else "x"
        validation = record("v", answer, step=step, split="val")
        write(run / "trajectories" / "val" / f"step_{step:06d}-1.jsonl.gz", [validation])
    metrics = [{"step": 1, "data": {"actor/entropy": 0.5, "timing_s/step": 3, "actor/lr": 1}}, {"step": "no"}]
    (run / "metrics-1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics) + "broken\n")
    questions = ["Where was Mara Torval born?", "Who founded Pesda?", "When?", "Why?"]
    for name, right in (("before", [True, False, True, False]), ("after", [True, True, False, False])):
        records = [
            record(f"e{i}#0", GOLD if good else "Paris", question=question, right=good)
            for i, (question, good) in enumerate(zip(questions, right, strict=True))
        ]
        write(folder / "runs" / name / "trajectories" / "records.jsonl", records)
    return folder / "runs"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("api")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        with server([make_runs(folder)]) as client:
            wait_for(client, 23)
            yield client


def test_the_overview_has_runs_values_and_columns(client):
    overview = get(client, "overview")
    runs = {run["run"]: run for run in overview["runs"]}
    assert {name: (run["kind"], run["records"], run["steps"]) for name, run in runs.items()} == {
        "grpo": ("training", 15, [1, 3]),
        "before": ("other", 4, None),
        "after": ("other", 4, None),
    }
    assert dict(overview["facets"]["kind"]) == {"training": 12, "validation": 3, "other": 8}
    assert overview["title"] == "runs" and all(run["growing"] for run in overview["runs"])
    assert {column["type"] for column in overview["columns"]} == {"number", "text", "bool", "list", "map"}


def test_a_trajectory_has_its_record_siblings_history_and_advantage(client):
    (row, *_) = get(client, "trajectories", run="grpo", kind="training", step_min=2, step_max=2)["rows"]
    one = get(client, f"trajectory/t{row['tid']}")
    assert one["row"] == row and one["record"]["turns"][0]["text"].startswith("<search>")
    assert one["gold_passages"] == [[0, 0, 0]]
    assert [sibling["id"] for sibling in one["siblings"]] == ["q#0", "q#1", "q#2", "q#3"]
    assert one["group"]["n"] == 4 and one["group"]["mean"] == 0.5
    assert one["advantage"]["value"] == pytest.approx(0.866, abs=1e-3)
    assert [(past["step"], past["kind"]) for past in one["history"]][:5] == [(1, "training")] * 4 + [
        (1, "validation")
    ]
    assert one["cause"] is None


def test_the_advantage_that_the_trainer_has_recorded_is_shown(tmp_path):
    names = ("advantage", "advantage_min", "advantage_max", "score", "group_size", "group_mean", "group_std")
    line = {
        "step": 1,
        "group": "u",
        "sample": 1,
        **dict(zip(names, (0.5, -1.0, 1.0, 0.9, 8, 0.4, 0.2), strict=True)),
    }
    advantages = tmp_path / "trajectories" / "advantages" / "step_000001-7.ndjson"
    records = [training(f"q#{i}", 1, group="u", model="a/model") for i in range(2)]
    write(tmp_path / "trajectories" / "train" / "step_000001-7.jsonl", records)
    with closing(Store([tmp_path])) as store, store.cache.connection() as connection:
        store.refresh()
        assert trajectory(connection, 2)["advantage"]["recorded"] is False
        write(advantages, [{"step": 1}, {**line, "sample": 0}, line])
        one = trajectory(connection, 2)
    assert one["row"]["checkpoint"] == "a/model" and len(one["siblings"]) == 2
    values = {"value": 0.5, "min": -1.0, "max": 1.0, "score": 0.9, "n": 8, "mean": 0.4, "std": 0.2}
    assert one["advantage"] == {**values, "recorded": True}


def test_a_wrong_answer_has_its_cause_with_evidence(client):
    (row,) = get(client, "trajectories", run="grpo", kind="validation", right="false")["rows"]
    cause = get(client, f"trajectory/{row['tid']}")["cause"]
    assert cause["name"] == row["cause"] == "retrieved_and_misread"
    assert cause["evidence"] == {"queries": ["Mara Torval"], "gold_passages": [[0, 0, 0]]}


def test_causes_are_counted_with_examples(client):
    causes = get(client, "causes", run="grpo")
    (cause,) = causes["causes"]
    assert (cause["name"], cause["n"], causes["failures"]) == ("retrieved_and_misread", 7, 7)
    assert [get(client, f"trajectory/{tid}")["row"]["right"] for tid in cause["examples"]] == [False] * 5


def test_two_runs_are_compared_on_their_questions_the_changed_ones_first(client):
    compared = get(client, "compare", a="before", b="after")
    assert {name: compared[name] for name in ("both", "a_right", "b_right", "gained", "lost")} == {
        "both": 4,
        "a_right": 2,
        "b_right": 2,
        "gained": 1,
        "lost": 1,
    }
    changes = [row["change"] for row in compared["rows"]]
    assert changes == ["lost", "gained", "same_wrong", "same_right"]
    assert get(client, "compare", a="before", b="after", offset=1, limit=1)["rows"] == compared["rows"][1:2]


def test_a_training_is_compared_by_its_last_validation_or_that_of_a_step(client):
    assert get(client, "compare", a="before", b="grpo")["b_right"] == 1
    assert get(client, "compare", a="grpo", b="grpo", a_step=1, b_step=3)["gained"] == 1


def test_charts_have_a_value_for_each_step(client):
    series = {one["name"]: one for one in get(client, "charts", run="grpo")["series"]}
    assert series["validation: right"] == {
        "name": "validation: right", "group": "em", "x": [1, 2, 3], "y": [0.0, 1.0, 1.0], "n": [1, 1, 1],
    }  # fmt: skip
    assert series["training: score"]["y"] == [0.5] * 3 and series["training: format"]["y"] == [0.5] * 3
    assert series["training: answered"]["y"] == [1.0] * 3
    assert (series["actor/entropy"]["x"], series["timing_s/step"]["group"]) == ([1], "time")
    assert "actor/lr" not in series
    assert get(client, "charts", run="before")["series"] == []
    filtered = get(client, "charts", run="grpo", kind="validation", step_min=2)["series"]
    assert {tuple(one["x"]) for one in filtered} == {(2, 3)}
    assert {one["name"].split(":")[0] for one in filtered} == {"validation"}
    judged = get(client, "charts", run="grpo", right="true")["series"]
    assert judged and all(":" in one["name"] for one in judged)  # metrics of whole steps are left out


@pytest.mark.parametrize(
    ("path", "status", "named"),
    [
        ("trajectories?nothing=1", 422, "nothing"),
        ("trajectories?sort=text", 422, "sort"),
        ("trajectories?sort=tid;DROP", 422, "sort"),
        ("trajectories?order=up", 422, "order"),
        ("trajectories?limit=501", 422, "limit"),
        ("trajectories?offset=-1", 422, "offset"),
        ("trajectories?limit=1&limit=2", 422, "limit"),
        ("histogram", 422, "column"),
        ("histogram?column=golds", 422, "column"),
        ('histogram?column=tid"', 422, "column"),
        ("causes?sort=tid", 422, "sort"),
        ("compare?a=before", 422, "b is missing"),
        ("compare?a=before&b=nothing", 422, "nothing"),
        ("compare?a=before&b=after&a_step=x", 422, "a_step"),
        ("charts", 422, "run"),
        ("overview?x=1", 422, "no parameter 'x'"),
        ("export", 422, "select"),
        ("export?tid=x", 422, "tid"),
        ("export?run=before", 422, "run"),
        ("trajectory/x", 422, "trajectory"),
        ("trajectory/1' OR 1=1", 422, "trajectory"),
        ("trajectory/999999", 404, "999999"),
        ("nothing", 404, "Not Found"),
    ],
)
def test_what_cannot_be_answered_is_named(client, path, status, named):
    response = client.get(f"/api/{path}")
    assert response.status_code == status and named in response.json()["error"]["message"]


@pytest.mark.parametrize("attack", ["'", "'; DROP TABLE files; --", "\0", "a" * 5000])
def test_no_parameter_is_run_as_sql(client, attack):
    for path, parameters in (
        ("compare", {"a": attack, "b": attack}),
        ("charts", {"run": attack}),
        ("trajectories", {"text": attack, "sort": attack}),
        ("histogram", {"column": attack}),
        ("export", {"tid": attack}),
    ):
        assert client.get(f"/api/{path}", params=parameters).status_code in (200, 422)
    assert get(client, "trajectories", limit=0)["total"] == 23


def test_a_static_page_holds_the_trajectories_and_can_be_saved(client):
    response = client.get("/api/export", params={"tid": ["1", "2", "2"]})
    assert response.status_code == 200 and "attachment" in response.headers["content-disposition"]
    block = response.text.partition('type="application/json">')[2].partition("</script>")[0]
    assert [one["row"]["tid"] for one in json.loads(block)["trajectories"]] == [1, 2]


def test_the_page_and_its_files_are_served(client):
    for address, (_, media_type) in PAGE_FILES.items():
        response = client.get(address)
        assert response.status_code == 200 and response.headers["content-type"] == media_type
        assert {name: response.headers[name] for name in HEADERS} == HEADERS


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_can_be_changed(client, method):
    sent = {"content-type": "application/json"}
    assert client.request(method, "/api/overview", headers=sent).status_code == 405


@pytest.mark.parametrize("host", ["evil.example", "", "localhost.evil.example"])
def test_a_name_that_is_not_the_servers_is_refused(client, host):
    assert client.get("/api/overview", headers={"Host": host}).status_code == 421


def test_with_a_token_data_need_it_and_the_page_does_not(tmp_path):
    write(tmp_path / "a.jsonl", [record()])
    with server([tmp_path], token=TOKEN) as client:
        for path in ("overview", "version", "trajectories", "trajectory/1", "export?tid=1", "nothing"):
            assert client.get(f"/api/{path}").status_code == 401
            assert client.get(f"/api/{path}", headers={"Authorization": "Bearer s3cre"}).status_code == 401
        assert client.get("/").status_code == 200
        known = {"Authorization": f"Bearer {TOKEN}"}
        assert client.get("/api/version", headers=known).status_code == 200


def test_appended_records_are_seen_while_the_server_runs(tmp_path):
    path = write(tmp_path / "a.jsonl", [record("a")])
    with server([tmp_path]) as client:
        wait_for(client, 1)
        version = get(client, "version")["version"]
        write(path, [record("b")], append=True)
        wait_until(lambda: get(client, "version")["version"] != version)
        wait_for(client, 2)
        assert get(client, "version")["reading"] == {"files": 0, "bytes_done": 0, "bytes_total": 0}


def test_hostile_texts_come_back_as_they_are(tmp_path):
    text = "</script><script>alert(1)</script> \ud800 \u2028 & <b>"
    one = record("a", text, [searched(text, [text]), answered(text)], question=text, seconds=float("nan"))
    write(tmp_path / "a.jsonl", [one])
    with server([tmp_path]) as client:
        wait_for(client, 1)
        answer = get(client, "trajectory/1")
        assert answer["record"]["question"] == text and answer["record"]["seconds"] is None
        assert answer["row"]["question"] == text.replace("\ud800", "?")
        page = client.get("/api/export?tid=1").text
        assert "<script>alert" not in page


def test_a_record_that_has_gone_since_is_not_found(tmp_path):
    path = write(tmp_path / "a.jsonl", [record("a"), record("b")])
    with closing(Store([tmp_path])) as store, store.cache.connection() as connection:
        store.refresh()
        path.write_bytes(b"{}\n")
        with pytest.raises(DataError):
            trajectory(connection, 2)


def test_a_run_that_is_read_anew_during_a_comparison_has_no_pairs(read, tmp_path, monkeypatch):
    store = read(make_runs(tmp_path))
    rows = queries.rows

    def read_anew(connection, *rest):
        store.query("DELETE FROM trajectories WHERE run = 'after'")
        return rows(connection, *rest)

    monkeypatch.setattr(queries, "rows", read_anew)
    with store.cache.connection() as connection:
        assert queries.compare(connection, ("before", None), ("after", None), 0, 10)["rows"] == []


def test_numbers_that_cannot_be_reckoned_with_are_left_out(read, tmp_path):
    folder = tmp_path / "trajectories" / "train"
    scores = [1e200, -1.7e308, 10**400, float("nan"), 0.5]
    group = [training(f"q#{i}", 1, rewards={"score": score}) for i, score in enumerate(scores)]
    write(folder / "step_000001-1.jsonl", group)
    metrics = [{"step": i, "data": {"actor/entropy": value}} for i, value in enumerate(scores)]
    (tmp_path / "metrics-1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    store = read(tmp_path)
    with store.cache.connection() as connection:
        one = trajectory(connection, 1)
        [counted] = queries.histogram(connection, Selection(), "score")["bins"]
        series = charts(connection, one["row"]["run"], Selection())["series"]
    assert (one["group"]["n"], one["group"]["mean"], counted["n"]) == (1, 0.5, 1)
    assert [entry["x"] for entry in series if entry["name"] == "actor/entropy"] == [[0, 1, 4]]


@pytest.mark.parametrize("name", [None, 7, "\ud800"])
def test_a_record_is_found_whatever_its_id_is(read, tmp_path, name):
    write(tmp_path / "a.jsonl", [{**record("a"), "id": name}])
    with read(tmp_path).cache.connection() as connection:
        assert trajectory(connection, 1)["record"]["id"] == name


def test_a_query_is_interrupted_when_its_client_goes_away(tmp_path, monkeypatch):
    write(tmp_path / "a.jsonl", [record()])
    interrupted = threading.Event()

    def endless(connection, *unused):
        try:
            connection.execute("SELECT sum(a.i * b.i) FROM range(10000000) a(i), range(10000000) b(i)")
        except Exception:
            interrupted.set()
            raise

    monkeypatch.setattr(queries, "causes", endless)
    with server([tmp_path]) as client:
        with pytest.raises(httpx.ReadTimeout):
            client.get("/api/causes", timeout=0.5)
        assert interrupted.wait(20)
        assert get(client, "version")["problem"] is None  # it still answers


@pytest.mark.parametrize(
    "fault", [duckdb.IOException("a page"), duckdb.Error("a checksum"), duckdb.ConnectionException("closed")]
)
def test_a_cache_that_breaks_under_way_is_read_anew(tmp_path, monkeypatch, fault):
    """DuckDB closes all connections of a database that it finds broken."""
    write(tmp_path / "a.jsonl", [record("a")])
    broken = [fault]
    causes = queries.causes

    def breaking(connection, *rest):
        if broken:
            raise broken.pop()
        return causes(connection, *rest)

    monkeypatch.setattr(queries, "causes", breaking)
    with server([tmp_path]) as client:
        wait_for(client, 1)
        assert client.get("/api/causes").status_code == 503
        wait_for(client, 1)
        assert client.get("/api/causes").status_code == 200
