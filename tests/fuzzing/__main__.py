"""Fuzzes decoders, guided by the lines that an input reaches: `make fuzz`, or `python -m tests.fuzzing NAME …`.

Each run starts from the inputs in .tidemark/fuzzing/NAME, and adds those that reach new lines. An input that is a fault
stays there as crash-…, timeout-… or oom-…, and every later run tries it first. `--replay` decodes one input without
the fuzzer. `--keep` replaces tests/fuzzing/corpora/NAME.txt, which `make test` plays, by a small set of inputs that
reach the same lines.

The fuzzer is Atheris, with libFuzzer: https://github.com/google/atheris. `sandbox.setup.atheris` installs it.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from sandbox.setup.atheris import FOLDER
from tests.fuzzing import corpora
from tests.fuzzing.decoders import DECODERS

REPOSITORY: Final = Path(__file__).resolve().parents[2]
MADE: Final = REPOSITORY / ".tidemark" / "fuzzing"
FAULTS: Final = ("crash-*", "timeout-*", "oom-*")
# The decoders' packages alone take 0.2 GB.
MOST_MB: Final = 1536
# Bytes of an input.
LARGEST: Final = 16_384
LARGEST_KEPT: Final = 2500
LONGEST_S: Final = 20
# Atheris never frees the result of a comparison that it watches. For an input of COPY these are 450 bytes, for one of
# pgoutput, which compares arrays, 9 kB: 0.5 GB in a minute. So a new process goes on after so long or so many inputs.
ROUND_S: Final = 60
ROUND_INPUTS: Final = 1_000_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing", description=__doc__)
    parser.add_argument("decoders", nargs="*", help=f"default: all of {', '.join(DECODERS)}")
    parser.add_argument("--minutes", type=float, default=60, help="for each decoder; default 60")
    parser.add_argument("--keep", action="store_true", help="replace the inputs that make test plays")
    parser.add_argument("--replay", type=Path, help="an input, decoded by the one decoder that is named")
    arguments = parser.parse_args()
    names = arguments.decoders or [*DECODERS]
    if unknown := set(names) - set(DECODERS):
        parser.error(f"no decoder is called {' or '.join(sorted(unknown))}; there are {', '.join(DECODERS)}")
    if arguments.replay is not None:
        if len(names) > 1:
            parser.error("name the decoder of the input")
        print("read" if DECODERS[names[0]].has_read(arguments.replay.read_bytes()) else "refused by name")
        return 0
    if not (REPOSITORY / FOLDER).is_dir():
        parser.error("Atheris is not installed: run `python -m sandbox.setup.atheris`")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return max(pool.map(lambda name: fuzz(name, arguments.minutes, arguments.keep), names))


def fuzz(name: str, minutes: float, replaces_corpus: bool) -> int:
    """Returns 1 for a fault, or if the fuzzer did not run."""
    folder, log = MADE / name, MADE / f"{name}.log"
    folder.mkdir(parents=True, exist_ok=True)
    for number, content in enumerate([*DECODERS[name].seeds(), *corpora.kept(name)]):
        (folder / f"seed-{number}").write_bytes(content)
    log.write_bytes(b"")
    code, until = 0, time.monotonic() + minutes * 60
    while not code and (left := round(until - time.monotonic())) > 0:
        code = _libfuzzer(name, f"-max_total_time={min(left, ROUND_S)}", f"-runs={ROUND_INPUTS}", str(folder))
    coverage = [line for line in log.read_text(errors="replace").splitlines() if "cov:" in line]
    if replaces_corpus and not code:
        with tempfile.TemporaryDirectory() as merged:
            code = _libfuzzer(name, "-merge=1", f"-max_len={LARGEST_KEPT}", merged, str(folder))
            contents = [file.read_bytes() for file in Path(merged).iterdir()]
        if contents and not code:
            corpora.keep(name, contents)
    # A merge passes over an input that is a fault.
    faults = [file for pattern in FAULTS for file in folder.glob(pattern)] if code or replaces_corpus else []
    for file in faults:
        replay = f"PYTHONPATH=include:plugins:. .venv/bin/python -m tests.fuzzing {name} --replay {file}"
        print(f"{name}: a fault, or one that was: {replay}", file=sys.stderr)
    if code and not faults:
        print(f"{name}: the fuzzer ended with {code}: see {log}", file=sys.stderr)
    if not code:
        print(f"{name}: no fault; {coverage[-1] if coverage else 'nothing was played'}", flush=True)
    return 1 if code else 0


def _libfuzzer(name: str, *options: str) -> int:
    """Run libFuzzer in a process of its own, which it ends. To merge, it starts its program again: so that is a
    script."""
    folder, script = MADE / name, MADE / f"{name}.sh"
    command = [sys.executable, "-m", "tests.fuzzing.instrumented", name, str(script)]
    script.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    script.chmod(0o755)
    limits = [f"-rss_limit_mb={MOST_MB}", f"-timeout={LONGEST_S}", f"-max_len={LARGEST}", f"-artifact_prefix={folder}/"]
    paths = [str(REPOSITORY / FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
    with (MADE / f"{name}.log").open("ab") as log:
        return subprocess.run(
            ["/bin/sh", script, *limits, *options],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdout=log,
            stderr=log,
            check=False,
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
