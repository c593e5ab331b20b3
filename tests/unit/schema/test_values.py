"""The codec: PostgreSQL's text in, Arrow values out; what does not fit is NULL or the end of the range, and marked."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidemark.schema.delta_types import arrow_type
from tidemark.schema.values import Converted, convert, gather, kept_text, mask


def converted(texts: list[str | bytes | None], target: str, *, clamp: bool = True) -> Converted:
    result = convert(
        pa.array([t.encode() if isinstance(t, str) else t for t in texts], pa.binary()), target, clamp=clamp
    )
    assert result.values.type == arrow_type(target)
    assert len(result.values) == len(texts)
    result.values.validate(full=True)
    return result


def values(texts: list[str | bytes | None], target: str) -> list[Any]:
    """The values of texts that all fit."""
    result = converted(texts, target)
    assert result.kept is None
    assert result.count == 0
    return list(result.values.to_pylist())


def unfit(texts: list[str | bytes | None], target: str) -> tuple[list[Any], list[bool]]:
    result = converted(texts, target)
    assert result.kept is not None
    assert result.count == int(result.kept.sum())
    return result.values.to_pylist(), result.kept.tolist()


def test_scalars() -> None:
    assert values(["t", "f", None], "boolean") == [True, False, None]
    assert values(["-32768", None], "smallint") == [-32768, None]
    assert values(["2147483647"], "int") == [2147483647]
    assert values(["-9223372036854775808", "4294967295"], "bigint") == [-(2**63), 2**32 - 1]
    assert values(["1.10", "-0.01", None], "decimal(10,2)") == [Decimal("1.10"), Decimal("-0.01"), None]
    assert values(["", "é", None], "string") == ["", "é", None]
    assert values(["2024-02-29", None], "date") == [dt.date(2024, 2, 29), None]
    assert values(["0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"], "timestamp_ntz") == [
        dt.datetime.min,
        dt.datetime.max,
    ]
    assert values(["2024-01-02 03:04:05.6+00"], "timestamp") == [dt.datetime(2024, 1, 2, 3, 4, 5, 600000, dt.UTC)]


def test_floats_keep_nan_infinity_and_the_sign_of_zero() -> None:
    for target in ("float", "double"):
        nan, plus, minus, zero = values(["NaN", "Infinity", "-Infinity", "-0"], target)
        assert (math.isnan(nan), plus, minus, math.copysign(1, zero)) == (True, math.inf, -math.inf, -1)
    assert values(["5e-324", "1.7976931348623157e+308"], "double") == [5e-324, 1.7976931348623157e308]


def test_empty_and_all_null_columns_convert_to_every_type() -> None:
    for target in (
        "boolean",
        "int",
        "decimal(3,1)",
        "string",
        "binary",
        "date",
        "timestamp",
        "array<string>",
        "map<string,string>",
    ):
        assert values([], target) == []
        assert values([None, None], target) == [None, None]


def test_a_slice_converts_like_its_values() -> None:
    whole = pa.array([b"{9}", b"{1,2}", None, b"{3}", b"{8}"], pa.binary())
    assert convert(whole.slice(1, 3), "array<int>").values.to_pylist() == [[1, 2], None, [3]]
    whole = pa.array([b"\\x00", b"\\xff", None, b"\\x"], pa.binary())
    assert convert(whole.slice(1), "binary").values.to_pylist() == [b"\xff", None, b""]


def test_decimals_that_do_not_fit_are_null_and_marked() -> None:
    texts = ["NaN", "Infinity", "-Infinity", "1234.5", "0.125", "1.50", "-999.99", None, "0"]
    assert unfit(texts, "decimal(5,2)") == (
        [None, None, None, None, None, Decimal("1.50"), Decimal("-999.99"), None, Decimal("0.00")],
        [True, True, True, True, True, False, False, False, False],
    )


def test_trailing_zeros_are_no_loss() -> None:
    assert values(["1.5000", "2"], "decimal(3,1)") == [Decimal("1.5"), Decimal("2.0")]
    assert values(["0.10"], "decimal(2,2)") == [Decimal("0.10")]


@pytest.mark.parametrize(("target", "zone"), [("timestamp_ntz", ""), ("timestamp", "+00")])
def test_timestamps_beyond_the_range_are_its_nearest_end_and_marked(target: str, zone: str) -> None:
    texts = ["infinity", "-infinity", f"0044-03-15 00:00:00{zone} BC", f"10000-01-01 00:00:00{zone}", None]
    texts += [f"294276-12-31 23:59:59.999999{zone}", f"2024-01-01 00:00:00{zone}"]
    values, marks = unfit(list(texts), target)
    first, last = dt.datetime.min, dt.datetime.max
    assert [v and v.replace(tzinfo=None) for v in values] == [
        last,
        first,
        first,
        last,
        None,
        last,
        dt.datetime(2024, 1, 1),
    ]
    assert marks == [True, True, True, True, False, True, False]


def test_dates_beyond_the_range_are_its_nearest_end_and_marked() -> None:
    assert unfit(["infinity", "-infinity", "4713-01-01 BC", "5874897-12-31", "10000-01-01", "1999-12-31"], "date") == (
        [dt.date.max, dt.date.min, dt.date.min, dt.date.max, dt.date.max, dt.date(1999, 12, 31)],
        [True, True, True, True, True, False],
    )


def test_a_key_is_never_clamped() -> None:
    result = converted(["infinity", "2024-01-01"], "date", clamp=False)
    assert result.values.to_pylist() == [None, dt.date(2024, 1, 1)]
    assert result.kept is not None
    assert result.kept.tolist() == [True, False]


def test_text_of_another_form_never_fails() -> None:
    """An override, a type of the catalogue that is not the stream's any more: the value is kept, the batch goes on."""
    for target in (
        "boolean",
        "smallint",
        "int",
        "bigint",
        "float",
        "double",
        "decimal(5,2)",
        "date",
        "timestamp",
        "binary",
    ):
        values, marks = unfit(["nonsense", None, ""], target)
        assert (values, marks) == ([None, None, None], [True, False, True]), target
    assert unfit(["1", "32768", "x", "2"], "smallint") == ([1, None, None, 2], [False, True, True, False])


