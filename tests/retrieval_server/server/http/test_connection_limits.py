"""What a client can hold back or pile up before it is known: headers, time, connections. Real sockets."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from contextlib import ExitStack, contextmanager

import pytest
import uvicorn

from retrieval_server.server.http.connection_limits import MAX_HEAD_BYTES, MAX_HEADERS, limited_protocol
from retrieval_server.server.limits import ConnectionLimits

BIG = 8 * 2**20
HEAD = b"POST /echo HTTP/1.1\r\nhost: x\r\n"


async def app(scope, receive, send):
    """Answers with the number of bytes that it was sent; /big with eight MiB, /slow after two time-outs."""
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    if scope["path"] == "/slow":
        await asyncio.sleep(1.0)
    body = b"x" * BIG if scope["path"] == "/big" else str(size).encode()
    length = str(len(body)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def serving(**limits):
    """The port of a uvicorn with these limits."""
    protocol = limited_protocol(ConnectionLimits(**{"read_timeout_s": 0.5, "max_connections": 100, **limits}))
    config = uvicorn.Config(app, http=protocol, ws="none", lifespan="off", log_level="critical")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(60)
            assert not thread.is_alive()


@pytest.fixture(scope="module")
def port():
    with serving() as number:
        yield number


@contextmanager
def connection(port, receive_buffer=None):
    with socket.socket() as opened:
        if receive_buffer is not None:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        opened.settimeout(60)
        opened.connect(("127.0.0.1", port))
        yield opened


def answers_to(port, *sent):
    """All that the server says to each of these, over a connection of its own, until it closes."""
    with ExitStack() as stack:
        clients = [stack.enter_context(connection(port)) for _ in sent]
        for client, each in zip(clients, sent, strict=True):
            client.sendall(each)
        return [rest(client) for client in clients]


def rest(connection):
    """All that comes until the server closes."""
    parts = []
    try:
        while part := connection.recv(2**16):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def pour(connection, first, again, most):
    """Send ``first``, then ``again`` until the server closes or ``most`` bytes have gone; how many went."""
    sent = 0
    try:
        connection.sendall(first)
        while sent < most:
            connection.sendall(again)
            sent += len(again)
    except (ConnectionResetError, BrokenPipeError):
        pass
    return sent


def status(answer):
    return int(answer.split(b" ", 2)[1]) if answer else None


@pytest.mark.parametrize(
    "first",
    [
        HEAD + b"x: ",  # one header without an end
        b"GET /",  # an address without one
        HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nx: ",  # a trailer
        HEAD + b"transfer-encoding: chunked\r\n\r\n1;",  # an extension of a chunk
    ],
)
def test_headers_without_an_end_are_not_taken(port, first):
    with connection(port) as client:
        assert pour(client, first, b"y" * 2**16, most=100 * 2**20) < 20 * 2**20


@pytest.mark.parametrize("first", [HEAD, HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"])
def test_headers_without_number_are_not_taken(port, first):
    with connection(port) as client:
        assert pour(client, first, b"x: y\r\n" * 1000, most=100 * 2**20) < 20 * 2**20


def test_too_many_headers_and_too_large_ones_are_refused_in_json(port):
    many = b"".join(b"x%d: y\r\n" % i for i in range(MAX_HEADERS - 3))
    length = b"content-length: 2\r\nconnection: close\r\n"
    large = b"x: " + b"y" * (MAX_HEAD_BYTES - 200) + b"\r\n"
    all_headers = many, many + b"a: b\r\n", large, large + b"z: " + b"z" * 200 + b"\r\n"
    answers = answers_to(port, *(HEAD + length + headers + b"\r\n{}" for headers in all_headers))
    for answer, expected in zip(answers, (200, 431, 200, 431), strict=True):
        assert status(answer) == expected, answer[:200]
        if expected == 431:
            assert b'"error": "headers_too_large"' in answer


def test_a_request_that_does_not_go_on_gets_408_and_is_closed(port):
    rests = b"", b"content-length: 10\r\n\r\n{}", b"transfer-encoding: chunked\r\n\r\n5\r\n"
    for answer in answers_to(port, HEAD[:15], *(HEAD + rest for rest in rests)):
        assert status(answer) == 408 and b'"error": "timeout"' in answer


@pytest.mark.slow
def test_a_connection_that_says_nothing_is_closed_without_a_word(port):
    assert answers_to(port, b"", b"\r\n\r\n") == [b"", b""]


@pytest.mark.slow
@pytest.mark.parametrize("first, drop", [(HEAD, b"x: y\r\n"), (HEAD + b"content-length: 1000\r\n\r\n", b"y")])
def test_to_send_it_in_drops_wins_no_time(port, first, drop):
    with connection(port) as client:
        client.settimeout(0.05)
        client.sendall(first)
        for _ in range(1000):
            try:
                client.sendall(drop)
                if not (answer := client.recv(2**16)):
                    break
                assert status(answer) == 408
                break
            except TimeoutError:
                continue
            except (ConnectionResetError, BrokenPipeError):
                break
        else:
            raise AssertionError("still open after fifty seconds")


@pytest.mark.slow
def test_the_time_ends_with_the_request_and_begins_anew_with_the_next(port):
    length = b"content-length: 2\r\n\r\n{}"
    with connection(port) as client:
        for path in (b"/slow", b"/echo", b"/slow"):  # an answer may take longer than a request
            client.sendall(b"POST " + path + b" HTTP/1.1\r\nhost: x\r\n" + length)
            assert status(client.recv(2**16)) == 200
        client.sendall(HEAD)
        assert status(rest(client)) == 408


@pytest.mark.slow
def test_requests_that_wait_behind_a_slow_one_are_answered_in_turn(port):
    request = b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n%s\r\n{}"
    with connection(port) as client:
        client.sendall(request % (b"/slow", b"") + request % (b"/echo", b"connection: close\r\n"))
        assert rest(client).count(b"HTTP/1.1 200") == 2
    with connection(port) as client:  # half of one behind a slow one: that is answered, and then both end
        client.sendall(request % (b"/slow", b"") + b"POST /echo HTT")
        answer = rest(client)
    assert answer.startswith(b"HTTP/1.1 200") and status(answer[answer.index(b"2HTTP") + 1 :]) == 408


def test_a_body_of_any_form_arrives_whole(port):
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in [b"y" * size for size in range(1, 400)])
    chunked = HEAD + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n" + chunks + b"0\r\n\r\n"
    plain = HEAD + b"connection: close\r\ncontent-length: %d\r\n\r\n" % BIG + b"y" * BIG
    for request, size in ((chunked, sum(range(1, 400))), (plain, BIG)):
        assert answers_to(port, request)[0].endswith(b"\r\n\r\n%d" % size)


@pytest.mark.slow
def test_an_answer_that_nobody_reads_is_dropped(port):
    with ExitStack() as stack:
        before = len(os.listdir("/proc/self/fd"))
        # Else the system takes all eight MiB for them.
        clients = [stack.enter_context(connection(port, receive_buffer=2**16)) for _ in range(5)]
        for client in clients:
            client.sendall(b"GET /big HTTP/1.1\r\nhost: x\r\n\r\n")
            client.recv(1, socket.MSG_PEEK)
        while len(os.listdir("/proc/self/fd")) > before + len(clients):  # the server's ends are here too
            threading.Event().wait(0.05)
        assert all(len(rest(client)) < BIG for client in clients)


@pytest.mark.slow
def test_a_slow_reader_gets_all(port):
    with connection(port, receive_buffer=2**16) as client:
        client.sendall(b"GET /big HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        size = 0
        while part := client.recv(2**20):
            size += len(part)
            threading.Event().wait(0.005)
    assert size > BIG


def test_there_is_a_most_number_of_connections_and_idle_ones_make_room():
    with serving(max_connections=5, read_timeout_s=30.0) as port, ExitStack() as stack:
        held = [stack.enter_context(connection(port)) for _ in range(5)]
        for client in held:
            client.sendall(HEAD + b"content-length: 2\r\n\r\n{}")
            assert status(client.recv(2**16)) == 200
        with connection(port) as one_more:
            answer = rest(one_more)
        assert status(answer) == 503 and b'"error": "too_many_connections"' in answer
        held[0].close()
        while True:  # the server learns of it in its own time
            with connection(port) as one_more:
                one_more.sendall(HEAD + b"connection: close\r\ncontent-length: 2\r\n\r\n{}")
                if status(rest(one_more)) == 200:
                    break


@pytest.mark.parametrize(
    "sent", [b"\x16\x03\x01\x02\x00" * 20, b"GET / HTTP/9.9\r\n\r\n", b"GET \xff HTTP/1.1\r\n\r\n"]
)
def test_what_is_no_http_is_refused_in_json(port, sent):
    [answer] = answers_to(port, sent)
    assert status(answer) == 400 and b'"error": "bad_request"' in answer


@pytest.mark.parametrize("rest_of_it", [b"", b"content-length: 5\r\n"])
def test_no_request_becomes_another_protocol(port, rest_of_it):
    upgrade = b"GET /echo HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade, close\r\n"
    assert status(answers_to(port, upgrade + rest_of_it + b"\r\n")[0]) in (200, 400, 408)
