"""A TCP proxy in front of PostgreSQL that breaks some of its connections, in ways and at moments drawn by lot."""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Final, Literal

Way = Literal["reset", "half a piece", "silence", "slow"]
WAYS: Final[tuple[Way, ...]] = ("reset", "half a piece", "silence", "slow")
PIECE: Final = 1 << 14
# A connection breaks after at most so many bytes in one of its directions; half of them within the first hundredth.
MOST_BYTES: Final = 200_000
SLOW_S: Final = 0.02


@dataclass
class BrokenNetwork:
    """`one_in` connections is broken, none while it is 0. One in `silence` passes nothing for `silence_s` and ends
    then. `broken` counts what happened. `over` ends every delay."""

    port: int
    random: Random
    one_in: int
    silence_s: float
    connections: int = 0
    broken: Counter[Way] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)
    over: threading.Event = field(default_factory=threading.Event)

    def lot(self) -> tuple[Way | None, bool, int]:
        """How a new connection breaks, whether in what the server sends, and behind which byte."""
        with self.lock:
            self.connections += 1
            way = self.random.choice(WAYS) if self.one_in and self.random.randrange(self.one_in) == 0 else None
            most = MOST_BYTES // 100 if self.random.random() < 0.5 else MOST_BYTES
            return way, self.random.random() < 0.5, self.random.randrange(most)

    def count(self, way: Way) -> None:
        with self.lock:
            self.broken[way] += 1


@contextmanager
def in_front_of(port: int, seed: int, one_in: int = 4, silence_s: float = 1.0) -> Iterator[BrokenNetwork]:
    """Forwards connections to the port on this machine, until the block ends."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=100)
    network = BrokenNetwork(listener.getsockname()[1], Random(seed), one_in, silence_s)

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return  # the block has ended
            server = socket.create_connection(("127.0.0.1", port))
            way, is_servers, behind = network.lot()
            for source, sink, is_answer in ((client, server, False), (server, client, True)):
                breaks = way if way == "slow" or is_answer == is_servers else None
                threading.Thread(target=_pump, args=(network, source, sink, breaks, behind), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield network
    finally:
        network.over.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _pump(network: BrokenNetwork, source: socket.socket, sink: socket.socket, way: Way | None, behind: int) -> None:
    """Pass one direction of a connection on, until either side ends or the lot's byte is reached."""
    passed = 0
    with suppress(OSError):
        while piece := source.recv(PIECE):
            if way == "slow":
                if passed == 0:
                    network.count(way)
                network.over.wait(SLOW_S)
            elif way is not None and network.one_in and passed + len(piece) > behind:
                network.count(way)
                if way == "half a piece":
                    sink.sendall(piece[: len(piece) // 2])
                    break
                if way == "silence":
                    network.over.wait(network.silence_s)
                _reset(source, sink)
                return
            sink.sendall(piece)
            passed += len(piece)
    for side in (source, sink):
        with suppress(OSError):
            side.shutdown(socket.SHUT_RDWR)


def _reset(*sides: socket.socket) -> None:
    """End connections by a reset, which discards what the other side has not read yet."""
    for side in sides:
        with suppress(OSError):
            side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            side.shutdown(socket.SHUT_RD)  # wakes the thread that reads of it: until then `close` does nothing
    for side in sides:
        side.close()
