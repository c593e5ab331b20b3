"""Azure's storage in front of Azurite, as Hadoop's client asks for it: by TLS, with an account that has no hierarchical
namespace or, translated (tests/support/azure_dfs.py), with one that has.

Azurite speaks the Blob protocol alone. Hadoop's client asks an account's other endpoint once which kind it is; with a
"400" it goes on by blobs. What it asks then goes to Azurite as it is, signature and all, and so does what Tidemark's
own client asks. Azure: "Blob service REST API"; Hadoop: "ABFS, Blob endpoint".
"""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.support import certificates
from tests.support.http_front import Between, FrontHandler, in_front

ACCOUNT: Final = "devstoreaccount1"

# before    the store never sees it, and the connection is closed
# after     it is carried out, its answer is kept back, and the connection is closed
# the others are not carried out, and answered with an error of Azure's own
Fault = Literal["before", "after", "busy", "internal error", "throttled", "wrong signature", "no right", "expired"]
ANSWERS: Final[Mapping[str, tuple[int, str]]] = {
    "busy": (503, "ServerBusy"),
    "throttled": (429, "TooManyRequests"),
    "internal error": (500, "InternalError"),
    "wrong signature": (403, "AuthenticationFailed"),
    "no right": (403, "AuthorizationPermissionMismatch"),
    "expired": (401, "InvalidAuthenticationInfo"),
}
PASSING: Final[tuple[Fault, ...]] = ("before", "after", "busy", "internal error")


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)  # with names in small letters

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.target).query, keep_blank_values=True))

    @property
    def path(self) -> str:
        """Below the account: "container/name", without what is encoded."""
        return unquote(urlsplit(self.target).path).removeprefix(f"/{ACCOUNT}").strip("/")

    @property
    def kind(self) -> str:
        """What Azure calls it, as far as it matters here."""
        if self.method == "PUT" and "x-ms-rename-source" in self.headers:
            return "RENAME"
        if self.method == "PUT" and "x-ms-copy-source" in self.headers:
            return "COPY"
        of_query = self.query.get("comp") or self.query.get("action") or self.query.get("resource")
        return f"{self.method} {of_query}" if of_query else self.method


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes = b""


@dataclass(slots=True)
class Front(Between[Request, Fault]):
    """`translate` answers what Azurite does not know, `amend` its answers."""

    translate: Callable[[Request, bytes], Answer | None] = lambda _request, _body: None
    amend: Callable[[Request, Answer], Answer] = lambda _, answer: answer

    def begin_anew(self) -> None:
        """Forget what was, and break nothing any more."""
        self.forget()
        with self.lock:
            self.gate, self.fault = lambda _: None, lambda _: None


@contextmanager
def in_front_of(azurite: str) -> Iterator[Front]:
    """At a port of its own, with TLS and without, until the block ends."""
    upstream = urlsplit(azurite)
    front = Front()

    class Handler(FrontHandler):
        protocol_version = "HTTP/1.1"
        context = certificates.made_for().context

        def forward(self) -> None:
            if self.headers.get("Expect", "").lower() == "100-continue":
                self.send_response_only(100)
                self.end_headers()
            body = self.body()
            request = Request(self.command, self.path, {name.lower(): value for name, value in self.headers.items()})
            front.gate(request)
            fault = front.judge(request)
            if fault in ANSWERS:
                self._answer(error(*ANSWERS[fault]))
                return
            answer = (
                None if fault == "before" else front.translate(request, body) or front.amend(request, self._ask(body))
            )
            if answer is None or fault == "after":
                self.close_connection = True
                return
            self._answer(answer)

        def _ask(self, body: bytes) -> Answer:
            azurite = http.client.HTTPConnection(str(upstream.hostname), upstream.port)
            try:
                azurite.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    if name.lower() not in ("connection", "expect", "transfer-encoding"):
                        azurite.putheader(name, value)
                azurite.endheaders(body or None)
                answer = azurite.getresponse()
                return Answer(answer.status, dict(answer.getheaders()), answer.read())
            finally:
                azurite.close()

        def _answer(self, answer: Answer) -> None:
            self.send_response_only(answer.status)
            length = str(len(answer.content))
            for name, value in answer.headers.items():
                if name.lower() == "content-length":
                    length = value if self.command == "HEAD" else length  # of a HEAD it is the blob's
                elif name.lower() == "x-ms-copy-source":  # the real one has the account in its name
                    self.send_header(name, value.replace(f"/{ACCOUNT}/", "/"))
                elif name.lower() not in ("connection", "transfer-encoding", "keep-alive"):
                    self.send_header(name, value)
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.content)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = do_PATCH = forward

    with in_front(Handler) as url:
        front.url = url
        yield front


def without_namespace(request: Request, _: bytes) -> Answer | None:
    """Of an account without hierarchical namespace: it has no access control."""
    if request.query.get("action") == "getAccessControl":
        return error(400, "HierarchicalNamespaceNotEnabled")
    return None


def error(status: int, code: str) -> Answer:
    said = f"<Error><Code>{code}</Code><Message>{code}, says the front.</Message></Error>"
    headers = {"Content-Type": "application/xml", "x-ms-error-code": code}
    return Answer(status, headers, b'<?xml version="1.0" encoding="utf-8"?>' + said.encode())
