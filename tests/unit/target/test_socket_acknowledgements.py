"""What Python reads of a JVM's answers, and that it acknowledges them at once, by a server that speaks Py4J's words."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from py4j.clientserver import ClientServerConnection, PythonParameters
from py4j.java_gateway import GatewayConnection, GatewayParameters, GatewayProperty

from tidemark.target.delta.socket_acknowledgements import PromptReader, acknowledge_at_once

WAIT_S = 30.0
ANSWERS = [b"!ys" + b"x" * 100_000, b"!yv", b"!ys" + b"y" * 8_192]


@pytest.fixture
def port() -> Iterator[int]:
    """Of a server that answers one command after the other, whatever they are."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connected, _ = server.accept()
            with connected, connected.makefile("rb") as commands:
                for answer in ANSWERS:
                    while commands.readline() != b"e\n":
                        pass
                    connected.sendall(answer[:8_192])
                    connected.sendall(answer[8_192:] + b"\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        thread.join(WAIT_S)


@pytest.fixture
def prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put back behind the test, whoever has asked for it in this process before."""
    for kind, name in ((ClientServerConnection, "connect_to_java_server"), (GatewayConnection, "start")):
        connect = getattr(kind, name)
        monkeypatch.setattr(kind, name, getattr(connect, "__wrapped__", connect))
    acknowledge_at_once()
    acknowledge_at_once()


def a_connection(kind: str, port: int) -> Any:
    parameters = GatewayParameters(port=port, read_timeout=WAIT_S)
    if kind == "without threads of its own":
        connection = GatewayConnection(parameters, GatewayProperty(None, None))
        connection.start()
        return connection
    connection = ClientServerConnection(parameters, PythonParameters(), GatewayProperty(None, None), None)
    connection.connect_to_java_server()
    return connection


@pytest.mark.parametrize("kind", ["with threads of its own", "without threads of its own"])
@pytest.mark.usefixtures("prompt")
def test_answers_come_whole_and_one_after_the_other(kind: str, port: int) -> None:
    connection = a_connection(kind, port)
    assert isinstance(connection.stream.raw, PromptReader)
    asked = [connection.send_command("c\no\nm\ne\n") for _ in ANSWERS]
    assert [answer.encode() for answer in asked] == [answer[1:] for answer in ANSWERS]
    connected = connection.socket
    connection.close()
    assert connected.fileno() == -1


def test_each_read_acknowledges() -> None:
    """The kernel forgets that it was asked to; without it the second half of each answer comes 40 ms later."""
    asked = []

    class Connected(socket.socket):
        def setsockopt(self, *option: Any) -> None:
            asked.append(option)
            super().setsockopt(*option)

    with socket.create_server(("127.0.0.1", 0)) as server, Connected() as ours:
        ours.connect(server.getsockname())
        theirs, _ = server.accept()
        with theirs:
            reader = PromptReader(ours)
            for sent in (b"one", b"two"):
                theirs.sendall(sent)
                assert reader.read(10) == sent
    assert asked == [(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)] * 2
