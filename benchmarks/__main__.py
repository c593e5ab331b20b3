"""All benchmarks, one after the other: `python -m benchmarks [--scale full] [MODULE …]`, or `make bench`.

Each module is measured in a process of its own, so that none inherits another's memory or its warm JVM. Its figures lie
in .tidemark/bench/MODULE.json as soon as a line or plot of it is measured; those of all come into figures.json beside
it, are printed as one table, and their plots are drawn there. Each run writes these files anew. Where a module fails,
or somebody interrupts, what was measured until then is kept; the exit code is the number of modules that failed.
`--publish` takes the figures over into docs/performance.json, from which the page and its plots are made.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import page
from benchmarks.pairs import ROUNDS, SCALES, keep, set_up, surroundings, table
from benchmarks.registry import BY_ITSELF, MODULES
from sandbox.checkout import this_checkout
from sandbox.steps import end_by_exception, waited_for


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = f"of {', '.join(MODULES)}; by default all these; or of {', '.join(BY_ITSELF)}"
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=every)
    parser.add_argument("--scale", choices=SCALES, default="full", help="%(default)s is what the goals are set for")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="pairs of each (%(default)s)")
    parser.add_argument("--no-curves", action="store_true", help="leave out what the plots show")
    parser.add_argument("--folder", type=Path, help="where servers and lakes lie (default: a temporary folder)")
    parser.add_argument("--publish", action="store_true", help="write docs/performance.md and its plots")
    options = parser.parse_args()
    if unknown := set(options.modules) - {*MODULES, *BY_ITSELF}:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    set_up()
    end_by_exception()
    folder = this_checkout().made / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    figures: dict[str, Any] = {**surroundings(), "lines": [], "curves": []}
    failed = []
    try:
        for module in options.modules or MODULES:
            own = folder / f"{module}.json"
            own.unlink(missing_ok=True)
            print(f"— {module}", flush=True)
            try:
                if waited_for(command(module, options, own), cwd=this_checkout().root):
                    failed.append(module)
            finally:
                take_in(figures, own)
                keep(figures, folder / "figures.json")
    finally:
        print(f"\n{table(figures['lines'])}\n\nThe figures lie in {folder / 'figures.json'}", flush=True)
    if figures["curves"]:
        draw(folder / "figures.json")
    if options.publish:
        page.publish(figures)
    if failed:
        print(f"Not measured, or not all of it, see above: {', '.join(failed)}", file=sys.stderr)
    return len(failed)


def command(module: str, options: argparse.Namespace, figures: Path) -> list[str]:
    """What measures one module."""
    words = [sys.executable, "-m", f"benchmarks.{module}", "--json", str(figures)]
    words += ["--scale", options.scale, "--rounds", str(options.rounds)]
    words += [] if options.no_curves else ["--curves"]
    return words + ([] if options.folder is None else ["--folder", str(options.folder)])


def take_in(figures: dict[str, Any], own: Path) -> None:
    """The figures of one module, as far as it came."""
    if own.exists():
        of_module = json.loads(own.read_text())
        for part in ("lines", "curves"):
            figures[part] += of_module[part]


def draw(figures: Path) -> None:
    """The plots, beside the figures. They need matplotlib from a registry, and figures are worth something without."""
    try:
        page.draw_plots(figures, figures.parent)
    except subprocess.CalledProcessError as failed:
        print(f"The plots are not drawn: {failed}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
