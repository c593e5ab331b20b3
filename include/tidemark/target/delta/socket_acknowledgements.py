"""Removes a wait of 40 ms from each long answer of the JVM, by acknowledging its packets at once.

Python and the JVM of its Spark driver communicate through a socket. The JVM writes an answer of more than 8 KB in two
pieces. The kernel keeps the second one back until the first is acknowledged (Nagle's algorithm). The other end delays
that for 40 ms, in case it has something to send itself (delayed acknowledgement). The schema of a table of fifty
columns is such an answer. A merge of a hundred columns got twenty of them: 0.9 s of waits alone. Here the reading end
acknowledges at once: tcp(7), TCP_QUICKACK. The kernel resets the option, so it is set before each read.

Py4J has no setting for it. Where the operating system has none either, nothing is changed.
"""

from __future__ import annotations

import io
import socket
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from py4j.clientserver import ClientServerConnection
from py4j.java_gateway import GatewayConnection

# Set where a connection's reading end is one of these already.
_DONE: Final = "_tidemark_acknowledges"

_READ_BYTES: Final = 2**16


class PromptReader(io.RawIOBase):
    """The reading end of a connected socket, which stays its owner's."""

    def __init__(self, connected: socket.socket) -> None:
        super().__init__()
        self._socket = connected

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return self._socket.recv_into(buffer)


def acknowledge_at_once() -> None:
    """Have every connection to a JVM that this process opens from now on read so. Twice is once."""
    if not hasattr(socket, "TCP_QUICKACK"):
        return
    # With a thread of the JVM's own for each of Python's, PySpark's default, and without.
    for kind, name in ((ClientServerConnection, "connect_to_java_server"), (GatewayConnection, "start")):
        connect = getattr(kind, name)
        if not hasattr(connect, _DONE):
            setattr(kind, name, _promptly(connect))


def _promptly(connect: Callable[[Any], None]) -> Callable[[Any], None]:
    @wraps(connect)
    def connected(connection: Any) -> None:
        connect(connection)
        if connection.socket.family not in (socket.AF_INET, socket.AF_INET6):
            return
        # Nothing is left in the reader that is replaced: an answer is read to its end before another command is sent.
        connection.stream = io.BufferedReader(PromptReader(connection.socket), _READ_BYTES)

    setattr(connected, _DONE, True)
    return connected
