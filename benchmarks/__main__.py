"""All benchmarks, one after the other: `python -m benchmarks [--scale full] [MODULE …]`, or `make bench`.

Each module is measured in a process of its own, so that none inherits another's memory or its warm JVM. The figures of
all come into one file, .tidemark/bench/figures.json, whatever became of the others, and are printed as one table.
`--publish` puts the file into docs/performance.json, from which the page's table is written and its plots are drawn.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import page
from benchmarks.pairs import ROUNDS, SCALES, scratch, set_up, surroundings, table
from benchmarks.registry import MODULES
from sandbox.checkout import this_checkout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"of {', '.join(MODULES)}; by default all")
    parser.add_argument("--scale", choices=SCALES, default="full", help="%(default)s is what the goals are set for")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="pairs of each (%(default)s)")
    parser.add_argument("--no-curves", action="store_true", help="leave out what the plots show")
    parser.add_argument("--folder", type=Path, help="where servers and lakes lie (default: a temporary folder)")
    parser.add_argument("--publish", action="store_true", help="write docs/performance.md and its plots")
    options = parser.parse_args()
    if unknown := set(options.modules) - set(MODULES):
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    set_up()
    written = this_checkout().made / "bench" / "figures.json"
    written.parent.mkdir(parents=True, exist_ok=True)
    figures: dict[str, Any] = {**surroundings(), "lines": [], "curves": []}
    failed = []
    with scratch(options.folder) as folder:
        for module in options.modules or MODULES:
            of_module, all_of_it = measured(module, options, folder / f"{module}.json")
            if not all_of_it:
                failed.append(module)
            for part in ("lines", "curves"):
                figures[part] += of_module[part]
            written.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n")
    print(f"\n{table(figures['lines'])}\n\nThe figures lie in {written}")
    if options.publish:
        page.publish(figures)
    if failed:
        print(f"Not measured, see above: {', '.join(failed)}", file=sys.stderr)
    return len(failed)


def measured(module: str, options: argparse.Namespace, figures: Path) -> tuple[dict[str, Any], bool]:
    """The figures of one module as far as it came, and whether that is to its end."""
    command = [sys.executable, "-m", f"benchmarks.{module}", "--json", str(figures)]
    command += ["--scale", options.scale, "--rounds", str(options.rounds)]
    command += [] if options.no_curves else ["--curves"]
    command += [] if options.folder is None else ["--folder", str(options.folder)]
    print(f"— {module}", flush=True)
    process = subprocess.run(command, cwd=this_checkout().root)
    written = json.loads(figures.read_text()) if figures.exists() else {"lines": [], "curves": []}
    return written, process.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
