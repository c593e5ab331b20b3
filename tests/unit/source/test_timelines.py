"""History files as a server sends them: whoever named a restore point chose its encoding."""

from __future__ import annotations

from tidemark.lsn import Lsn
from tidemark.source.wal import timelines

HISTORY = b"""\
1\t0/5000000\tat restore point "caf\xe9"

# 7\tby hand
2\t1/A000060\tat restore point "two\xe2\x80\xa8\t\xe2\x80\xa83\t0/1"
"""


def test_reasons_and_comments_are_passed_over() -> None:
    assert [*timelines._switches(HISTORY)] == [(1, Lsn.parse("0/5000000")), (2, Lsn.parse("1/A000060"))]
