"""What is asked once and read whole has limits, whatever the server sends."""

from __future__ import annotations

import gzip
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from rag_r1.io.bounded_http import bounded_http_client

HEAD = b"HTTP/1.1 200 OK\r\nConnection: close\r\n"


@contextmanager
def answering(*parts: bytes, pause_s: float = 0.0) -> Iterator[str]:
    """The address of a server that sends these parts to whoever connects, and then waits for its end."""
    listening = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                connection.recv(1 << 16)
                try:
                    for part in parts:
                        connection.sendall(part)
                        time.sleep(pause_s)
                except OSError:
                    pass  # the client has gone

    threading.Thread(target=answer, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()


def test_an_honest_answer_is_read():
    with answering(HEAD, b"Content-Encoding: identity\r\nContent-Length: 4\r\n\r\ntrue") as url:
        with bounded_http_client(10.0) as client:
            assert client.get(url).json() is True


@pytest.mark.parametrize(
    "sent",
    [
        (HEAD, b"\r\n", *[b"[" * (1 << 16)] * 1000),
        (HEAD, b"Content-Encoding: gzip\r\n\r\n", gzip.compress(b" " * (1 << 22))),
        (b"HTTP/1.1 503 Busy\r\nContent-Encoding: deflate\r\nContent-Length: 0\r\n\r\n",),
    ],
)
def test_a_long_or_compressed_answer_is_an_error_of_http(sent):
    with answering(*sent) as url, bounded_http_client(10.0, limit=1 << 20) as client:
        with pytest.raises(httpx.HTTPError):
            client.get(url)


def test_an_answer_that_comes_byte_by_byte_is_given_up():
    with answering(HEAD, b"\r\n", *[b" "] * 1000, pause_s=0.05) as url, bounded_http_client(0.3) as client:
        with pytest.raises(httpx.ReadTimeout, match="takes more than"):
            client.get(url)


@pytest.mark.parametrize("line", [b"X: y\r\n", b"y"])
def test_a_head_that_comes_bit_by_bit_is_given_up(line):
    with answering(HEAD, *[line] * 400, pause_s=0.05) as url, bounded_http_client(0.3) as client:
        with pytest.raises(httpx.ReadTimeout, match="no answer within 0.6 s"):
            client.get(url)


def test_a_handshake_that_comes_byte_by_byte_is_given_up():
    # The record of a server's hello that has 16,000 bytes.
    sent = b"\x16\x03\x03\x3e\x80\x02\x00\x3e\x7c" + b"\x03" * 400
    with (
        answering(*[bytes([byte]) for byte in sent], pause_s=0.05) as url,
        bounded_http_client(0.3) as client,
    ):
        with pytest.raises(httpx.ConnectTimeout, match="handshake"):
            client.get(url.replace("http:", "https:"))


def test_a_head_after_a_handshake_that_ended_late_is_given_up():
    """The clock that ends a request may strike in the handshake, where there is no socket to shut down."""

    class _Late(httpx.BaseTransport):
        def handle_request(self, request):
            here, there = socket.socketpair()
            with here, there:
                time.sleep(0.3)  # the handshake
                stream = type("Stream", (), {"get_extra_info": lambda self, name: here})()
                request.extensions["trace"]("connection.start_tls.complete", {"return_value": stream})
                here.settimeout(5.0)
                raise httpx.ReadError("it has ended" if here.recv(1) == b"" else "it goes on")

    client = bounded_http_client(0.1)
    client._transport._inner = _Late()
    with client, pytest.raises(httpx.ReadTimeout, match="no answer within 0.2 s"):
        client.get("https://127.0.0.1")


def test_an_answer_in_time_is_read_though_its_body_comes_later():
    with answering(HEAD + b"Content-Length: 4\r\n\r\n", b"t", b"r", b"ue", pause_s=0.2) as url:
        with bounded_http_client(0.5) as client:
            with pytest.raises(httpx.ReadTimeout, match="takes more than"):
                client.get(url)
        with bounded_http_client(5.0) as client:
            assert client.get(url).json() is True and client.get(url).json() is True


def test_the_proxy_of_the_environment_is_not_asked(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with answering(HEAD, b"Content-Length: 4\r\n\r\ntrue") as url, bounded_http_client(10.0) as client:
        assert client.get(url).json() is True
