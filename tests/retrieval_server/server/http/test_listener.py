"""The server's port: taken, forbidden, or of another machine."""

from __future__ import annotations

import socket
from unittest.mock import Mock

import pytest

from retrieval_server.errors import UserError
from retrieval_server.serve.options import ServeCommand
from retrieval_server.server.http.listener import listen
from retrieval_server.start_retrieval import _address


def test_it_is_open_at_once_and_nobody_else_gets_it():
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        socket.create_connection(("127.0.0.1", port)).close()
        with pytest.raises(UserError, match=f"port {port} of 127.0.0.1 is in use.*--port"):
            listen("127.0.0.1", port)


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid", "ü..x"])
def test_an_address_of_another_machine_is_named(host):
    with pytest.raises(UserError, match=f"--host {host}: .*127.0.0.1"):
        listen(host, 0)


@pytest.mark.parametrize("host, shown", [("::1", "[::1]"), ("127.0.0.1", "127.0.0.1"), ("a.b", "a.b")])
def test_the_address_that_is_printed_can_be_opened(host, shown):
    sources = Mock(**{"listener.getsockname.return_value": (host, 8123)})
    assert _address(ServeCommand(web={"web": "serper"}, host=host), sources) == f"http://{shown}:8123"


def test_a_machine_without_ipv6_is_no_crash(monkeypatch):
    monkeypatch.setattr("socket.socket", Mock(side_effect=OSError(97, "Address family not supported")))
    with pytest.raises(UserError, match="--host ::1: .*family not supported"):
        listen("::1", 0)


def test_ipv6():
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with listen("::1", 0) as listener:
        assert listener.family == socket.AF_INET6
