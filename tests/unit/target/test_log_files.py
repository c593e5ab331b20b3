"""Each line of Delta's log is one action, also if a text in it has characters that Python takes for line ends."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from tidemark.target.delta import hadoop_files, log_files

SEPARATORS = "\x85\u2028\u2029"  # of lines in Python's texts; JSON leaves them as they are


def test_separators_in_names_do_not_cut_an_action(monkeypatch: pytest.MonkeyPatch) -> None:
    actions: list[dict[str, Any]] = [
        {"metaData": {"schemaString": f"a{SEPARATORS}b"}},
        {"add": {"path": f'{SEPARATORS}{{"txn":{{"appId":"none","version":1}}}}'}},
        {"txn": {"appId": f"of {SEPARATORS}", "version": 7}},
    ]
    commit = "".join(json.dumps(action, ensure_ascii=False, separators=(",", ":")) + "\n" for action in actions)
    monkeypatch.setattr(hadoop_files, "read_whole", lambda spark, uri: commit.encode())
    spark: Any = SimpleNamespace()
    assert list(log_files._commit_actions(spark, "0.json")) == [actions[0], actions[2]]
