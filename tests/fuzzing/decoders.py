"""Decoders of what another process wrote, as functions of bytes: whether they read them, or refused them by name.

Any other exception is a fault. Each row that pgoutput and COPY give is compared with what a slow twin reads, which
takes only what a server would write. A text of a Parquet page must be the one that pyarrow reads, and a record must
survive to be written. Bytes that stand for several messages or files are their parts, each behind its length.

Of what msgspec and pyarrow decode, in C, the fuzzer sees no lines. There it is up to the mutations, which know JSON."""

from __future__ import annotations

import io
import json
import random
import struct
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.config import test_damaged_files
from tests.unit.formats import test_damaged_ledger_rows, test_definition
from tests.unit.formats.test_damaged_ledger_rows import RECORDS
from tests.unit.formats.test_hostile_files import WHOLE
from tests.unit.formats.test_watermark import MARK
from tests.unit.pgoutput import test_damaged_copies, test_damaged_streams
from tests.unit.pgoutput.test_damaged_copies import random_copy
from tests.unit.pgoutput.test_decoder import random_stream
from tests.unit.target import test_damaged_footers, test_damaged_logs
from tidemark.config import file_reader
from tidemark.errors import FormatIsNewer, LakeFileBroken, MalformedMessage, SchemaDisagrees
from tidemark.formats.definition import UnknownDefinition
from tidemark.formats.watermark import Watermark
from tidemark.strict_json import NotStrictJson
from tidemark.target.delta.compact_thrift import UnsupportedParquet
from tidemark.target.driver.text_pages import pages_of_texts

SEEDS: Final = range(40)
_LENGTH: Final = struct.Struct(">H")
_TEXTS: Final = 60
_FOLLOWING: Final = f"""{test_damaged_files.SOUND}
merge: {{every: 5m, rows: 1000, threads: 2}}
maintenance: {{schedule: "@daily", put_aside_days: null}}
follow: {{every: 2s}}
"""


def _pages(codec: str) -> bytes:
    sink = io.BytesIO()
    texts = pa.table({"key": [f"{number * 7919:012}" for number in range(_TEXTS)]})
    pq.write_table(texts, sink, compression=codec, use_dictionary=False, data_page_size=200, write_batch_size=10)
    return sink.getvalue()


def _footer(file: bytes) -> bytes:
    (length,) = struct.unpack("<I", file[-8:-4])
    return file[-8 - length : -8]


PAGES: Final = [_pages(codec) for codec in ("zstd", "snappy", "none")]


def joined(parts: Iterable[bytes]) -> bytes:
    return b"".join(_LENGTH.pack(len(part)) + part for part in parts)


def parts_of(content: bytes) -> list[bytes]:
    """The parts that `joined` joined. If the bytes end before the last part does, that part is shorter."""
    parts, at = [], 0
    while at + _LENGTH.size <= len(content):
        (length,) = _LENGTH.unpack_from(content, at)
        at += _LENGTH.size
        parts.append(content[at : at + length])
        at += length
    return parts


