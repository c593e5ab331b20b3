"""Implements `store.Files` on S3, Google Cloud Storage and Azure, through obstore.

A put is durable when it returns, and no reader gets a partial object, so nothing is synced or renamed. A new object is
put only if none exists ("If-None-Match: *"). If the response of a successful put is lost, the repeated put is refused.
So every object has its writer's id in its metadata, and a refused writer compares it.

An incomplete file is a nameless file on this machine's disk. A complete file is uploaded while the task continues, a
few at the same time, and `sync_folders` waits for them. A file closed before its completion is not uploaded. Memory is
bounded by UPLOADS times the size of a file.

Tested on servers of S3's protocol, on Azure's emulator, and with Google's protocol translated for an S3 server.
"""

from __future__ import annotations

import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from io import BytesIO, RawIOBase
from typing import IO, Any, Final, TypeVar, cast
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen
from uuid import uuid4

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import from_url

from tidemark.errors import LakeRefused, LakeUnfit, LakeUnreachable
from tidemark.storage.lake_access import LakeAccess

FILE_BYTES: Final = 64 * 2**20
UPLOADS: Final = 4
IN_MEMORY_BYTES: Final = 2**20
Answer = TypeVar("Answer")
WRITER: Final = "tidemarkwriter"  # letters alone: Azure takes no other name
# One request, and all tries of one operation together. obstore tries again by itself what failed or was told to slow
# down; what is left to us is a put whose connection broke, which it does not dare to repeat.
REQUEST_S: Final = 60
RETRIES_S: Final = 180
PUTS: Final = 4
# An address that is signed counts from this machine's clock, and the store's may be minutes ahead of it.
SIGNED_FOR: Final = timedelta(hours=1)
PAUSE_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class BucketTraits:
    """Traits of a bucket: whether it keeps versions; until when it locks written objects, "" if it does not; which
    lifecycle rules will delete objects, each with an example, None if they could not be read; and whether folders
    exist by themselves (Azure's hierarchical namespace) or only as prefixes of names."""

    versioned: bool
    locked: str
    expires: Mapping[str, str] | None
    has_folders: bool = False


