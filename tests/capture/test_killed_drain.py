"""A drain killed at each of its failpoints: the next try stages every change once, and
nothing of the dead one stays."""

from __future__ import annotations

import os
import signal

import pytest

from tests.support import failpoint_names
from tests.support.pipeline import Pipeline
from tests.support.stage_process import fork_server
from tests.support.thorough import thorough
from tidemark import failpoints
from tidemark.capture.drain import drain
from tidemark.formats import layout
from tidemark.run import Run

FAILPOINTS = [name for name in failpoint_names.OF_CAPTURE if name.startswith("drain.")]
ONE = "drain.after_manifest"  # of them, what is left behind is the most


def die_at(failpoint: str, run: Run) -> None:
    os.environ[failpoints.VARIABLE] = failpoint
    drain(run)


@pytest.mark.parametrize("failpoint", [ONE, *thorough(*(name for name in FAILPOINTS if name != ONE))])
def test_the_next_try_of_a_killed_drain_stages_every_change_once(pipeline: Pipeline, failpoint: str) -> None:
    pipeline.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    pipeline.begin()
    pipeline.with_bounds(batch_rows=10)
    for i in range(3):
        pipeline.execute(f"INSERT INTO orders SELECT {i} * 10 + i FROM generate_series(1, 10) i")
    process = fork_server().Process(target=die_at, args=(failpoint, pipeline.task("drain", "monday")))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL

    result = pipeline.drain("monday")
    assert result.reached_target
    assert [r["id"] for r in pipeline.staged("public.orders")] == list(range(1, 31))
    assert [end for _, end in result.batches[:-1]] == [start for start, _ in result.batches[1:]]
    home = layout.generation_folder(pipeline.config.pipeline, 1)
    folders = {f"{home}/{name}" for name in pipeline.store.list(home) if "-" in name}
    assert folders == {b.manifest.removesuffix("/manifest.json") for b in pipeline.registered()}
