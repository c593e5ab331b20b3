"""Converts PostgreSQL's text of values to Arrow arrays of the target type, for stream and chunks alike (R8).

The text is the output of the types' functions in a session with TimeZone=UTC, DateStyle=ISO, IntervalStyle=iso_8601,
bytea_output=hex, extra_float_digits=1, UTF-8. One Arrow kernel converts a whole column. Only if it refuses, the values
that do not fit are searched. Such a value never fails: it becomes NULL (dates and timestamps: the nearest end of
0001-01-01 .. 9999-12-31T23:59:59.999999), `kept` marks it, and `kept_text` gives PostgreSQL's text of it.
"""

from __future__ import annotations

import hashlib
import re
from binascii import unhexlify
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.schema.delta_types import arrow_type
from tidemark.schema.postgres_types import target_of

Bytes: TypeAlias = NDArray[np.uint8]
Positions: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]

# Offsets of Arrow's string arrays have 32 bits.
_MAX_OFFSET: Final = 2**31 - 1

_DAY_US: Final = 86_400_000_000
_FIRST_DAY: Final = -719_162  # 0001-01-01
_LAST_DAY: Final = 2_932_896  # 9999-12-31

_COMMA, _QUOTE, _BACKSLASH = ord(","), ord('"'), ord("\\")


@dataclass(frozen=True, slots=True)
class Converted:
    """`kept` is None if every value fits. Otherwise it is true where `values` holds NULL or the end of the range
    instead of the value."""

    values: pa.Array
    kept: Mask | None

    @property
    def count(self) -> int:
        """The number of values that do not fit."""
        return 0 if self.kept is None else int(np.count_nonzero(self.kept))


def convert(text: pa.Array, target: str, *, clamp: bool = True) -> Converted:
    """`text` is a string or binary array, NULL if the value is. With `clamp` false, for keys, nothing is converted
    with loss: every value that does not fit is NULL."""
    delta_type = target_of(target)
    if delta_type.codec == "text":
        return _convert_string(text)
    text = _as_string(text)
    match delta_type.codec:
        case "array":
            converted = _convert_array(text, target[len("array<") : -1])
        case "hstore":
            converted = _convert_each(text, _read_hstore, delta_type.arrow)
        case "boolean":
            converted = _convert_boolean(text)
        case "bytes":
            converted = _convert_each(text, _read_bytea, delta_type.arrow)
        case "cast":
            converted = _convert_by_cast(text, delta_type.arrow)
    if converted.kept is None or clamp:
        return converted
    return Converted(_null_where(converted.values, converted.kept), converted.kept)


def mask(text: pa.Array, how: Literal["null", "sha256"], target: str, salt: bytes) -> pa.Array:
    """A masked column: NULLs of the target's type, or in lower-case hex the SHA-256 of the
    salt followed by the text's bytes.

    NULL stays NULL under both. Equal values of one pipeline have equal digests, whichever path brought them.
    """
    if how == "null":
        return pa.nulls(len(text), arrow_type(target))
    distinct = _as_binary(text).dictionary_encode()
    digests = [None if v is None else hashlib.sha256(salt + v).hexdigest() for v in distinct.dictionary.to_pylist()]
    return pa.array(digests, pa.string()).take(distinct.indices)


def kept_text(text: pa.Array, rows: NDArray[np.intp]) -> pa.Array:
    r"""PostgreSQL's text of some rows as strings. Bytes that are no UTF-8 (from an SQL_ASCII database) become \xNN."""
    some = _as_binary(text).take(pa.array(rows))
    try:
        return some.cast(pa.string())
    except pa.ArrowInvalid:
        escaped = [None if v is None else v.decode("utf-8", "backslashreplace") for v in some.to_pylist()]
        return pa.array(escaped, pa.string())