class ObjectStoreFiles:
    """Stores files as objects. `root` is the lake's URI."""

    file_bytes = FILE_BYTES

    def __init__(self, root: str, access: LakeAccess) -> None:
        self._root = root
        self._store = _open(root, access)
        self._uploads: dict[str, Future[None]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def open_new(self, target: str) -> IO[bytes]:
        return cast(IO[bytes], _Incomplete(self, target))

    def sync(self, file: IO[bytes]) -> None:
        cast(_Incomplete, file).is_complete = True

    def sync_folders(self, target: str) -> None:
        with self._lock:
            own = {name: upload for name, upload in self._uploads.items() if name.startswith(f"{target}/")}
        try:
            for upload in own.values():
                upload.result()
        finally:
            wait(own.values())
            with self._lock:
                for name in own:
                    self._uploads.pop(name, None)

    def write_atomic(self, target: str, content: bytes) -> None:
        path = self._path(target)
        _with_retry(target, lambda: obstore.put(self._store, path, content, use_multipart=False))

    def open(self, target: str) -> IO[bytes]:
        path = self._path(target)
        return BytesIO(_with_retry(target, lambda: obstore.get(self._store, path).bytes().to_bytes()))

    def exists(self, target: str) -> bool:
        try:
            self.size(target)
        except FileNotFoundError:
            return False
        return True

    def size(self, target: str) -> int:
        path = self._path(target)
        return _with_retry(target, lambda: int(obstore.head(self._store, path)["size"]))

    def list_from(self, target: str, first: str, at_or_above: str) -> Iterator[tuple[str, str]]:
        for below in self._above(target, f"{first}/{at_or_above}"):
            folder, within, rest = below.partition("/")
            if within:
                yield folder, rest.partition("/")[0]

    def _above(self, target: str, name: str) -> list[str]:
        """The paths of all objects below a folder from a name on, relative to it."""
        path = self._path(target)
        below = f"{path}/"
        offset = f"{below}{name[:-1]}"  # which is left out itself
        return [one.removeprefix(below) for one in _with_retry(target, lambda: self._all_below(path, offset))]

    def _all_below(self, path: str, offset: str | None = None) -> list[str]:
        pages = obstore.list(self._store, path, offset=offset)
        return [str(entry["path"]) for page in pages for entry in page]

    def list(self, target: str, at_or_above: str) -> list[str]:
        if at_or_above:
            # By the objects above: only their listing can begin somewhere. Those of a pipeline's last batches are few,
            # the folders below are as many as staging is kept.
            return sorted({below.partition("/")[0] for below in self._above(target, at_or_above)})
        path = self._path(target)
        listed = _with_retry(target, lambda: obstore.list_with_delimiter(self._store, path))
        names = [*listed["common_prefixes"], *(str(entry["path"]) for entry in listed["objects"])]
        return [name.rstrip("/").rsplit("/", 1)[-1] for name in names]

    def delete(self, target: str) -> None:
        """Delete a file or a folder, and a folder's manifest first: with it the folder is complete, without it the
        folder is garbage."""
        path = self._path(target)
        below = _with_retry(target, lambda: self._all_below(path))
        manifest = [name for name in below if name.endswith("/manifest.json")]
        self._delete_all(target, manifest)
        self._delete_all(target, [name for name in below if name not in manifest])
        if self._root.startswith("abfss://"):  # folders stay there when what lay in them is gone
            folders = _with_retry(target, lambda: self._folders_in(path))
            for depth in sorted({name.count("/") for name in folders}, reverse=True):
                self._delete_all(target, [name for name in folders if name.count("/") == depth])
            self._delete_all(target, [path])
        elif not below:
            self._delete_all(target, [path])

    def _delete_all(self, target: str, names: Sequence[str]) -> None:
        if names:
            with suppress(FileNotFoundError):  # of another's delete at the same time
                _with_retry(target, lambda: obstore.delete(self._store, names))

    def _folders_in(self, path: str) -> Sequence[str]:
        """The folders in a folder, and the folders in those."""
        names = [str(name).rstrip("/") for name in obstore.list_with_delimiter(self._store, path)["common_prefixes"]]
        return [*names, *(below for name in names for below in self._folders_in(name))]

    def check_bucket(self, targets: Sequence[str]) -> BucketTraits:
        """Write an object at each of the targets, request the first one in every way that a lake needs, and delete
        them. Raises LakeUnfit."""
        target, *others = targets
        content = uuid4().hex.encode()
        folder, _, name = target.rpartition("/")
        self.write_new(target, content)
        with suppress(FileExistsError):
            self.write_new(target, b"another's")
            raise _unfit(target, 'a put with "If-None-Match: *" replaced an object that was there')
        if self.open(target).read() != content:
            raise _unfit(target, "an object read back differs from what was written")
        if name not in self.list(folder, ""):
            raise _unfit(target, "an object that was written is not in the list of its folder")
        for other in others:
            self.write_new(other, b"")
        headers = {one: self._headers(self._path(one)) for one in targets}
        has_folders = self._root.startswith("abfss://") and self._is_folder(folder)
        paths = [self._path(one) for one in targets]
        with suppress(FileNotFoundError):  # asked again after it was done
            _with_retry(target, lambda: obstore.delete(self._store, paths))
        if self.exists(target):
            raise _unfit(target, "an object that was deleted is still there")
        answers = {one: listed for one, listed in headers.items() if listed is not None}
        rules = {_rule(listed): one for one, listed in answers.items() if _rule(listed)}
        # Only S3 says of an object that a rule will remove it.
        is_told = len(answers) == len(targets) and self._root.startswith("s3a://")
        versioned = any("x-amz-version-id" in listed for listed in answers.values())
        locked = max((listed.get("x-amz-object-lock-retain-until-date", "") for listed in answers.values()), default="")
        return BucketTraits(versioned, locked, rules if rules or is_told else None, has_folders)

    def _is_folder(self, target: str) -> bool:
        """Whether Azure stores the folder itself. obstore reports that a folder is no object."""
        path = self._path(target)

        def ask() -> bool:
            try:
                obstore.head(self._store, path)
            except FileNotFoundError as none:
                return _OF_A_FOLDER in _response_text(none)
            return True

        return _with_retry(target, ask)

    def _headers(self, path: str) -> dict[str, str] | None:
        """The headers of an object; None if the request failed. obstore does not return all of them, so it only
        signs the request."""
        try:
            with _refusals(path):
                signed = obstore.sign(self._store, "HEAD", path, SIGNED_FOR)
            request = Request(signed, method="HEAD")
            with urlopen(request, timeout=REQUEST_S) as answer:
                return {name.lower(): value for name, value in answer.headers.items()}
        except (OSError, LakeRefused, LakeUnreachable, ValueError):
            return None

    # --- new objects --------------------------------------------------------------------------------------------------

    def upload(self, target: str, content: IO[bytes]) -> None:
        """Start the upload of a complete file; if many uploads run, wait for one of them."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(UPLOADS, thread_name_prefix="tidemark-upload")
            under_way = [upload for upload in self._uploads.values() if not upload.done()]
        if len(under_way) >= UPLOADS:
            wait(under_way, return_when=FIRST_COMPLETED)
        with self._lock:
            self._uploads[target] = self._pool.submit(self._upload, target, content)

    def _upload(self, target: str, content: IO[bytes]) -> None:
        with content:
            content.seek(0)
            self.write_new(target, content.read())

    def write_new(self, target: str, content: bytes) -> None:
        """Put it if there is none. Raises FileExistsError."""
        path, writer = self._path(target), uuid4().hex
        ends = time.monotonic() + RETRIES_S
        for tried in range(1, PUTS + 1):
            try:
                with _refusals(target):
                    obstore.put(
                        self._store, path, content, mode="create", attributes={WRITER: writer}, use_multipart=False
                    )
                    return
            except FileExistsError:
                there = self._writer_of(target)
                if there == writer:
                    return
                if there is not None:
                    raise
                # Amazon's 409, which obstore takes for the same: another request for the name was under way, and what
                # came of that one is not there.
                failed = LakeUnreachable(lake=_bucket(target), path=target, detail="409 Conflict")
            except LakeUnreachable as unreachable:
                failed = unreachable
            if tried == PUTS or time.monotonic() > ends:
                raise failed
            time.sleep(PAUSE_S * 2**tried)

    def _writer_of(self, target: str) -> str | None:
        """The writer of the object, "" if it names none; None if there is no object."""
        path = self._path(target)
        try:
            attributes: Mapping[Any, Any] = _with_retry(target, lambda: obstore.get(self._store, path).attributes)
        except FileNotFoundError:
            return None
        return str(attributes.get(WRITER, ""))

    def _path(self, target: str) -> str:
        return target.removeprefix(self._root).lstrip("/")


class _Incomplete(RawIOBase):
    """A file that is being written: without a name on this machine, in memory while it is small."""

    def __init__(self, objects: ObjectStoreFiles, target: str) -> None:
        super().__init__()
        self.is_complete = False
        self._objects = objects
        self._target = target
        self._content = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY_BYTES)  # noqa: SIM115

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        return self._content.write(data)

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        if self.is_complete:
            self._objects.upload(self._target, cast(IO[bytes], self._content))
        else:
            self._content.close()


def _open(root: str, access: LakeAccess) -> Any:
    plain = any(access.settings.get(name, "").startswith("http://") for name in ("endpoint", "base_url"))
    key = _key_of_s3(access.secrets)
    settings: Any = {**access.settings, **({} if key else access.secrets)}
    return from_url(
        root,
        config=settings,
        credential_provider=None if key is None else lambda: key,
        client_options={"allow_http": plain, "timeout": timedelta(seconds=REQUEST_S)},
        retry_config={
            "max_retries": 10,
            "retry_timeout": timedelta(seconds=RETRIES_S),
            "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=15), "base": 2},
        },
    )


def _key_of_s3(secrets: Mapping[str, str]) -> Any:
    """The connection's key in obstore's form; None if it has none. obstore would take missing parts from the
    environment: the token of the machine's own identity would then go with another key, to another server."""
    if "access_key_id" not in secrets:
        return None
    return {
        "access_key_id": secrets["access_key_id"],
        "secret_access_key": secrets["secret_access_key"],
        "token": secrets.get("session_token"),
        "expires_at": None,
    }


def _with_retry(target: str, ask: Callable[[], Answer]) -> Answer:
    """Repeat a request that may be sent twice, also after an answer that broke off: obstore does not repeat those."""
    ends = time.monotonic() + RETRIES_S
    tried = 0
    while True:
        tried += 1
        try:
            with _refusals(target):
                return ask()
        except LakeUnreachable:
            if tried == PUTS or time.monotonic() > ends:
                raise
            time.sleep(PAUSE_S * 2**tried)


@contextmanager
def _refusals(target: str) -> Iterator[None]:
    """The store's error without the other content of its answer: an access key's id, a signature, an address."""
    try:
        yield
    except AlreadyExistsError:
        raise FileExistsError(target) from None
    except FileNotFoundError as missing:
        if _response_text(missing).endswith("NoSuchBucket"):
            raise LakeRefused(lake=_bucket(target), path=target, detail="there is no such bucket") from None
        raise FileNotFoundError(target) from None
    except (BaseError, OSError) as failed:
        text = _response_text(failed)
        is_refused = isinstance(failed, PermissionDeniedError | UnauthenticatedError) or _is_refusal(text)
        error = LakeRefused if is_refused else LakeUnreachable
        raise error(lake=_bucket(target), path=target, detail=text) from None


_STATUS: Final = re.compile(r"status code: (\d{3}[ \w]*)")
# The second form is what is said of one of several objects to delete, with status 200.
_CODE: Final = re.compile(r"(?:<Code>|\(code: )(\w+)[<)]")
_REGION: Final = "incorrectly configured region"  # another one's redirects
_OF_A_FOLDER: Final = "x-ms-resource-type: directory"
_CAUSE: Final = re.compile(
    rf"(error sending request|connection [\w ]+|operation timed out|dns error|timed out|{_REGION}|{_OF_A_FOLDER})", re.I
)
_CLOCK: Final = re.compile(r"<ServerTime>([^<]+)</ServerTime>")
_RULE: Final = re.compile(r'rule-id="([^"]*)"')


def _rule(headers: Mapping[str, str]) -> str:
    """The lifecycle rule that will delete an object; "" if there is none."""
    expiration = headers.get("x-amz-expiration", "")
    rule = _RULE.search(expiration)
    return unquote(rule[1]) if rule else expiration and "one without a name"


def _unfit(target: str, detail: str) -> LakeUnfit:
    return LakeUnfit(lake=_bucket(target), detail=detail)


# What is asked is sound by construction: such an answer is about who asks, or the store's own rules. 501 is that of a
# store which does not know a header.
_REFUSAL: Final = re.compile(rf"4\d\d\b|501\b|AccessDenied$|{_REGION}$")
# Of these the next request may know nothing: it came too slowly or not whole, another one was under way, or too many.
_PASSING: Final = re.compile(r"(408|409|425|429)\b|.*(RequestTimeout|IncompleteBody|BadDigest|SlowDown)$")


def _is_refusal(answer: str) -> bool:
    return bool(_REFUSAL.match(answer)) and not _PASSING.match(answer)


def _response_text(failed: Exception) -> str:
    text = str(failed)
    phrases = [match[1].strip() for pattern in (_STATUS, _CODE, _CAUSE) if (match := pattern.search(text))]
    said = ", ".join(dict.fromkeys(phrases)) or type(failed).__name__
    clock = _CLOCK.search(text)  # of a store that refuses a request for its time
    return f"{said} (its clock is at {clock[1]})" if clock else said


def _bucket(target: str) -> str:
    uri = urlsplit(target)
    return f"{uri.scheme}://{uri.netloc}"