def test_many_refused_values_among_good_ones() -> None:
    texts: list[str | bytes | None] = [str(i) if i % 7 else "x" for i in range(1000)]
    values, marks = unfit(texts, "int")
    assert values == [i if i % 7 else None for i in range(1000)]
    assert marks == [i % 7 == 0 for i in range(1000)]


def test_bytea() -> None:
    assert values(["\\x", "\\x00", None, "\\xdeadBEEF", "\\x5c78"], "binary") == [
        b"",
        b"\0",
        None,
        b"\xde\xad\xbe\xef",
        b"\\x",
    ]
    assert unfit(["\\x00", "\\x0", "\\xzz", "00", "", None, "\\xff"], "binary") == (
        [b"\0", None, None, None, None, None, b"\xff"],
        [False, True, True, True, True, False, False],
    )


def test_bytes_that_are_no_utf8_are_kept_escaped() -> None:
    text = pa.array([b"ok", b"\xff\xfe", None], pa.binary())
    result = convert(text, "string")
    assert result.values.to_pylist() == ["ok", None, None]
    assert result.kept is not None
    assert result.kept.tolist() == [False, True, False]
    assert kept_text(text, np.array([1, 0])).to_pylist() == ["\\xff\\xfe", "ok"]


def test_arrays() -> None:
    assert values(["{}", "{1,NULL,-3}", None, "{7}"], "array<int>") == [[], [1, None, -3], None, [7]]
    assert values(['{a,"b,c","{}","NULL",NULL,"",null2," g "}'], "array<string>") == [
        ["a", "b,c", "{}", "NULL", None, "", "null2", " g "]
    ]
    assert values([r'{"c\"d","e\\f","\\","\\\"",plain}', r"{x}"], "array<string>") == [
        ['c"d', "e\\f", "\\", '\\"', "plain"],
        ["x"],
    ]
    # PostgreSQL's array_out quotes an element for its braces, not for its brackets.
    assert values(["{[],a[1],]}", "{[1]}"], "array<string>") == [["[]", "a[1]", "]"], ["[1]"]]
    assert values([r'{"\\x00ff","\\x",NULL}'], "array<binary>") == [[b"\0\xff", b"", None]]
    assert values(["{t,f,NULL}"], "array<boolean>") == [[True, False, None]]
    assert values(['{"2024-01-01 00:00:00"}'], "array<timestamp_ntz>") == [[dt.datetime(2024, 1, 1)]]
    assert values(["{1.10,-2.00}"], "array<decimal(5,2)>") == [[Decimal("1.10"), Decimal("-2.00")]]


