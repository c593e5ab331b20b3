"""Azure's other endpoint, of an account with a hierarchical namespace, on the blobs of Azurite: as far as Hadoop's
client speaks it.

    HEAD   /C/?action=getAccessControl                there is one: the account has a namespace
    GET    /C?resource=filesystem &directory          what lies in a folder
    PUT    /C/P?resource=file|directory               a file without content, or a folder
    PATCH  /C/P?action=append &position               bytes that nobody sees yet
    PATCH  /C/P?action=flush &position                now they are seen
    HEAD   /C/P                                       what is said of a file or a folder
    GET    /C/P                                       a file's bytes, or some of them
    PUT    /C/P with x-ms-rename-source               a rename
    DELETE /C/P ?recursive

A rename is one step, and refused where there is a file ("If-None-Match: *"): that is Azure's promise, which Hadoop's
client and Delta's log store rest on. So this shows how they work with it, and nothing of what Azure's servers do. It
does not ask who asks: Azurite does, for an account without a namespace. Azure: "Data Lake Storage Gen2 REST API, Path".
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import format_datetime
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import NotFoundError
from obstore.store import AzureStore

from tests.support.azure_front import ACCOUNT, Answer, Request

# Of what is stored: it is a folder; who renamed it, which a client whose answer was lost asks for.
_FOLDER: Final = "hdi_isfolder"
_RENAMED_BY: Final = "renamedby"
_TRANSACTION: Final = "x-ms-client-transaction-id"


class _Refused(Exception):
    def __init__(self, status: int, code: str) -> None:
        super().__init__(status, code)
        said = json.dumps({"error": {"code": code, "message": f"{code}, say the tests."}})
        headers = {"Content-Type": "application/json", "x-ms-error-code": code}
        self.answer = Answer(status, headers, said.encode())


@dataclass(slots=True)
class Namespace:
    """`endpoint` is Azurite's account; `key` its key."""

    endpoint: str
    key: str
    _unseen: dict[str, bytearray] = field(default_factory=dict)
    # One at a time: what asks for a name and what makes it are two requests to Azurite.
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stores: dict[str, Any] = field(default_factory=dict)
    # Folders that came with what was put into them, as "container/name": they stay when that is gone.
    _folders: set[str] = field(default_factory=set)

    def answer(self, request: Request, body: bytes) -> Answer | None:
        """None for the Blob protocol, which such an account speaks too, and by which a folder is something, too."""
        container, _, path = request.path.partition("/")
        if "x-ms-client-request-id" not in request.headers:  # not Hadoop's client
            return self._by_blobs(container, path, request, body)
        try:
            with self._lock:
                return self._answer(container, path, request, body)
        except _Refused as refused:
            return refused.answer

    def _by_blobs(self, container: str, path: str, request: Request, body: bytes) -> Answer | None:
        if request.method == "HEAD" and path and self._is_folder(container, path):
            return self._said(container, path)
        if request.method == "PUT" and path:
            with self._lock:
                self._folders |= set(_above(f"{container}/{path}"))
        if request.query.get("comp") == "batch":
            return self._delete_several(body)
        return None

    def _delete_several(self, body: bytes) -> Answer | None:
        """None where no folder is among them. One that is not empty is refused."""
        asked = _ASKED.findall(body.decode())
        names = {number: unquote(urlsplit(target).path).removeprefix(f"/{ACCOUNT}")[1:] for number, target in asked}
        with self._lock:
            if not self._folders & set(names.values()):
                return None
            answers = [
                f"--tests\r\nContent-Type: application/http\r\nContent-ID: {number}\r\n\r\n"
                f"HTTP/1.1 {self._deleted(name)} OF_THE_TESTS\r\n\r\n\r\n"
                for number, name in names.items()
            ]
        content = "".join([*answers, "--tests--\r\n"]).encode()
        return Answer(202, {"Content-Type": "multipart/mixed; boundary=tests"}, content)

    def _deleted(self, name: str) -> int:
        container, _, path = name.partition("/")
        if name not in self._folders:
            is_there = self._found(container, path) is not None
            obstore.delete(self._store(container), [path])
            return 202 if is_there else 404
        if self._below(container, path) or any(folder.startswith(f"{name}/") for folder in self._folders):
            return 409
        self._folders.remove(name)
        return 202

    def amend(self, request: Request, answer: Answer) -> Answer:
        """A list by the Blob protocol, with the folders that are empty."""
        query, container = request.query, request.path.partition("/")[0]
        if query.get("comp") != "list" or "delimiter" not in query:
            return answer
        prefix = f"{container}/{query.get('prefix', '')}"
        with self._lock:
            below = {f for f in self._folders if f.startswith(prefix) and "/" not in f.removeprefix(prefix)}
        content = answer.content.decode()
        elements = [f"<BlobPrefix><Name>{folder.partition('/')[2]}/</Name></BlobPrefix>" for folder in sorted(below)]
        missing = "".join(element for element in elements if element not in content)
        listed = content.replace("<Blobs/>", "<Blobs></Blobs>").replace("</Blobs>", f"{missing}</Blobs>")
        return Answer(answer.status, answer.headers, listed.encode())

    def _answer(self, container: str, path: str, request: Request, body: bytes) -> Answer:
        query = request.query
        method = request.headers.get("x-http-method-override", request.method)
        if query.get("action") == "getAccessControl":
            return Answer(200, {"x-ms-acl": "user::rwx,group::r-x,other::---", **_OWNER})
        if method == "GET" and query.get("resource") == "filesystem":
            return self._list(container, query)
        if method == "GET":
            return self._read(container, path, request.headers)
        if method == "HEAD":
            return self._said(container, path)
        if method == "DELETE":
            return self._delete(container, path)
        if query.get("action") == "append":
            self._append(f"{container}/{path}", int(query["position"]), body)
            return Answer(202)
        if query.get("action") == "flush":
            return self._flush(container, path)
        if "x-ms-rename-source" in request.headers:
            return self._rename(container, path, request.headers)
        if query.get("resource") in ("file", "directory"):
            return self._create(container, path, query["resource"] == "directory", request.headers)
        raise _Refused(501, "NotOfTheseTests")

    def _store(self, container: str) -> Any:
        if container not in self._stores:
            self._stores[container] = AzureStore(
                container,
                config={"account_name": ACCOUNT, "account_key": self.key, "endpoint": self.endpoint},
                client_options={"allow_http": True},
            )
        return self._stores[container]

    def _found(self, container: str, path: str) -> Any:
        """obstore's answer for a file or a folder that somebody made; None if there is none."""
        try:
            return obstore.get(self._store(container), path, options={"head": True})
        except (NotFoundError, FileNotFoundError):
            return None

    def _is_folder(self, container: str, path: str) -> bool:
        found = self._found(container, path)
        if found is not None:
            return found.attributes.get(_FOLDER) == "true"
        return not path or f"{container}/{path}" in self._folders or bool(self._below(container, path))

    def _below(self, container: str, path: str) -> list[str]:
        prefix = f"{path}/" if path else None
        return [str(entry["path"]) for page in obstore.list(self._store(container), prefix) for entry in page]

    def _said(self, container: str, path: str) -> Answer:
        found = self._found(container, path) if path else None
        if found is None or found.attributes.get(_FOLDER) == "true":
            if not self._is_folder(container, path):
                raise _Refused(404, "PathNotFound")
            return Answer(200, {**_OWNER, "x-ms-resource-type": "directory", "Content-Length": "0", **_OF_NO_FILE})
        transaction = found.attributes.get(_RENAMED_BY)
        return Answer(
            200,
            {
                **_OWNER,
                **_of_file(found.meta),
                "x-ms-resource-type": "file",
                "Content-Length": str(found.meta["size"]),
                **({_TRANSACTION: transaction} if transaction else {}),
            },
        )

    def _list(self, container: str, query: Mapping[str, str]) -> Answer:
        folder = query.get("directory", "").strip("/")
        if not self._is_folder(container, folder):
            raise _Refused(404, "PathNotFound")
        listed = obstore.list_with_delimiter(self._store(container), folder or None)
        names = {str(prefix): {"isDirectory": "true", "contentLength": "0"} for prefix in listed["common_prefixes"]}
        for entry in listed["objects"]:
            name = str(entry["path"])
            is_folder = not entry["size"] and self._is_folder(container, name)
            of_folder = {"isDirectory": "true"} if is_folder else {}
            names[name] = {
                **of_folder,
                "contentLength": str(entry["size"]),
                "etag": str(entry["e_tag"]),
                "lastModified": format_datetime(entry["last_modified"], usegmt=True),
            }
        of_all = {"lastModified": _OF_NO_FILE["Last-Modified"], "owner": "o", "group": "g", "permissions": "rwxr-x---"}
        paths = [{**of_all, "name": name, **said} for name, said in sorted(names.items())]
        return Answer(200, {"Content-Type": "application/json"}, json.dumps({"paths": paths}).encode())

    def _read(self, container: str, path: str, headers: Mapping[str, str]) -> Answer:
        found = self._found(container, path)
        if found is None:
            raise _Refused(404, "PathNotFound")
        if not _matches(found.meta, headers):
            raise _Refused(412, "ConditionNotMet")
        first, _, last = headers.get("range", "bytes=0-").removeprefix("bytes=").partition("-")
        size = int(found.meta["size"])
        begin, end = int(first), min(int(last or size - 1) + 1, size)
        if begin >= size:
            raise _Refused(416, "InvalidRange")
        content = obstore.get_range(self._store(container), path, start=begin, end=end).to_bytes()
        of_range = {"Content-Range": f"bytes {begin}-{end - 1}/{size}"}
        return Answer(206, {**_of_file(found.meta), **of_range}, content)

    def _create(self, container: str, path: str, is_folder: bool, headers: Mapping[str, str]) -> Answer:
        found = self._found(container, path)
        if is_folder and self._is_folder(container, path):
            return Answer(201, _OF_NO_FILE)
        if found is not None and headers.get("if-none-match") == "*":
            raise _Refused(409, "PathAlreadyExists")
        if "if-match" in headers and (found is None or not _matches(found.meta, headers)):
            raise _Refused(412, "ConditionNotMet")
        if is_folder != self._is_folder(container, path) and found is not None:
            raise _Refused(409, "PathConflict")
        self._unseen.pop(f"{container}/{path}", None)
        obstore.put(
            self._store(container),
            path,
            b"",
            attributes={_FOLDER: "true"} if is_folder else {},
            use_multipart=False,
        )
        return Answer(201, _of_file(self._found(container, path).meta))

    def _append(self, name: str, position: int, body: bytes) -> None:
        unseen = self._unseen.setdefault(name, bytearray())
        unseen.extend(bytes(max(0, position + len(body) - len(unseen))))
        unseen[position : position + len(body)] = body

    def _flush(self, container: str, path: str) -> Answer:
        if self._found(container, path) is None:
            raise _Refused(404, "PathNotFound")
        unseen = self._unseen.pop(f"{container}/{path}", None)
        if unseen is not None:
            obstore.put(self._store(container), path, bytes(unseen), use_multipart=False)
        return Answer(200, _of_file(self._found(container, path).meta))

    def _rename(self, container: str, path: str, headers: Mapping[str, str]) -> Answer:
        """A file alone: nobody here renames folders."""
        source = unquote(urlsplit(headers["x-ms-rename-source"]).path).strip("/").removeprefix(f"{container}/")
        store, found = self._store(container), self._found(container, source)
        if found is None:
            raise _Refused(404, "SourcePathNotFound")
        if headers.get("if-none-match") == "*" and self._found(container, path) is not None:
            raise _Refused(409, "PathAlreadyExists")
        if not self._is_folder(container, path.rpartition("/")[0]):
            raise _Refused(404, "RenameDestinationParentPathNotFound")
        content = obstore.get(store, source).bytes().to_bytes()
        told = {_RENAMED_BY: headers[_TRANSACTION]} if _TRANSACTION in headers else {}
        obstore.put(store, path, content, attributes=told, use_multipart=False)
        obstore.delete(store, source)
        return Answer(201)

    def _delete(self, container: str, path: str) -> Answer:
        names = self._below(container, path)
        if self._found(container, path) is not None:
            names.append(path)
        if not names:
            raise _Refused(404, "PathNotFound")
        obstore.delete(self._store(container), names)
        return Answer(200)


# A part of a request that deletes several: its number, and what it deletes.
_ASKED: Final = re.compile(r"Content-ID: *(\d+)\s+DELETE (\S+) HTTP", re.I)
_OWNER: Final = {"x-ms-owner": "o", "x-ms-group": "g", "x-ms-permissions": "rwxr-x---"}
_OF_NO_FILE: Final = {"ETag": '"0x0"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}


def _above(name: str) -> Iterator[str]:
    """The folders that a name lies in, "container/…"; the container is none."""
    while "/" in (name := name.rpartition("/")[0]):
        yield name


def _matches(meta: Mapping[str, Any], headers: Mapping[str, str]) -> bool:
    """A list has ETags without quotes, and a client asks with either."""
    etag = str(meta["e_tag"])
    return headers.get("if-match", etag).strip('"') == etag.strip('"')


def _of_file(meta: Mapping[str, Any]) -> dict[str, str]:
    return {"ETag": str(meta["e_tag"]), "Last-Modified": format_datetime(meta["last_modified"], usegmt=True)}
