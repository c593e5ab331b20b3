"""Google Cloud Storage's JSON API in front of the S3 server of the tests, as far as Google's connector for Hadoop
speaks it: what Spark does with a lake on gs://.

    POST   /token                                            a token for what a service account signed
    GET    /storage/v1/b/B                                   a bucket
    GET    /storage/v1/b/B/storageLayout                     it has names, and no folders of their own
    GET    /storage/v1/b/B/o ?prefix &delimiter &startOffset what lies in it
    GET    /storage/v1/b/B/o/O ?alt=media                    what is said of an object, or its bytes
    DELETE /storage/v1/b/B/o/O
    POST   /storage/v1/b/B/o/O/rewriteTo/b/B/o/P             a copy
    POST   /upload/storage/v1/b/B/o ?uploadType=multipart    an object
    POST   /upload/storage/v1/b/B/o ?uploadType=resumable    where to PUT one; the last bytes make it
    POST   /batch/storage/v1                                 several of these at once, of those without bytes

`ifGenerationMatch=0` becomes an "If-None-Match: *" of S3, any other an "If-Match". Google: "Cloud Storage JSON API",
"Resumable uploads", RFC 7523.
"""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.parser import BytesParser
from email.policy import HTTP
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from botocore.exceptions import ClientError

from tests.support.s3_server import S3Server

_NAMES: Final = "/storage/v1/b/"
_CONTENTS: Final = "/download/storage/v1/b/"
_UPLOADS: Final = "/upload/storage/v1/b/"
_BATCH: Final = "/batch/storage/v1"
TOKEN: Final = "/token"

# Of S3's refusals -> of Google's.
_REFUSED: Final = {
    "404": 404,
    "NoSuchKey": 404,
    "NoSuchBucket": 404,
    "PreconditionFailed": 412,
    "412": 412,
    "InvalidRange": 416,
    "ConditionalRequestConflict": 503,  # two at once: who is asked again says who won
}


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    content: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class _Refused(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status, reason)
        self.answer = _json({"error": {"code": status, "message": reason, "errors": [{"reason": reason}]}}, status)


@dataclass(slots=True)
class _Upload:
    """A resumable one: what it is to become, and what there is of it."""

    bucket: str
    name: str
    conditions: Mapping[str, str]
    content: bytearray = field(default_factory=bytearray)