def gather(data: Bytes, start: Positions, length: Positions, valid: Mask | None = None) -> pa.Array:
    """Ranges of a buffer -> a binary array, copied by one Arrow kernel. Ranges must ascend without overlap. Where
    `valid` is false the length must be 0."""
    count = len(start)
    if count == 0:
        return pa.array([], pa.binary())
    wide = len(data) > _MAX_OFFSET
    # The offsets of an array whose even slots are the ranges and whose odd slots are what lies between them.
    offsets = np.empty(2 * count, np.int64 if wide else np.int32)
    offsets[0::2] = start
    np.add(start, length, out=offsets[1::2], casting="unsafe")
    between = pa.Array.from_buffers(
        pa.large_binary() if wide else pa.binary(), 2 * count - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    values = between.take(pa.array(np.arange(0, 2 * count, 2)))
    if wide:
        values = values.cast(pa.binary())
    if valid is None:
        return values
    _, ends, bytes_ = values.buffers()
    return pa.Array.from_buffers(pa.binary(), count, [_bitmap(valid), ends, bytes_])


def _bitmap(valid: Mask) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def _as_string(text: pa.Array) -> pa.Array:
    """The same buffers as a string array, without a check that they are UTF-8."""
    return text if pa.types.is_string(text.type) else text.view(pa.string())


def _as_binary(text: pa.Array) -> pa.Array:
    return text if pa.types.is_binary(text.type) else text.view(pa.binary())


def _null_where(values: pa.Array, where: Mask) -> pa.Array:
    return pc.if_else(pa.array(where), pa.scalar(None, values.type), values)


def _flag(flags: pa.Array) -> Mask:
    """A boolean array as numpy, with false for NULL."""
    return np.asarray(pc.fill_null(flags, False).to_numpy(zero_copy_only=False), np.bool_)


def _converted(values: pa.Array, kept_rows: Mask) -> Converted:
    return Converted(values, kept_rows if kept_rows.any() else None)


# --- scalars ----------------------------------------------------------------------------------------------------------


def _convert_string(text: pa.Array) -> Converted:
    if pa.types.is_string(text.type):
        return Converted(text, None)
    try:
        return Converted(text.cast(pa.string()), None)
    except pa.ArrowInvalid:
        broken = np.fromiter((v is not None and not _is_utf8(v) for v in text.to_pylist()), np.bool_, len(text))
        return Converted(_null_where(text, broken).cast(pa.string()), broken)


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _convert_boolean(text: pa.Array) -> Converted:
    true = pc.equal(text, "t")
    neither = _flag(pc.and_not(pc.invert(true), pc.equal(text, "f")))
    if not neither.any():
        return Converted(true, None)
    return Converted(_null_where(true, neither), neither)


def _convert_by_cast(text: pa.Array, type_: pa.DataType) -> Converted:
    try:
        return Converted(pc.cast(text, type_), None)
    except pa.ArrowInvalid:
        pass
    above = below = np.zeros(len(text), np.bool_)
    if pa.types.is_date(type_) or pa.types.is_timestamp(type_):
        below = _flag(pc.or_(pc.equal(text, "-infinity"), pc.ends_with(text, " BC")))
        above = _flag(pc.match_substring_regex(text, r"^(infinity$|[0-9]{5})"))
        unfit = above | below
    elif pa.types.is_decimal(type_):
        # Exactly the texts whose value the type holds: digits beyond the scale must be zeros.
        whole, scale = type_.precision - type_.scale, type_.scale
        unfit = ~_flag(pc.match_substring_regex(text, rf"^-?0*[0-9]{{0,{whole}}}(\.[0-9]{{0,{scale}}}0*)?$"))
        unfit &= _flag(pc.is_valid(text))
    else:
        unfit = above
    rest = _null_where(text, unfit)
    try:
        values = pc.cast(rest, type_)
    except pa.ArrowInvalid:
        unread = _refused(rest, type_)
        unfit = unfit | unread
        values = pc.cast(_null_where(rest, unread), type_)
    if above.any() or below.any():
        first, last = _ends(type_)
        values = pc.if_else(pa.array(above), last, pc.if_else(pa.array(below), first, values))
    return Converted(values, unfit)


def _refused(text: pa.Array, type_: pa.DataType) -> Mask:
    """The values that Arrow's cast refuses, found by halving."""
    refused = np.zeros(len(text), np.bool_)
    pending = [(0, len(text))]
    while pending:
        start, stop = pending.pop()
        try:
            pc.cast(text.slice(start, stop - start), type_)
        except pa.ArrowInvalid:
            if stop - start == 1:
                refused[start] = True
            else:
                middle = (start + stop) // 2
                pending += [(start, middle), (middle, stop)]
    return refused


def _ends(type_: pa.DataType) -> tuple[pa.Scalar, pa.Scalar]:
    if pa.types.is_date(type_):
        return pa.scalar(_FIRST_DAY, pa.int32()).cast(type_), pa.scalar(_LAST_DAY, pa.int32()).cast(type_)
    first, last = _FIRST_DAY * _DAY_US, (_LAST_DAY + 1) * _DAY_US - 1
    return pa.scalar(first, pa.int64()).cast(type_), pa.scalar(last, pa.int64()).cast(type_)


def _convert_each(text: pa.Array, read: Callable[[bytes], object], type_: pa.DataType) -> Converted:
    """The values of a text that no Arrow kernel reads, one by one. `read` raises ValueError for one that does not
    fit."""
    values: list[object] = []
    unfit = np.zeros(len(text), np.bool_)
    for row, value in enumerate(_as_binary(text).to_pylist()):
        try:
            values.append(None if value is None else read(value))
        except ValueError:
            values.append(None)
            unfit[row] = True
    return _converted(pa.array(values, type_), unfit)


def _read_bytea(text: bytes) -> bytes:
    """ "\\x0aff" -> the bytes."""
    if not text.startswith(b"\\x"):
        raise ValueError
    return unhexlify(text[2:])


_QUOTED: Final = r'"([^"\\]*(?:\\.[^"\\]*)*)"'
_PAIR: Final = re.compile(rf"{_QUOTED}=>(?:{_QUOTED}|NULL)", re.DOTALL)
_HSTORE: Final = re.compile(rf"(?:{_PAIR.pattern}(?:, {_PAIR.pattern})*)?", re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


def _read_hstore(text: bytes) -> list[tuple[str, str | None]]:
    """'"a"=>"1", "b"=>NULL' -> the entries of a map."""
    pairs = text.decode()
    if _HSTORE.fullmatch(pairs) is None:
        raise ValueError
    return [
        (_ESCAPED.sub(r"\1", pair[1]), None if pair[2] is None else _ESCAPED.sub(r"\1", pair[2]))
        for pair in _PAIR.finditer(pairs)
    ]


# --- arrays and vectors -----------------------------------------------------------------------------------------------


def _parts(text: pa.Array) -> tuple[Bytes, Positions, Mask]:
    """The bytes of all values in sequence, the start of each value, and which values are not NULL. Bytes under a NULL
    are left out."""
    valid = np.asarray(pc.is_valid(text).to_numpy(zero_copy_only=False), np.bool_)
    _, offset_buffer, data_buffer = text.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[text.offset : text.offset + len(text) + 1].astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
    data, offsets = data[offsets[0] : offsets[-1]], offsets - offsets[0]
    lengths = offsets[1:] - offsets[:-1]
    if (lengths[~valid] != 0).any():
        data = data[np.repeat(valid, lengths)]
        offsets = _offsets(np.where(valid, lengths, 0))
    return data, offsets, valid


def _offsets(lengths: Positions | Mask) -> Positions:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)))


