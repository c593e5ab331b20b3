"""A proxy in front of an S3 server: counts the requests, and breaks those that a test names.

before        the server never sees it, and the connection is closed
after         it is carried out, its answer is kept back, and the connection is closed
half          it is carried out, and the connection is closed in the middle of its answer
silent        it is carried out, and nobody answers until the client has gone
late          the connection is closed, and it is carried out when nobody waits for it any more (`Proxy.let_go`)
the others    it is not carried out, and answered with an error of S3's own
"""

from __future__ import annotations

import http.client
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime
from random import Random
from typing import Final, Literal, get_args
from urllib.parse import parse_qs, urlsplit

from tests.support.http_front import Between, FrontHandler, in_front

Broken = Literal["before", "after", "half", "silent", "late"]
Refusal = Literal[
    "slow down",
    "internal error",
    "conflict",
    "expired",
    "wrong secret",
    "no right",
    "clocks differ",
    "no checksum",
    "unknown header",
    "other region",
    "too slow",
]
Fault = Broken | Refusal

ANSWERS: Final[dict[str, tuple[int, str]]] = {
    "slow down": (503, "SlowDown"),
    "internal error": (500, "InternalError"),
    # Of a conditional put, while another request for the same name is under way: "retry the upload", says Amazon.
    "conflict": (409, "ConditionalRequestConflict"),
    "expired": (400, "ExpiredToken"),
    "wrong secret": (403, "SignatureDoesNotMatch"),
    "no right": (403, "AccessDenied"),
    "clocks differ": (403, "RequestTimeTooSkewed"),
    "no checksum": (400, "InvalidRequest"),
    "unknown header": (501, "NotImplemented"),
    "other region": (301, "PermanentRedirect"),
    "too slow": (400, "RequestTimeout"),
}
# What an answer has beside its word: Amazon's to a request whose time is too far from its own.
BESIDES: Final = {"RequestTimeTooSkewed": "<ServerTime>2026-01-01T00:20:00Z</ServerTime>"}
# What a client gets over by asking again, and soon: it would wait for the one that is silent.
PASSING: Final[tuple[Fault, ...]] = ("after", "before", "slow down", "half", "internal error")


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came in: `kind` is what S3 calls it, as far as it matters here; `token` is that of a session,
    which its headers have beside the key, `checksum` that of what is put."""

    method: str
    target: str
    token: str = ""
    checksum: str = ""

    @property
    def kind(self) -> str:
        query = parse_qs(urlsplit(self.target).query, keep_blank_values=True)
        if self.method == "GET":
            return "LIST" if "list-type" in query or "prefix" in query else "GET"
        if self.method == "POST":
            return "DELETE" if "delete" in query else "MULTIPART"
        return "MULTIPART" if "uploadId" in query else self.method


@dataclass(slots=True)
class Proxy(Between[Request, Fault]):
    # What another store would do: not hear of a header, refuse a kind of request, say more, list nothing.
    deaf_to: frozenset[str] = frozenset()
    refuses: frozenset[str] = frozenset()
    adds: tuple[tuple[str, str], ...] = ()
    adds_below: str = ""  # of a name that holds this
    lists_nothing: bool = False
    retains: bool = False  # what is to be deleted: said in the answer's body, with status 200
    clock: timedelta = timedelta()  # how far its clock is ahead of this machine's
    # So many objects are in one answer to a listing, where S3 has a thousand.
    page: int | None = None
    # What was given up, and is carried out all the same.
    under_way: list[Callable[[], int]] = field(default_factory=list)

    def let_go(self) -> list[int]:
        """Carry out what is still under way; what the server answers, which nobody hears."""
        with self.lock:
            late, self.under_way = self.under_way, []
        return [carry_out() for carry_out in late]


def one_in(n: int) -> Callable[[Request], Fault | None]:
    """Breaks every nth request, in each passing way in turn."""
    numbers = itertools.count(1)

    def fault(_: Request) -> Fault | None:
        number = next(numbers)
        return None if number % n else PASSING[number // n % len(PASSING)]

    return fault


def by_lot(seed: int, one_in: int, ways: Sequence[Fault] = PASSING) -> Callable[[Request], Fault | None]:
    """Breaks one request in so many, on average, in one of the ways; both drawn by lot. Only puts meet a conflict."""
    lots = Random(seed)

    def fault(request: Request) -> Fault | None:
        if lots.randrange(one_in) != 0:
            return None
        way = lots.choice(ways)
        return None if way == "conflict" and request.method != "PUT" else way

    return fault


def from_the(nth: int, how: Fault) -> Callable[[Request], Fault | None]:
    """Breaks the nth request and every one behind it, in one way."""
    numbers = itertools.count(1)
    return lambda _: how if next(numbers) >= nth else None


@contextmanager
def in_front_of(url: str, host: str = "127.0.0.1") -> Iterator[Proxy]:
    """A proxy at a port of its own, until the block ends; `host` is the address where it is reached."""
    upstream = urlsplit(url)
    proxy = Proxy()

    class Handler(FrontHandler):
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
            told = (self.headers.get(name, "") for name in ("x-amz-security-token", "x-amz-checksum-sha256"))
            request = Request(self.command, self.path, *told)
            proxy.gate(request)
            fault = proxy.judge(request)
            if fault is None and request.kind in proxy.refuses:
                fault = "no right"
            if fault in ANSWERS:
                self._refuse(*ANSWERS[fault])
                return
            if fault == "late":
                command, target, headers = self.command, self.path, self.headers.items()
                with proxy.lock:
                    proxy.under_way.append(lambda: self._carry_out(command, target, headers, body))
            if fault in ("before", "late"):
                self.close_connection = True
                return
            if proxy.retains and request.kind == "DELETE":
                self._answer(200, [("Content-Type", "application/xml")], _retained(body))
                return
            status, headers, content = self._ask(body)
            if proxy.adds_below in self.path:
                headers += proxy.adds
            if proxy.clock:
                headers, content = _by_clock(proxy.clock, headers, content)
            if proxy.lists_nothing and request.kind == "LIST":
                content = NOTHING
            if fault in get_args(Broken):
                self.close_connection = True
            if fault == "silent":
                self.connection.recv(1)  # nothing comes: it ends when the client closes the connection
            if fault in ("after", "silent") or (fault == "half" and not content):
                return
            self._answer(status, headers, content, half=fault == "half")

        def _refuse(self, status: int, code: str) -> None:
            said = (
                f"<Error><Code>{code}</Code><Message>{code}, says the proxy.</Message>{BESIDES.get(code, '')}</Error>"
            )
            content = b'<?xml version="1.0" encoding="UTF-8"?>' + said.encode()
            self._answer(status, [("Content-Type", "application/xml")], content)

        def _carry_out(self, command: str, target: str, headers: list[tuple[str, str]], body: bytes) -> int:
            server = http.client.HTTPConnection(str(upstream.hostname), upstream.port)
            kept = {name: value for name, value in headers if name.lower() not in ("connection", "expect")}
            try:
                server.request(command, target, body, kept)
                answer = server.getresponse()
                answer.read()
                return answer.status
            finally:
                server.close()

        def _ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
            target = self.path
            if proxy.page is not None and Request(self.command, target).kind == "LIST":
                target = f"{re.sub('&max-keys=[0-9]+', '', target)}&max-keys={proxy.page}"
            self.upstream.putrequest(self.command, target, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("connection", "expect") and name.lower() not in proxy.deaf_to:
                    self.upstream.putheader(name, value)
            self.upstream.endheaders(body)
            answer = self.upstream.getresponse()
            return answer.status, answer.getheaders(), answer.read()

        def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes, *, half: bool = False) -> None:
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
                self.wfile.write(content[: len(content) // 2] if half else content)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = forward

    with in_front(Handler, host) as url:
        proxy.url = url
        yield proxy


def _by_clock(lead: timedelta, headers: list[tuple[str, str]], content: bytes) -> tuple[list[tuple[str, str]], bytes]:
    """An answer with the times of a clock that is ahead by so much: of itself, and of objects, alone or in a list."""

    def listed(time: re.Match[bytes]) -> bytes:
        told = datetime.fromisoformat(time[1].decode()) + lead
        return f"<LastModified>{told:%Y-%m-%dT%H:%M:%S}.000Z</LastModified>".encode()

    shifted = [
        (name, format_datetime(parsedate_to_datetime(value) + lead, usegmt=True))
        if name.lower() in ("date", "last-modified")
        else (name, value)
        for name, value in headers
    ]
    if content.startswith(b"<?xml"):
        content = re.sub(rb"<LastModified>([^<]*)</LastModified>", listed, content)
    return shifted, content


def _retained(asked: bytes) -> bytes:
    """What a store with a retention says to a request that deletes several objects."""
    keys = re.findall(rb"<Key>[^<]*</Key>", asked)
    errors = b"".join(
        b"<Error>" + key + b"<Code>AccessDenied</Code><Message>retained</Message></Error>" for key in keys
    )
    return b'<?xml version="1.0" encoding="UTF-8"?><DeleteResult>' + errors + b"</DeleteResult>"


NOTHING = (
    b'<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
    b"<Name>b</Name><Prefix></Prefix><KeyCount>0</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>"
    b"</ListBucketResult>"
)