def decodes_pgoutput(content: bytes) -> bool:
    messages = parts_of(content)
    try:
        rows = sorted(map(repr, test_damaged_streams.decoded(messages, [])))
    except (MalformedMessage, SchemaDisagrees):
        return False
    assert rows == sorted(map(repr, test_damaged_streams.decoded(messages, [len(messages) // 2])))
    try:
        there = test_damaged_streams.in_the_bytes(messages)
    except UnicodeDecodeError:
        return True  # a value that is no text
    assert rows == sorted(map(repr, there))
    return True


def decodes_copy(content: bytes) -> bool:
    messages = parts_of(content)
    try:
        rows = test_damaged_copies.decoded(messages, [])
    except MalformedMessage:
        return False
    assert rows == test_damaged_copies.decoded(messages, [len(messages) // 2])
    with suppress(UnicodeDecodeError):  # a value that is no text
        assert rows == test_damaged_copies.in_the_bytes(messages)
    return True


def decodes_parquet_footers(content: bytes) -> bool:
    """The footer alone is fuzzed: 50 rows of five columns lie in front of it."""
    sound = test_damaged_footers.FILES[0]
    file = sound[: -8 - len(_footer(sound))] + content + struct.pack("<I", len(content)) + b"PAR1"
    try:
        test_damaged_footers.rewritten(file)
    except UnsupportedParquet:
        return False
    return True


def decodes_parquet_pages(content: bytes) -> bool:
    """The pages alone are fuzzed, and the footer of the sound file stays. The first byte says which file."""
    sound = PAGES[content[0] % len(PAGES)] if content else PAGES[0]
    footer = sound[-8 - len(_footer(sound)) :]
    body = content[1:][: len(sound) - len(footer)].ljust(len(sound) - len(footer), b"\0")
    source = io.BytesIO(body + footer)
    try:
        pages = pages_of_texts(source, pq.ParquetFile(source), 0, "key")  # type: ignore[arg-type]
        found = [text.tobytes() for texts in pages for text in texts]
    except UnsupportedParquet:
        return False
    with suppress(OSError):  # pyarrow refuses some, such as what is no UTF-8
        of_arrow = pq.read_table(io.BytesIO(body + footer))["key"].cast(pa.binary())
        assert found == of_arrow.to_pylist()
    return True


def decodes_delta_logs(content: bytes) -> bool:
    """Up to four commits and a checkpoint, in this order; an empty part is a file that is missing."""
    names = [*test_damaged_logs.LOGS[1]]
    log = {name: part for name, part in zip(names, parts_of(content), strict=False) if part}
    with pytest.MonkeyPatch.context() as patch:
        return test_damaged_logs.outcome(log, patch) == "read"


def decodes_lake_files(content: bytes) -> bool:
    """Manifests, plans, results and the other files of the lake; the first byte says which."""
    kind = type(WHOLE[content[0] % len(WHOLE)]) if content else type(WHOLE[0])
    try:
        read = kind.from_json(content[1:], "shop/a file.json")
    except (LakeFileBroken, FormatIsNewer):
        return False
    assert kind.from_json(read.to_json()) == read
    return True


def decodes_ledger_rows(content: bytes) -> bool:
    """What the ledger's columns of JSON hold; the first byte says which."""
    kind = type(RECORDS[content[0] % len(RECORDS)]) if content else type(RECORDS[0])
    try:
        raw = json.loads(content[1:].decode(), parse_constant=_no_json)
    except (ValueError, RecursionError):
        return False  # PostgreSQL does not store it as JSON
    try:
        read = kind.from_json(raw)
    except NotStrictJson:
        return False
    assert kind.from_json(json.loads(json.dumps(read.to_json()))) == read
    return True


def _no_json(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def decodes_pipeline_files(content: bytes) -> bool:
    with tempfile.NamedTemporaryFile(suffix=".yaml") as file:
        file.write(content)
        file.flush()
        config, problems = file_reader.read(Path(file.name))
    assert (config is None) == bool(problems)
    return config is not None


def decodes_wal_messages(content: bytes) -> bool:
    """What any login may write into the WAL, under the prefix of watermarks and of definitions; and a definition with
    the code that only the trigger can write."""
    mark = Watermark.parse(content)
    assert mark is None or Watermark.parse(mark.content().encode()) == mark
    assert test_definition.read(content) in (None, UnknownDefinition(None))
    told = test_definition.read(test_definition.signed(content))
    return mark is not None or not isinstance(told, UnknownDefinition | None)


def _other_json(content: bytes, random_: random.Random) -> bytes:
    """A value of the JSON behind the first byte becomes another one, is lost, or is nested."""
    try:
        raw = json.loads(content[1:])
    except (ValueError, RecursionError):
        return content
    return content[:1] + json.dumps(test_damaged_ledger_rows.damaged(random_, raw)).encode()


def _other_log(content: bytes, random_: random.Random) -> bytes:
    """The same in one action of one commit."""
    parts = parts_of(content)
    commits = [number for number, part in enumerate(parts) if part.startswith(b"{")]
    if commits:
        number = random_.choice(commits)
        lines = parts[number].splitlines()
        at = random_.randrange(len(lines))
        lines[at] = _other_json(b" " + lines[at], random_)
        parts[number] = b"\n".join(lines)
    return joined(parts)


def _other_yaml(content: bytes, random_: random.Random) -> bytes:
    return test_damaged_files.damaged(random_, content.decode(errors="replace") or " ")


@dataclass(frozen=True)
class Decoder:
    """A function of bytes, and what a fuzzer needs for it.

    `has_read` is whether the bytes were read; False if they were refused by name. `seeds` are where a fuzzer begins:
    bytes that are read. `mutated` changes bytes so that most of their grammar stays.
    """

    has_read: Callable[[bytes], bool]
    seeds: Callable[[], Iterable[bytes]]
    mutated: Callable[[bytes, random.Random], bytes] | None = None


DECODERS: Final = {
    "pgoutput": Decoder(decodes_pgoutput, lambda: (joined(random_stream(random.Random(seed))) for seed in SEEDS)),
    "copy": Decoder(decodes_copy, lambda: (joined(random_copy(random.Random(seed))) for seed in SEEDS)),
    "parquet-footers": Decoder(decodes_parquet_footers, lambda: map(_footer, test_damaged_footers.FILES)),
    "parquet-pages": Decoder(
        decodes_parquet_pages, lambda: (bytes([n]) + file[: -8 - len(_footer(file))] for n, file in enumerate(PAGES))
    ),
    "delta-logs": Decoder(
        decodes_delta_logs, lambda: (joined(log.values()) for log in test_damaged_logs.LOGS), _other_log
    ),
    "wal-messages": Decoder(
        decodes_wal_messages,
        lambda: (MARK.content().encode(), test_definition.text(test_definition.RELATION)),
        lambda content, random_: _other_json(b" " + content, random_)[1:],
    ),
    "lake-files": Decoder(
        decodes_lake_files, lambda: (bytes([n]) + file.to_json().encode() for n, file in enumerate(WHOLE)), _other_json
    ),
    "ledger-rows": Decoder(
        decodes_ledger_rows,
        lambda: (bytes([n]) + json.dumps(row.to_json()).encode() for n, row in enumerate(RECORDS)),
        _other_json,
    ),
    "pipeline-files": Decoder(
        decodes_pipeline_files, lambda: (text.encode() for text in (test_damaged_files.SOUND, _FOLLOWING)), _other_yaml
    ),
}
