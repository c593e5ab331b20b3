"""A proxy in front of an S3 server: counts the requests, and breaks those that a test names.

A request is broken before the server sees it, or after it was carried out, when its answer is kept back and the
connection closed; or it is answered with 503 SlowDown without being carried out.
"""

from __future__ import annotations

import http.client
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

Fault = Literal["before", "after", "slow down"]


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came in: `kind` is what S3 calls it, as far as it matters here."""

    method: str
    target: str

    @property
    def kind(self) -> str:
        query = parse_qs(urlsplit(self.target).query, keep_blank_values=True)
        if self.method == "GET":
            return "LIST" if "list-type" in query or "prefix" in query else "GET"
        if self.method == "POST":
            return "DELETE" if "delete" in query else "MULTIPART"
        return "MULTIPART" if "uploadId" in query else self.method


@dataclass(slots=True)
class Proxy:
    """`fault` says of every request whether and how it is broken; `gate` may hold a request up before."""

    url: str
    gate: Callable[[Request], object] = lambda _: None
    fault: Callable[[Request], Fault | None] = lambda _: None
    # What another store would do: not hear of a header, refuse a kind of request, say more, list nothing.
    deaf_to: frozenset[str] = frozenset()
    refuses: frozenset[str] = frozenset()
    adds: tuple[tuple[str, str], ...] = ()
    lists_nothing: bool = False
    requests: list[Request] = field(default_factory=list)
    broken: list[tuple[Fault, Request]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def counted(self) -> Counter[str]:
        with self.lock:
            return Counter(request.kind for request in self.requests)

    def forget(self) -> None:
        with self.lock:
            self.requests.clear()
            self.broken.clear()

    def judge(self, request: Request) -> Fault | None:
        with self.lock:
            self.requests.append(request)
            fault = self.fault(request)
            if fault is not None:
                self.broken.append((fault, request))
            return fault


def one_in(n: int) -> Callable[[Request], Fault | None]:
    """Breaks every nth request, in each of the three ways in turn."""
    seen = 0
    ways: tuple[Fault, ...] = ("after", "before", "slow down")

    def fault(_: Request) -> Fault | None:
        nonlocal seen
        seen += 1
        return None if seen % n else ways[seen // n % len(ways)]

    return fault


@contextmanager
def in_front_of(url: str) -> Iterator[Proxy]:
    """A proxy at a port of its own, until the block ends."""
    upstream = urlsplit(url)
    proxy = Proxy("")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            self.upstream = http.client.HTTPConnection(str(upstream.hostname), upstream.port)

        def finish(self) -> None:
            self.upstream.close()
            super().finish()

        def forward(self) -> None:
            if self.headers.get("Expect", "").lower() == "100-continue":
                self.send_response_only(100)
                self.end_headers()
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = Request(self.command, self.path)
            proxy.gate(request)
            fault = proxy.judge(request)
            if fault == "slow down":
                self._answer(503, [("Content-Type", "application/xml")], SLOW_DOWN)
                return
            if fault == "before":
                self.close_connection = True
                return
            if request.kind in proxy.refuses:
                self._answer(403, [("Content-Type", "application/xml")], ACCESS_DENIED)
                return
            status, headers, content = self._ask(body)
            headers += proxy.adds
            if proxy.lists_nothing and request.kind == "LIST":
                content = NOTHING
            if fault == "after":
                self.close_connection = True
                return
            self._answer(status, headers, content)

        def _ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
            self.upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("connection", "expect") and name.lower() not in proxy.deaf_to:
                    self.upstream.putheader(name, value)
            self.upstream.endheaders(body)
            answer = self.upstream.getresponse()
            return answer.status, answer.getheaders(), answer.read()

        def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
            self.send_response_only(status)
            length = str(len(content))
            for name, value in headers:
                if name.lower() == "content-length":
                    length = value if self.command == "HEAD" else length  # of a HEAD it is the object's
                elif name.lower() not in ("connection", "transfer-encoding", "keep-alive"):
                    self.send_header(name, value)
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = forward

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: the proxy keeps the requests itself."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that went away is what the tests do."""

    server = Server(("127.0.0.1", 0), Handler)
    proxy.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


NOTHING = (
    b'<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
    b"<Name>b</Name><Prefix></Prefix><KeyCount>0</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>"
    b"</ListBucketResult>"
)
ACCESS_DENIED = b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>AccessDenied</Code><Message>No.</Message></Error>'
SLOW_DOWN = (
    b'<?xml version="1.0" encoding="UTF-8"?>'
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)
