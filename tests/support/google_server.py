"""Google Cloud Storage in front of the S3 server of the tests: its XML API, as far as obstore speaks it, and its JSON
API (tests/support/google_json.py), as far as Hadoop's connector does, for which it is a proxy that has a certificate of
Google's name.

Outside of Google nobody has both: of two emulators neither takes the XML API's uploads. Here each request becomes one
of S3's: the token of a service account, which is checked with its key, a signature; "x-goog-if-generation-match: 0" an
"If-None-Match: *"; metadata are renamed; and what is stored has a generation. So it shows how clients work with
Google's protocol, and nothing of what Google's servers do. Google: "XML API reference"; RFC 7519.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import jwt
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.support import certificates
from tests.support.google_json import TOKEN, Answer, JsonApi, generation
from tests.support.http_front import FrontHandler, in_front
from tests.support.s3_server import KEY, REGION, SECRET, S3Server
from tidemark.config import PipelineConfig
from tidemark.config.airflow_connections import Connection
from tidemark.storage.lake_access import GOOGLE_KEY_FILE, LakeAccess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.capture import Environment

HOST: Final = "storage.googleapis.com"  # the only one that Hadoop's connector goes to
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

    def put_lake(self, environment: Environment) -> None:
        """Give a pipeline a lake in a bucket of its own, and let the session's driver in."""
        environment.config = self.in_new_bucket(environment.config)
        environment.buckets = self.server
        let_in(environment.spark(), environment.config.lake, environment.config.lake_access)

    def access(self, lake: str, key: str | None = None) -> LakeAccess:
        """What a connection of type google_cloud_platform holds, and where the store is, which no connection says."""
        of_account = key or account(token_uri=f"{self.url}{TOKEN}")
        connection = Connection("lake", "google_cloud_platform", extra={"keyfile_dict": of_account})
        of_connection = connection.lake_access(lake)
        return LakeAccess({**of_connection.settings, "base_url": self.url}, of_connection.secrets)


def let_in(spark: SparkSession, lake: str, lake_access: LakeAccess) -> None:
    """Tell a driver how the lake is got at, as spark-submit and the driver's environment would, and that Google is
    here: its JVM goes there by a proxy and knows a certificate."""
    folder = Path(spark.sparkContext.getConf().get("spark.local.dir"))
    settings = {
        **{k.removeprefix("spark.hadoop."): v for k, v in lake_access.spark_settings(lake).items()},
        # Its variable is for a JVM that is not running yet.
        "fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE",
        "fs.gs.auth.service.account.json.keyfile": lake_access.driver_environment(folder)[GOOGLE_KEY_FILE],
    }
    for key, value in settings.items():
        spark.sparkContext._jsc.hadoopConfiguration().set(key, value)
    certificates.trust(spark, certificates.made_for(HOST))
    proxy = urlsplit(lake_access.settings["base_url"])
    properties = {
        "https.proxyHost": str(proxy.hostname),
        "https.proxyPort": str(proxy.port),
    }
    for key, value in properties.items():
        spark.sparkContext._jvm.java.lang.System.setProperty(key, value)


def account(private_key: RSAPrivateKey | None = None, token_uri: str | None = None) -> str:
    """A service account's key file. With `token_uri` a client gets tokens there, without it may sign its own."""
    pem = (private_key or _key()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    key = {"type": "service_account", "client_id": "1", "client_email": EMAIL, "private_key_id": "of-the-tests"}
    return json.dumps({**key, "private_key": pem, **({"token_uri": token_uri} if token_uri else {})})


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
    json_api = JsonApi(server, _is_of_account)

    class Handler(FrontHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            body = self.body()
            google.asked.append(f"{self.command} {unquote(self.path)}")
            if json_api.serves(self.path):
                headers = {name.lower(): value for name, value in self.headers.items()}
                self._send(json_api.answer(google.url, self.command, self.path, headers, body))
                return
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

        def _send(self, answer: Answer) -> None:
            self._answer(answer.status, dict(answer.headers), answer.content)

        def do_CONNECT(self) -> None:
            """A client goes to Google by this proxy: go on as Google, behind TLS."""
            self._answer(200, {}, b"")
            self.wfile.flush()
            self.connection = certificates.made_for(HOST).context.wrap_socket(self.connection, server_side=True)
            self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", 0)

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
        headers["x-goog-generation"] = generation(headers["etag"])
    return headers


def _said(code: str) -> bytes:
    return f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code></Error>".encode()
