"""A plan whose bytes are no text is refused by the name of its file, as any other damaged file of the lake."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tidemark.errors import LakeFileBroken
from tidemark.formats.compaction_plan import CompactionPlan
from tidemark.formats.json_file import JsonFile
from tidemark.formats.merge_plan import MergePlan
from tidemark.formats.replay_plan import ReplayPlan
from tidemark.target.plans import plan_files

URI = "/lake/shop/plans/p/plan.json"


@pytest.mark.parametrize("kind", [MergePlan, CompactionPlan, ReplayPlan])
def test_a_plan_that_is_no_text_is_refused_by_name(kind: type[JsonFile], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_files.hadoop_files, "read_whole", lambda *_: b'{"format": 1, "plan": "\xff"}')
    spark: Any = SimpleNamespace()
    with pytest.raises(LakeFileBroken, match=f"^{URI} in the lake is no .*not UTF-8"):
        kind.from_json(plan_files.read_plan(spark, URI), URI)
