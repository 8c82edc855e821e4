"""Several indexes in one server, and exchanging one under load."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import threading

import pytest

from retrieval_server.engine.options import EngineOptions
from retrieval_server.errors import OutsideRootError
from retrieval_server.search.index_source import IndexSource
from retrieval_server.server.app import create_app
from retrieval_server.server.reload import IndexLocation, Reloader

from ..builders import TOWNS, shelf_of
from ..running import asgi_client


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    return shelf_of(tmp_path_factory.mktemp("shelf"), red={}, blue={})


@pytest.fixture
def wiki(shelf):
    """The place of an index."""
    return {"wiki": IndexLocation(shelf / "red")}


def two(shelf, first, second):
    """The places of both, under these names."""
    return {first: IndexLocation(shelf / "red"), second: IndexLocation(shelf / "blue")}


def open_index(place):
    return IndexSource.open(place.path, encoder=place.encoder, device="cpu")


@contextlib.asynccontextmanager
async def client_of(places, root=None, opener=open_index, **options):
    """A client of an app that serves ``places``, when it is ready."""
    reloader = Reloader(places, opener, root)
    loaders = {name: reloader.loader(place) for name, place in places.items()}
    app = create_app(loaders, reloader=reloader, options=EngineOptions(**options))
    async with asgi_client(app) as client:
        while (await client.get("/ready")).status_code != 200:
            await asyncio.sleep(0.005)
        yield client


async def ask(client, query="Ulm", path="/retrieve", **more):
    return await client.post(path, json={"queries": [query], "topk": 1} | more)


def signature(answer):
    """Which index made this answer: the word in brackets; both, if it is mixed."""
    assert answer.status_code == 200, answer.text
    texts = [document["contents"] for hits in answer.json()["result"] for document in hits]
    return "+".join(sorted({text.rpartition("(")[2].rstrip(")") for text in texts}))


async def test_a_request_names_its_index_by_key_or_path_or_gets_the_default(shelf):
    async with client_of(two(shelf, "default", "sea")) as client:
        assert signature(await ask(client)) == "red"
        assert signature(await ask(client, index=None)) == "red"
        assert signature(await ask(client, index="sea")) == "blue"
        assert signature(await ask(client, path="/indexes/sea/retrieve")) == "blue"
        lines = await client.post("/indexes/sea/queries", json={"queries": ["Ulm"], "k": 1})
        ((line,),) = lines.json()["answers"]
        assert line.startswith("town-0\t") and line.endswith("(blue)")
        both = await ask(client, path="/indexes/sea/retrieve", index="default")
        assert both.status_code == 422 and "index" in both.json()["reason"]


async def test_an_unknown_index_is_404_and_the_known_ones_are_named(shelf):
    async with client_of(two(shelf, "wiki", "news")) as client:
        for answer in (await ask(client, index="wike"), await ask(client, path="/indexes/wike/retrieve")):
            assert (answer.status_code, answer.json()["error"]) == (404, "unknown_index")
            assert "wiki, news" in answer.json()["reason"]
        assert (await client.post("/reload", json={"index": "wike"})).status_code == 404


async def test_equal_queries_to_two_indexes_are_not_mixed_up(shelf):
    async with client_of(two(shelf, "a", "b")) as client:
        for _ in range(2):  # the second time out of the caches
            answers = await asyncio.gather(*(ask(client, index=name) for name in "abab"))
            assert [signature(answer) for answer in answers] == ["red", "blue"] * 2


async def test_ready_tells_each_index_and_its_version(shelf):
    async with client_of(two(shelf, "wiki", "news")) as client:
        ready = (await client.get("/ready")).json()
        assert ready["index"] == "wiki" and list(ready["indexes"]) == ["wiki", "news"]
        assert ready["index_version"] == 1
        assert ready["corpus_sha256"] == ready["indexes"]["wiki"]["corpus_sha256"]
        assert ready["corpus_sha256"] != ready["indexes"]["news"]["corpus_sha256"]
        await client.post("/reload", json={"index": "news"})
        after = (await client.get("/ready")).json()["indexes"]
        assert [after[name]["index_version"] for name in ("wiki", "news")] == [1, 2]
        assert (await ask(client, index="news")).headers["x-index-version"] == "2"


async def test_answers_after_a_reload_are_the_new_indexs_also_for_what_was_cached(wiki):
    async with client_of(wiki) as client:
        assert signature(await ask(client)) == signature(await ask(client)) == "red"
        answer = await client.post("/reload", json={"path": "blue"})
        assert answer.status_code == 200 and answer.json()["index_version"] == 2
        assert answer.json()["index"] == "wiki" and answer.json()["passages"] == 20
        assert signature(await ask(client)) == "blue"
        assert (await client.post("/reload", json={})).json()["index_version"] == 3  # the same place again
        assert signature(await ask(client)) == "blue"


async def test_under_load_every_answer_is_whole_and_from_one_of_the_two(wiki):
    versions, stop = set(), False

    async def hammer(client, number):
        number_asked = 0
        while not stop:
            queries = [f"{TOWNS[(number + i) % 10]} {number_asked}" for i in range(5)]
            answer = await client.post("/retrieve", json={"queries": queries, "topk": 1})
            expected = [f"town-{(number + i) % 10}" for i in range(5)]
            assert [hits[0]["id"] for hits in answer.json()["result"]] == expected
            version = int(answer.headers["x-index-version"])
            assert signature(answer) == ("red", "blue")[(version + 1) % 2]
            versions.add(version)
            number_asked += 1
        return number_asked

    async with client_of(wiki, max_batch=4) as client:
        clients = [asyncio.create_task(hammer(client, number)) for number in range(16)]
        for path in ["blue", "red"] * 3:
            answer = await client.post("/reload", json={"path": path})
            assert answer.status_code == 200, answer.text
            version = answer.json()["index_version"]
            while version not in versions and not any(task.done() for task in clients):
                await asyncio.sleep(0.005)
        stop = True
        assert min(await asyncio.gather(*clients)) > 0
        assert versions >= {2, 3, 4, 5, 6, 7}
        page = (await client.get("/metrics")).text.splitlines()
        assert 'retrieval_outstanding{index="wiki"} 0.0' in page
        assert 'retrieval_reloads_total{index="wiki",outcome="done"} 6.0' in page
        failed = 'retrieval_requests_total{route="/retrieve",status="5'
        assert not any(line.startswith(failed) for line in page)


async def test_the_old_index_lets_go_of_its_threads(wiki):
    async with client_of(wiki) as client:
        await ask(client)
        for _ in range(3):
            await client.post("/reload", json={})
            await ask(client)
        stages = ("encode", "search")
        while not 0 < sum(thread.name.startswith(stages) for thread in threading.enumerate()) <= 2:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("folder", ["empty", "odd/manifest.json"])
async def test_a_reload_that_fails_says_why_and_the_old_index_goes_on(shelf, wiki, folder):
    """Of a folder without a manifest, and of one whose manifest is no file."""
    (shelf / folder).mkdir(parents=True)
    async with client_of(wiki) as client:
        answer = await client.post("/reload", json={"path": folder.partition("/")[0]})
        assert (answer.status_code, answer.json()["error"]) == (422, "reload_failed")
        assert "manifest.json" in answer.json()["reason"] and "keeps serving" in answer.json()["reason"]
        assert signature(await ask(client)) == "red"
        assert (await client.get("/ready")).json()["index_version"] == 1
        assert (await client.post("/reload", json={"path": "blue"})).status_code == 200


@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken", "a"), OSError("broken")])
async def test_a_file_that_cannot_be_read_is_told_with_the_reason(wiki, error):
    opened = [open_index(wiki["wiki"]), error]

    def open_once(place):
        if isinstance(source := opened.pop(0), OSError):
            raise source
        return source

    async with client_of(wiki, opener=open_once) as client:
        reason = (await client.post("/reload", json={})).json()["reason"]
        assert reason == "a file of it cannot be read (broken). The old index keeps serving."


@pytest.mark.parametrize("path", ["..", "/", "../elsewhere", "red/../..", "link", "red\0"])
async def test_only_the_root_may_be_opened(shelf, wiki, tmp_path, path):
    if path == "link" and not (shelf / "link").exists():
        os.symlink(tmp_path, shelf / "link")
    async with client_of(wiki) as client:
        for body in ({"path": path}, {"encoder": path}):
            answer = await client.post("/reload", json=body)
            assert (answer.status_code, answer.json()["error"]) == (403, "forbidden")
        assert (await client.get("/ready")).json()["index_version"] == 1


def test_the_root_can_be_another_folder(shelf, tmp_path):
    places = {"wiki": IndexLocation(shelf / "red", encoder="here")}
    reloader = Reloader(places, open_index, tmp_path)
    assert reloader.resolve("wiki", str(tmp_path / "new"), None) == IndexLocation(tmp_path.resolve() / "new")
    assert reloader.resolve("wiki", None, None) == places["wiki"]  # what the operator chose stays allowed
    with pytest.raises(OutsideRootError, match="--reload-root"):
        reloader.resolve("wiki", str(shelf / "blue"), None)


async def test_one_reload_of_an_index_at_a_time(wiki):
    async with client_of(wiki) as client:
        answers = await asyncio.gather(*(client.post("/reload", json={}) for _ in range(3)))
        assert sorted(answer.status_code for answer in answers) == [200, 409, 409]


async def test_the_encoder_may_move_but_must_stay_the_indexs_own(dense_index, make_bert, tiny_bge, tmp_path):
    shutil.copytree(dense_index, tmp_path / "dense")
    shutil.copytree(tiny_bge, tmp_path / "moved")
    shutil.copytree(make_bert("bge-small-en-v1.5", seed=7), tmp_path / "other")
    async with client_of({"wiki": IndexLocation(tmp_path / "dense")}) as client:
        before = (await ask(client)).json()
        assert (await client.post("/reload", json={"encoder": "moved"})).status_code == 200
        assert (await ask(client)).json() == before
        refused = await client.post("/reload", json={"encoder": "other"})
        assert refused.status_code == 422 and "sha256" in refused.json()["reason"]
        assert (await ask(client)).json() == before


@pytest.mark.parametrize("name", ["x" * 5000, "x" * 300, "é" * 1000, "a/" * 400 + "b" * 300])
async def test_a_path_that_no_file_system_takes_is_refused_with_a_reason(wiki, name):
    async with client_of(wiki) as client:
        for key in ("path", "encoder"):
            answer = await client.post("/reload", json={key: name})
            assert answer.status_code in (403, 422), answer.text
            assert answer.json()["reason"].startswith(f"{key}: ")
        assert (await client.get("/ready")).json()["index_version"] == 1
