"""Decode speed, client CPU only: `python -m benchmarks.decode [--changes N] [--profile]`.

Synthetic messages (8 columns; of 31 changes 20 inserts, 10 updates, 1 delete; 100 changes per transaction) go through
`Decoder.decode` in blocks, then into Parquet. Prints microseconds of CPU per change of both.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import pstats
import struct
import time
from collections.abc import Iterator

import pyarrow.parquet as pq

from tidemark.formats.columns import staged_schema
from tidemark.names import TableName
from tidemark.pgoutput.decoder import Decoder
from tidemark.schema.delta_types import target_type, type_name
from tidemark.schema.table import Column, TableSchema

OID = 16384
COLUMNS = {
    "id": (20, -1),
    "customer": (23, -1),
    "name": (25, -1),
    "price": (1700, (10 << 16 | 2) + 4),
    "weight": (701, -1),
    "created": (1184, -1),
    "active": (16, -1),
    "note": (1043, -1),
}
CHANGES_PER_TRANSACTION = 100


def relation() -> bytes:
    message = struct.pack(">cI", b"R", OID) + b"public\0orders\0d" + struct.pack(">H", len(COLUMNS))
    for name, (type_oid, typmod) in COLUMNS.items():
        message += struct.pack(">B", name == "id") + name.encode() + b"\0" + struct.pack(">Ii", type_oid, typmod)
    return message


def tuple_of(values: list[str | None]) -> bytes:
    fields = [struct.pack(">H", len(values))]
    for value in values:
        fields.append(b"n" if value is None else struct.pack(">cI", b"t", len(value)) + value.encode())
    return b"".join(fields)


def row(i: int) -> bytes:
    created = f"2024-01-02 03:{i // 60 % 60:02d}:{i % 60:02d}.{i % 1_000_000:06d}+00"
    price, weight = f"{i % 100_000 / 100:.2f}", repr(i * 0.37)
    note = None if i % 10 == 0 else "a note of some length"
    return tuple_of([str(i), str(i % 5000), f"name of {i}", price, weight, created, "tf"[i % 2], note])


def messages(changes: int) -> Iterator[bytes]:
    yield struct.pack(">cQqI", b"B", 100, 0, 700)
    yield relation()
    lsn = 100
    for i in range(changes):
        if i and i % CHANGES_PER_TRANSACTION == 0:
            yield struct.pack(">cBQQq", b"C", 0, lsn, lsn + 8, 0)
            lsn += 100
            yield struct.pack(">cQqI", b"B", lsn, 0, 700 + i)
        kind = i % 31
        if kind < 20:
            yield struct.pack(">cIc", b"I", OID, b"N") + row(i)
        elif kind < 30:
            yield struct.pack(">cIc", b"U", OID, b"N") + row(i)
        else:
            yield struct.pack(">cIc", b"D", OID, b"K") + tuple_of([str(i), *[None] * (len(COLUMNS) - 1)])
    yield struct.pack(">cBQQq", b"C", 0, lsn, lsn + 8, 0)


def schema() -> TableSchema:
    columns = tuple(
        Column(name, type_name(oid, typmod, {}), oid, typmod, target_type(oid, typmod, {}))
        for name, (oid, typmod) in COLUMNS.items()
    )
    return TableSchema(TableName("public", "orders"), 1, OID, "default", ("id",), columns)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--changes", type=int, default=500_000)
    arguments.add_argument("--block-messages", type=int, default=50_000)
    arguments.add_argument("--profile", action="store_true")
    options = arguments.parse_args()

    table = schema()
    stream = list(messages(options.changes))
    size = sum(map(len, stream))
    print(f"{options.changes} changes of {len(COLUMNS)} columns, {size / 2**20:.0f} MiB of messages")
    Decoder(lambda _: table, 1).decode(stream[:1000])  # imports and first calls are no part of the speed
    decoder = Decoder(lambda _: table, 1)
    profile = cProfile.Profile()
    decoding = writing = 0.0
    with pq.ParquetWriter(sink := io.BytesIO(), staged_schema(table), compression="zstd") as writer:
        for start in range(0, len(stream), options.block_messages):
            payloads = stream[start : start + options.block_messages]
            began = time.process_time()
            if options.profile:
                profile.enable()
            block = decoder.decode(payloads)
            profile.disable()
            decoded = time.process_time()
            for change in block.changes:
                writer.write_batch(change.rows)
            decoding += decoded - began
            writing += time.process_time() - decoded
    for step, seconds in (("decode", decoding), ("Parquet", writing), ("both", decoding + writing)):
        print(f"{step:8} {seconds:6.2f} s  {seconds / options.changes * 1e6:5.2f} µs per change")
    print(f"{'file':8} {len(sink.getvalue()) / 2**20:6.1f} MiB")
    if options.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
