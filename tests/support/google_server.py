"""Google Cloud Storage's XML API in front of the S3 server of the tests, as far as obstore speaks it.

Outside of Google nobody has that API whole: of two emulators neither takes its uploads. Here each request becomes one
of S3's: the token of a service account, which is checked with its key, a signature; "x-goog-if-generation-match: 0" an
"If-None-Match: *"; metadata are renamed; and what is stored has a generation. So it shows how Tidemark's client works
with Google's protocol, and nothing of what Google's servers do. Google: "XML API reference"; RFC 7519.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import jwt
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.support.http_front import FrontHandler, in_front
from tests.support.s3_server import KEY, REGION, SECRET, S3Server
from tidemark.config import PipelineConfig
from tidemark.connections import Connection
from tidemark.lake_access import LakeAccess

EMAIL: Final = "tidemark@tests.iam.gserviceaccount.com"
# Of Google's headers -> of S3's; prefixes of names that go on.
_PREFIXES: Final = (("x-goog-meta-", "x-amz-meta-"),)
_HANDED_ON: Final = ("content-type", "range", "if-match", "if-none-match")


@dataclass(slots=True)
class Google:
    """`server` has the buckets; `asked` holds what came in, as "PUT /bucket/key"."""

    server: S3Server
    url: str = ""
    asked: list[str] = field(default_factory=list)

    def in_new_bucket(self, config: PipelineConfig) -> PipelineConfig:
        """The same pipeline with a lake in a bucket of its own."""
        lake = f"gs://{self.server.new_bucket()}/lake"
        return replace(config, lake=lake, lake_access=self.access(lake))

    def access(self, lake: str, key: str | None = None) -> LakeAccess:
        """What a connection of type google_cloud_platform holds, and where the store is, which no connection says."""
        connection = Connection("lake", "google_cloud_platform", extra={"keyfile_dict": key or account()})
        of_connection = connection.lake_access(lake)
        return LakeAccess({**of_connection.settings, "base_url": self.url}, of_connection.secrets)


def account(private_key: RSAPrivateKey | None = None) -> str:
    """A service account's key file."""
    pem = (private_key or _key()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return json.dumps(
        {"type": "service_account", "client_email": EMAIL, "private_key_id": "of-the-tests", "private_key": pem}
    )


@cache
def _key() -> RSAPrivateKey:
    return another_key()


def another_key() -> RSAPrivateKey:
    return generate_private_key(public_exponent=65537, key_size=2048)


@contextmanager
def in_front_of(server: S3Server, url: str | None = None) -> Iterator[Google]:
    """Google's protocol at a port of its own, until the block ends, for the buckets of an S3 server, which is asked at
    `url`, where one is given."""
    upstream = urlsplit(url or server.url)
    google = Google(server)

    class Handler(FrontHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            google.asked.append(f"{self.command} {unquote(self.path)}")
            if not _is_of_account(self.headers.get("Authorization", "")):
                self._answer(401, {}, _said("AuthenticationRequired"))
                return
            match = self.headers.get("x-goog-if-generation-match", "0")
            if match != "0":
                self._answer(400, {}, _said("NotOfTheseTests"))
                return
            behind = http.client.HTTPConnection(str(upstream.hostname), upstream.port)
            try:
                target = _target(self.path)
                behind.request(self.command, target, body, self._as_of_s3(target, body))
                answer = behind.getresponse()
                content = answer.read()
            finally:
                behind.close()
            self._answer(answer.status, _as_of_google(dict(answer.getheaders())), content)

        def _as_of_s3(self, target: str, body: bytes) -> dict[str, str]:
            headers = {}
            for name, value in ((name.lower(), value) for name, value in self.headers.items()):
                if name in _HANDED_ON:
                    headers[name] = value
                elif name == "x-goog-if-generation-match":
                    headers["if-none-match"] = "*"
                for of_google, of_s3 in _PREFIXES:
                    if name.startswith(of_google):
                        headers[of_s3 + name.removeprefix(of_google)] = value
            request = AWSRequest(self.command, f"http://{upstream.netloc}{target}", headers, body)
            S3SigV4Auth(Credentials(KEY, SECRET), "s3", REGION).add_auth(request)
            return dict(request.headers.items())

        def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
            self.send_response_only(status)
            of_head = self.command == "HEAD"
            self.send_header("Content-Length", headers.pop("content-length", "0") if of_head else str(len(content)))
            headers.pop("content-length", None)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            if not of_head:
                self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = forward

    with in_front(Handler) as url:
        google.url = url
        yield google


def _is_of_account(authorization: str) -> bool:
    """Whether the account signed the token by itself, as Google takes it."""
    try:
        claims = jwt.decode(
            authorization.removeprefix("Bearer "),
            _key().public_key(),
            algorithms=["RS256"],
            options={"verify_aud": False, "require": ["exp", "iat"]},
        )
    except jwt.InvalidTokenError:
        return False
    return bool(claims["iss"] == EMAIL)


def _target(path: str) -> str:
    """As S3's signature wants it: obstore encodes every character of a name, slashes too."""
    uri = urlsplit(path)
    query = urlencode(parse_qsl(uri.query, keep_blank_values=True), quote_via=quote, safe="-_.~")
    return quote(unquote(uri.path), safe="/-_.~") + (f"?{query}" if query else "")


def _as_of_google(of_s3: dict[str, str]) -> dict[str, str]:
    headers = {}
    for name, value in ((name.lower(), value) for name, value in of_s3.items()):
        if name in ("content-length", "content-type", "content-range", "etag", "last-modified", "accept-ranges"):
            headers[name] = value
        for of_google, prefix in _PREFIXES:
            if name.startswith(prefix):
                headers[of_google + name.removeprefix(prefix)] = value
    if "etag" in headers:
        headers["x-goog-generation"] = str(int.from_bytes(headers["etag"].encode()[:7]))
    return headers


def _said(code: str) -> bytes:
    return f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code></Error>".encode()