def test_arrays_of_another_shape_do_not_fit() -> None:
    texts: list[str | bytes | None] = ["{{1,2},{3,4}}", "[0:1]={1,2}", "{1,2}", None, "", "{", "{1", '{"a', "{}"]
    assert unfit(texts, "array<int>") == (
        [None, None, [1, 2], None, None, None, None, None, []],
        [True, True, False, False, True, True, True, True, False],
    )
    assert unfit(['{"{1}"}', '{{"a"}}'], "array<string>") == ([["{1}"], None], [False, True])
    assert unfit(["[1,2]", "[1,[2]]", "[{1}]"], "array<float>") == ([[1.0, 2.0], None, None], [False, True, True])


def test_an_element_that_does_not_fit_marks_the_array() -> None:
    assert unfit(["{infinity,2024-01-01}", "{2024-01-01}", "{NULL}"], "array<date>") == (
        [[dt.date.max, dt.date(2024, 1, 1)], [dt.date(2024, 1, 1)], [None]],
        [True, False, False],
    )
    assert unfit(["{1.5,NaN}", "{2.0}"], "array<decimal(3,1)>") == (
        [[Decimal("1.5"), None], [Decimal("2.0")]],
        [True, False],
    )
    assert converted(["{infinity}", "{}"], "array<date>", clamp=False).values.to_pylist() == [None, []]


def test_vectors() -> None:
    assert values(["[1,2.5,-3]", None, "[]"], "array<float>") == [[1.0, 2.5, -3.0], None, []]


def test_hstore() -> None:
    assert values(['"a"=>"1", "b"=>NULL', "", None, '"x"=>""'], "map<string,string>") == [
        [("a", "1"), ("b", None)],
        [],
        None,
        [("x", "")],
    ]
    text = r'"q\"uo"=>"b\\s", "=>"=>", ", "NULL"=>"NULL"'
    assert values([text, '"k"=>"v"'], "map<string,string>") == [
        [('q"uo', "b\\s"), ("=>", ", "), ("NULL", "NULL")],
        [("k", "v")],
    ]


def test_hstore_of_another_form_does_not_fit() -> None:
    texts: list[str | bytes | None] = ['"a"=>"1"', "a=>1", '"a"', '"a"=>"1" ', None, '"a"=>"\xff"'.encode("latin-1")]
    assert unfit(texts, "map<string,string>") == (
        [[("a", "1")], None, None, None, None, None],
        [False, True, True, True, False, True],
    )
    assert unfit(["x=>", '"a"=>"1"'], "map<string,string>") == ([None, [("a", "1")]], [True, False])


def test_masks() -> None:
    text = pa.array([b"x", None, b"x", b"y"], pa.binary())
    digests = mask(text, "sha256", "string", b"salt").to_pylist()
    assert digests[0] == digests[2] != digests[3]
    assert (digests[1], len(digests[0])) == (None, 64)
    assert mask(text, "sha256", "string", b"other").to_pylist()[0] != digests[0]
    assert mask(text.view(pa.string()), "sha256", "string", b"salt").to_pylist() == digests
    nothing = mask(text, "null", "decimal(5,2)", b"")
    assert (nothing.null_count, nothing.type) == (4, pa.decimal128(5, 2))


def test_gather_copies_ranges_and_leaves_nulls_empty() -> None:
    data = np.frombuffer(b"..ab...cde", np.uint8)
    start, length = np.array([2, 5, 7]), np.array([2, 0, 3])
    assert gather(data, start, length).to_pylist() == [b"ab", b"", b"cde"]
    assert gather(data, start, length, np.array([True, False, True])).to_pylist() == [b"ab", None, b"cde"]
    assert gather(data, start[:0], length[:0]).to_pylist() == []
