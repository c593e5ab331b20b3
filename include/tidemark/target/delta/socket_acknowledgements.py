"""Removes a wait of 40 ms from each long answer of the JVM, by acknowledging its packets at once.

Python and the JVM of its Spark driver communicate through a socket. The JVM writes an answer of more than 8 KB in two
pieces. The kernel holds the second piece back until the first is acknowledged (Nagle's algorithm). Python's kernel
delays the acknowledgement for 40 ms, in case Python sends data itself (delayed acknowledgement). The schema of a table
of fifty columns is such an answer. A merge of a hundred columns got twenty of them: 0.9 s of waits alone. So Python's
end sets TCP_QUICKACK, which acknowledges at once (tcp(7)). The kernel resets the option, so it is set before each read.

Py4J has no setting for this. On an operating system without TCP_QUICKACK nothing is changed.
"""

from __future__ import annotations

import io
import socket
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from py4j.clientserver import ClientServerConnection
from py4j.java_gateway import GatewayConnection

# The attribute that marks a connection method as wrapped already.
_WRAPPED: Final = "_tidemark_acknowledges"

_READ_BYTES: Final = 2**16


class PromptReader(io.RawIOBase):
    """Reads from a connected socket and acknowledges at once. It does not close the socket, which has another owner."""

    def __init__(self, connected: socket.socket) -> None:
        super().__init__()
        self._socket = connected

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return self._socket.recv_into(buffer)


def acknowledge_at_once() -> None:
    """Make each new connection of this process to a JVM read through PromptReader. A second call changes nothing."""
    if not hasattr(socket, "TCP_QUICKACK"):
        return
    # Py4J's connection classes with one JVM thread per Python thread, which is PySpark's default, and without.
    for kind, name in ((ClientServerConnection, "connect_to_java_server"), (GatewayConnection, "start")):
        connect = getattr(kind, name)
        if not hasattr(connect, _WRAPPED):
            setattr(kind, name, _promptly(connect))


def _promptly(connect: Callable[[Any], None]) -> Callable[[Any], None]:
    @wraps(connect)
    def connect_promptly(connection: Any) -> None:
        connect(connection)
        if connection.socket.family not in (socket.AF_INET, socket.AF_INET6):
            return
        # The replaced reader holds no unread bytes: an answer is read to its end before the next command is sent.
        connection.stream = io.BufferedReader(PromptReader(connection.socket), _READ_BYTES)

    setattr(connect_promptly, _WRAPPED, True)
    return connect_promptly
