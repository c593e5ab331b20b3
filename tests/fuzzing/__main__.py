"""Fuzzes the decoders, guided by the lines that an input reaches: `make fuzz`, or `python -m tests.fuzzing NAME …`.

Inputs that reach new lines stay in .tidemark/fuzzing/NAME, where the next play goes on. `--keep` writes the shortest
of them that reach the same lines to tests/fuzzing/corpora, which `make test` plays. The fuzzer is Atheris, with
libFuzzer: https://github.com/google/atheris. `sandbox.setup.atheris` installs it.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from sandbox.setup.atheris import FOLDER
from tests.fuzzing import corpora
from tests.fuzzing.decoders import DECODERS

REPOSITORY: Final = Path(__file__).resolve().parents[2]
MADE: Final = REPOSITORY / ".tidemark" / "fuzzing"
# The decoders' packages alone take 0.2 GB.
MOST_MB: Final = 1024
# Bytes of an input.
LARGEST: Final = 16_384
LARGEST_KEPT: Final = 2500
LONGEST_S: Final = 20
# Atheris keeps some memory of each input, so a new process goes on after so long.
ROUND_S: Final = 300


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("decoders", nargs="*", help="which; all without any")
    parser.add_argument("--minutes", type=float, default=60, help="for each decoder")
    parser.add_argument("--keep", action="store_true", help="write what was found to tests/fuzzing/corpora")
    arguments = parser.parse_args()
    names = arguments.decoders or [*DECODERS]
    if unknown := set(names) - set(DECODERS):
        parser.error(f"no decoder is called {' or '.join(sorted(unknown))}; there are {', '.join(DECODERS)}")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        codes = pool.map(lambda name: fuzz(name, arguments.minutes, arguments.keep), names)
        faults = [name for name, code in zip(names, codes, strict=True) if code]
    for name in faults:
        print(f"{name}: see the end of {MADE / name}.log, and crash-…, timeout-… or oom-… in {MADE}", file=sys.stderr)
    return 1 if faults else 0


def fuzz(name: str, minutes: float, is_kept: bool) -> int:
    folder = MADE / name
    folder.mkdir(parents=True, exist_ok=True)
    for number, content in enumerate([*DECODERS[name].seeds(), *corpora.kept(name)]):
        (folder / f"seed-{number}").write_bytes(content)
    code, seconds = 0, round(minutes * 60)
    while not code and seconds > 0:
        code = _libfuzzer(name, f"-max_total_time={min(seconds, ROUND_S)}", str(folder))
        seconds -= ROUND_S
    told = [line for line in (MADE / f"{name}.log").read_text(errors="replace").splitlines() if "cov:" in line]
    print(f"{name}: {'a fault' if code else 'no fault'}; {told[-1] if told else 'nothing was run'}", flush=True)
    if is_kept and not code:
        with tempfile.TemporaryDirectory() as fewest:
            code = _libfuzzer(name, "-merge=1", f"-max_len={LARGEST_KEPT}", fewest, str(folder))
            corpora.keep(name, [file.read_bytes() for file in Path(fewest).iterdir()])
    return code


def _libfuzzer(name: str, *options: str) -> int:
    """In a process of its own, which ends with it. libFuzzer starts its program again to merge, so there is a script
    to start."""
    script = MADE / f"{name}.sh"
    command = [sys.executable, "-m", "tests.fuzzing.instrumented", name, str(script)]
    script.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    script.chmod(0o755)
    limits = [f"-rss_limit_mb={MOST_MB}", f"-timeout={LONGEST_S}", f"-max_len={LARGEST}", f"-artifact_prefix={MADE}/"]
    paths = [str(REPOSITORY / FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
    with (MADE / f"{name}.log").open("ab") as log:
        return subprocess.run(
            [script, *limits, *options],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdout=log,
            stderr=log,
            check=False,
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