@dataclass(frozen=True, slots=True)
class _Tokens:
    """Values without backslash escapes. `quotes` marks the delimiting quotes. `inside` marks quoted bytes, from an
    opening quote up to just before the closing one. `broken` marks rows whose quotes do not pair; their bytes are left
    out."""

    data: Bytes
    offsets: Positions
    valid: Mask
    quotes: Mask
    inside: Mask
    broken: Mask


def _tokens(text: pa.Array) -> _Tokens:
    data, offsets, valid = _parts(text)
    quotes = data == _QUOTE
    backslash = data == _BACKSLASH
    if backslash.any():
        # A character is escaped if an odd number of backslashes stands before it.
        at = np.arange(len(data))
        last_other = np.maximum.accumulate(np.where(backslash, -1, at))
        run = at - last_other
        escaped = np.zeros(len(data), np.bool_)
        escaped[1:] = run[:-1] % 2 == 1
        stays = ~backslash | escaped
        quotes = (quotes & ~escaped)[stays]
        data = data[stays]
        offsets = _offsets(stays)[offsets]
    quotes_before = _offsets(quotes)
    odd = np.diff(quotes_before[offsets]) % 2 == 1
    if odd.any():
        rest = _tokens(_null_where(text, odd))
        return _Tokens(rest.data, rest.offsets, rest.valid, rest.quotes, rest.inside, rest.broken | odd)
    return _Tokens(data, offsets, valid, quotes, quotes_before[1:] % 2 == 1, odd)