@dataclass(slots=True)
class JsonApi:
    """`is_of_account` says whether the account signed an assertion."""

    server: S3Server
    is_of_account: Callable[[str], bool]
    _tokens: set[str] = field(default_factory=set)
    _uploads: dict[str, _Upload] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @staticmethod
    def serves(path: str) -> bool:
        return path.startswith((_NAMES, _CONTENTS, _UPLOADS, _BATCH, TOKEN))

    def answer(self, url: str, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """`url` is where the API is; `headers` have names in small letters."""
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        uri = urlsplit(path)
        query = dict(parse_qsl(uri.query, keep_blank_values=True))
        try:
            if uri.path == TOKEN:
                return self._token(body)
            if uri.path == _BATCH:
                return self._batch(url, headers, body)
            if headers.get("authorization", "").removeprefix("Bearer ") not in self._tokens:
                raise _Refused(401, "authError")
            if uri.path.startswith(_UPLOADS):
                return self._upload(url, uri.path.removeprefix(_UPLOADS), query, headers, body)
            return self._object(method, uri.path.removeprefix("/download").removeprefix(_NAMES), query, headers)
        except _Refused as refused:
            return refused.answer
        except ClientError as refused:
            code = refused.response["Error"]["Code"]
            return _Refused(_REFUSED.get(code, 500), code).answer

    def _token(self, body: bytes) -> Answer:
        if not self.is_of_account(dict(parse_qsl(body.decode())).get("assertion", "")):
            raise _Refused(401, "invalid_grant")
        token = f"of-the-tests-{next(self._numbers)}"
        self._tokens.add(token)
        return _json({"access_token": token, "token_type": "Bearer", "expires_in": 3600})

    def _batch(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Each part is a request, and its answer a part, in the same order."""
        answers = []
        for part in _parts(headers, body):
            head, _, content = bytes(part.get_payload(decode=True) or b"").partition(b"\r\n\r\n")
            line, *fields = head.decode().split("\r\n")
            method, target, _ = line.split(" ")
            own = {name.lower(): value for name, _, value in (each.partition(": ") for each in fields)}
            path = urlsplit(target)._replace(scheme="", netloc="").geturl()
            answer = self.answer(url, method, path, {**headers, **own}, content)
            lines = [
                "--of-the-tests",
                "Content-Type: application/http",
                f"Content-ID: response-{part['Content-ID']}",
                "",
                f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}",
                *(f"{name}: {value}" for name, value in answer.headers.items()),
                f"Content-Length: {len(answer.content)}",
                "",
                answer.content.decode(),
            ]
            answers.append("\r\n".join(lines))
        content_type = {"content-type": "multipart/mixed; boundary=of-the-tests"}
        return Answer(200, "\r\n".join([*answers, "--of-the-tests--", ""]).encode(), content_type)

    def _object(self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> Answer:
        bucket, _, below = path.partition("/")
        if not below:
            self.server.client().head_bucket(Bucket=bucket)
            return _json({"kind": "storage#bucket", "name": bucket, "timeCreated": "2026-01-01T00:00:00.000Z"})
        if below == "storageLayout":
            return _json({"kind": "storage#storageLayout", "hierarchicalNamespace": {"enabled": False}})
        if below == "o":
            return self._list(bucket, query)
        name, _, target = (unquote(part) for part in below.removeprefix("o/").partition("/rewriteTo/b/"))
        said = self._said_of(bucket, name)
        if target:
            to_bucket, _, to_name = target.partition("/o/")
            return self._copy(bucket, name, to_bucket, to_name, query)
        _must_match(said, query)
        if method == "DELETE":
            self.server.client().delete_object(Bucket=bucket, Key=name)
            return Answer(204)
        if query.get("alt") != "media":
            return _json(said)
        return self._content(bucket, name, headers)

    def _copy(self, bucket: str, name: str, into: str, new_name: str, query: Mapping[str, str]) -> Answer:
        only_new = {"IfNoneMatch": "*"} if query.get("ifGenerationMatch") == "0" else {}
        source = {"Bucket": bucket, "Key": name}
        self.server.client().copy_object(Bucket=into, Key=new_name, CopySource=source, **only_new)
        said = self._said_of(into, new_name)
        size = {"objectSize": said["size"], "totalBytesRewritten": said["size"]}
        return _json({"kind": "storage#rewriteResponse", "done": True, "resource": said, **size})

    def _list(self, bucket: str, query: Mapping[str, str]) -> Answer:
        """All of it as one page."""
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        items, prefixes = [], set()
        pages = self.server.client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        for entry in (entry for page in pages for entry in page.get("Contents", ())):
            name = entry["Key"]
            if name < query.get("startOffset", ""):
                continue
            folder, _, below = name.removeprefix(prefix).partition(delimiter) if delimiter else (name, "", "")
            is_below = bool(delimiter) and delimiter in name.removeprefix(prefix)
            if is_below:
                prefixes.add(f"{prefix}{folder}{delimiter}")
            if not is_below or (not below and query.get("includeTrailingDelimiter") == "true"):
                items.append(_said(bucket, name, entry["Size"], entry["ETag"], entry["LastModified"]))
        return _json({"kind": "storage#objects", "items": items, "prefixes": sorted(prefixes)})

    def _content(self, bucket: str, name: str, headers: Mapping[str, str]) -> Answer:
        wanted = {"Range": headers["range"]} if "range" in headers else {}
        got = self.server.client().get_object(Bucket=bucket, Key=name, **wanted)
        told = {"content-type": "application/octet-stream", "x-goog-generation": generation(got["ETag"])}
        if "ContentRange" in got:
            told["content-range"] = got["ContentRange"]
        return Answer(206 if "ContentRange" in got else 200, got["Body"].read(), told)

    def _upload(self, url: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes) -> Answer:
        bucket = path.partition("/")[0]
        if "upload_id" in query:
            return self._go_on(query["upload_id"], headers.get("content-range", ""), body)
        if query.get("uploadType") == "multipart":
            said, content = _parts(headers, body)
            name = query.get("name") or json.loads(said.get_content())["name"]
            return self._put(_Upload(bucket, name, query, bytearray(content.get_payload(decode=True) or b"")))
        name = query.get("name") or json.loads(body)["name"]
        upload = str(next(self._numbers))
        self._uploads[upload] = _Upload(bucket, name, query)
        return Answer(200, headers={"location": f"{url}{_UPLOADS}{bucket}/o?uploadType=resumable&upload_id={upload}"})

    def _go_on(self, upload_id: str, content_range: str, body: bytes) -> Answer:
        """`bytes 0-99/*`: more comes; `bytes 100-199/200`, or `bytes */200` without any: that was all."""
        upload = self._uploads[upload_id]
        place, _, total = content_range.removeprefix("bytes ").partition("/")
        if place not in ("", "*"):
            del upload.content[int(place.partition("-")[0]) :]
            upload.content += body
        if total == "*" or (total and len(upload.content) < int(total)):
            there = {"range": f"bytes=0-{len(upload.content) - 1}"} if upload.content else {}
            return Answer(308, headers=there)
        return self._put(upload)

    def _put(self, upload: _Upload) -> Answer:
        conditions = {}
        expected = upload.conditions.get("ifGenerationMatch")
        if expected == "0":
            conditions["IfNoneMatch"] = "*"
        elif expected is not None:
            said = self._said_of(upload.bucket, upload.name)
            _must_match(said, upload.conditions)
            conditions["IfMatch"] = said["etag"]
        self.server.client().put_object(Bucket=upload.bucket, Key=upload.name, Body=bytes(upload.content), **conditions)
        return _json(self._said_of(upload.bucket, upload.name))

    def _said_of(self, bucket: str, name: str) -> dict[str, Any]:
        head = self.server.client().head_object(Bucket=bucket, Key=name)
        return _said(bucket, name, head["ContentLength"], head["ETag"], head["LastModified"])


def _parts(headers: Mapping[str, str], body: bytes) -> list[EmailMessage]:
    head = f"Content-Type: {headers['content-type']}\r\n\r\n".encode()
    message = BytesParser(EmailMessage, policy=HTTP).parsebytes(head + body)
    return [part for part in message.iter_parts() if isinstance(part, EmailMessage)]


def generation(etag: str) -> str:
    """A number for what is stored: other bytes, another one."""
    return str(int.from_bytes(etag.encode()[:7]))


def _said(bucket: str, name: str, size: int, etag: str, written: Any) -> dict[str, Any]:
    at = written.strftime("%Y-%m-%dT%H:%M:%S.000Z")
    return {
        "kind": "storage#object",
        "bucket": bucket,
        "name": name,
        "size": str(size),
        "generation": generation(etag),
        "metageneration": "1",
        "etag": etag,
        "contentType": "application/octet-stream",
        "timeCreated": at,
        "updated": at,
    }


def _must_match(said: Mapping[str, Any], query: Mapping[str, str]) -> None:
    for condition in ("ifGenerationMatch", "generation"):
        if query.get(condition, said["generation"]) != said["generation"]:
            raise _Refused(412 if condition == "ifGenerationMatch" else 404, "conditionNotMet")


def _json(content: Mapping[str, Any], status: int = 200) -> Answer:
    return Answer(status, json.dumps(content).encode(), {"content-type": "application/json; charset=UTF-8"})
