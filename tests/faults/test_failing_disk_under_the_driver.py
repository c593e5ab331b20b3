"""Each write, new file, new name and new folder of a merge fails once: the next merge goes on, and no table is parked.

The driver is a process of its own with a JVM of its own, and the system calls of both fail
(`tests.support.system_faults`). Spark, Delta and Hadoop fsync no file, so there is no fsync to fail."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.faults import workload
from tests.support import judge, local_spark, stages
from tests.support.capture import Environment
from tests.support.system_faults import Call, SystemFaults

ERRORS = {"DiskFull": errno.ENOSPC, "LakeFailed": errno.EIO}
MOST = 60
STEP = 3


@cache
def own_spark() -> Any:
    return local_spark.start(Path(tempfile.mkdtemp()))


def merge(stage_input: stages.StageInput) -> str | None:
    """One merge of a run; the class of what ended it, None if nothing did."""
    try:
        stages.merge(stage_input, lambda uri: stages.apply(own_spark(), uri))
    except Exception as failed:
        return type(failed).__name__
    return None


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> SystemFaults:
    return SystemFaults(tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def driver(faults: SystemFaults) -> Iterator[ProcessPoolExecutor]:
    with faults.process() as pool:
        yield pool


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("calls", [Call.WRITE, Call.CREATE, Call.NAME, Call.FOLDER], ids=lambda calls: calls.name)
def test_a_merge_with_a_failing_call_is_made_up_for_by_the_next_one(
    kind: str,
    calls: Call,
    new_shop: Callable[[str], Environment],
    faults: SystemFaults,
    driver: ProcessPoolExecutor,
) -> None:
    shop = new_shop("failing")
    errors: dict[str, int] = {}
    for number in range(1, MOST * STEP, STEP):
        workload.change(shop)
        shop.begin_run()
        shop.drain()
        with faults.failing(calls, shop.config.lake, number, ERRORS[kind]):
            outcome = driver.submit(merge, shop.stage_input()).result(300)
        if not faults.failed:
            break
        parked = [str(judge.marked(row)) for row in shop.table_rows().values() if row.life.is_parked]
        assert parked == [], f"number {number}"
        shop.begin_run()
        assert driver.submit(merge, shop.stage_input()).result(300) is None
        assert judge.wrongs(shop) == [], f"number {number}, {outcome}"
        errors[str(outcome)] = errors.get(str(outcome), 0) + 1
    print(f"{faults.seen} calls {calls!r} of a merge, every {STEP}rd failed with {kind}: ended with {errors}")
    assert errors
    assert judge.second_run_changes_nothing(shop) == []
