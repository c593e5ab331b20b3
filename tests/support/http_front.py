"""What stands between a client and the object store of the tests: an HTTP server on a thread of its own."""

from __future__ import annotations

import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Generic, Protocol, TypeVar


class OneRequest(Protocol):
    @property
    def kind(self) -> str:
        """What the store calls it, as far as it matters to a test."""


RequestT = TypeVar("RequestT", bound=OneRequest)
FaultT = TypeVar("FaultT", bound=str)


@dataclass(slots=True)
class Between(Generic[RequestT, FaultT]):
    """Counts what is asked, and breaks what a test names: `fault` says of every request whether and how, `gate` may
    hold one up before."""

    url: str = ""
    gate: Callable[[RequestT], object] = lambda _: None
    fault: Callable[[RequestT], FaultT | None] = lambda _: None
    requests: list[RequestT] = field(default_factory=list)
    broken: list[tuple[FaultT, RequestT]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def counted(self) -> Counter[str]:
        with self.lock:
            return Counter(request.kind for request in self.requests)

    def forget(self) -> None:
        """What was; what is to be broken stays so."""
        with self.lock:
            self.requests.clear()
            self.broken.clear()

    def judge(self, request: RequestT) -> FaultT | None:
        with self.lock:
            self.requests.append(request)
            fault = self.fault(request)
            if fault is not None:
                self.broken.append((fault, request))
            return fault


class FrontHandler(BaseHTTPRequestHandler):
    """Says nothing of requests: those in front keep what they need."""

    # With one a client may speak TLS or not, at the same port.
    context: ssl.SSLContext | None = None
    BEGINS_TLS = b"\x16"  # the first byte of a handshake (RFC 8446, 5.1)

    def setup(self) -> None:
        if self.context is not None and self.request.recv(1, socket.MSG_PEEK) == self.BEGINS_TLS:
            self.request = self.context.wrap_socket(self.request, server_side=True)
        super().setup()

    def body(self) -> bytes:
        """What came with the request, in one piece or in chunks (RFC 9112, 7.1)."""
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            """Fields behind the last chunk."""
        return b"".join(chunks)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away, and answers that break off, are what the tests do."""


@contextmanager
def in_front(handler: type[FrontHandler], host: str = "127.0.0.1") -> Iterator[str]:
    """Serve until the block ends; the URL."""
    server = _Server((host, 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