def _convert_array(text: pa.Array, element: str) -> Converted:
    """One-dimensional arrays with lower bound 1, "{a,NULL,\\"b c\\"}", and pgvector's
    "[1,2]"; another shape does not fit. PostgreSQL quotes a brace in an element, and no bracket: "{[],a[1]}"."""
    tokens = _tokens(text)
    data, offsets, valid = tokens.data, tokens.offsets, tokens.valid
    low, high = offsets[:-1], offsets[1:]
    braces, brackets = (
        np.diff(_offsets(~tokens.inside & np.isin(data, np.frombuffer(pair, np.uint8)))[offsets])
        for pair in (b"{}", b"[]")
    )
    first, last = _at(data, low), _at(data, high - 1)
    curly = (first == ord("{")) & (last == ord("}"))
    square = (first == ord("[")) & (last == ord("]"))
    shaped = valid & (high - low >= 2) & ((curly & (braces == 2)) | (square & (brackets == 2) & (braces == 0)))
    refused = tokens.broken | (valid & ~shaped)

    full = shaped & (high - low > 2)
    commas = np.flatnonzero(~tokens.inside & (data == _COMMA) & np.repeat(full, high - low))
    counts = np.where(full, np.searchsorted(commas, high) - np.searchsorted(commas, low) + 1, 0)
    begin = np.sort(np.concatenate((low[full] + 1, commas + 1)), kind="stable")
    end = np.sort(np.concatenate((commas, high[full] - 1)), kind="stable")
    quoted = tokens.quotes[begin] & tokens.quotes[end - 1]
    begin, end = begin + quoted, end - quoted
    values = gather(data, begin, end - begin)
    null = _flag(pc.equal(values, b"NULL")) & ~quoted
    elements = convert(_null_where(values, null), element)
    if elements.kept is not None:
        rows = np.repeat(np.arange(len(text)), counts)
        refused[rows[elements.kept]] = True
    ends = pa.array(_offsets(counts).astype(np.int32))
    lists = pa.ListArray.from_arrays(ends, elements.values, mask=pa.array(~shaped))
    return _converted(lists.cast(arrow_type(f"array<{element}>")), refused)


def _at(data: Bytes, positions: Positions) -> Bytes:
    """The bytes at some positions; 0 for those outside."""
    if len(data) == 0:
        return np.zeros(len(positions), np.uint8)
    inside = (positions >= 0) & (positions < len(data))
    return np.where(inside, data[np.where(inside, positions, 0)], 0).astype(np.uint8)
