"""What stands between a client and the object store of the tests: an HTTP server on a thread of its own."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


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
