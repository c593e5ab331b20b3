"""Figures -> docs/performance.json, the table of docs/performance.md, its plots: `python -m benchmarks.page [FILE …]`.

What the page says in figures is what the file says: a test compares them. Lines that a run did not measure stay as
they were, each with the date and the commit it was measured at.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.pairs import table
from benchmarks.registry import benchmarks, curves
from sandbox.checkout import this_checkout
from sandbox.setup.uv_settings import uv_environment

BEGIN: Final = "<!-- written by python -m benchmarks.page -->"
END: Final = "<!-- end of what was written -->"
WHERE: Final = ("date", "commit", "machine", "versions")


def file() -> Path:
    return this_checkout().root / "docs" / "performance.json"


def pictures() -> Path:
    return this_checkout().root / "docs" / "pictures"


def publish(figures: Mapping[str, Any]) -> None:
    """Take new figures over into the file, and write page and plots anew."""
    take_over(figures)
    write_page()
    draw_plots(file(), pictures())


def take_over(figures: Mapping[str, Any]) -> None:
    there = json.loads(file().read_text()) if file().exists() else {"lines": [], "curves": []}
    where = {name: figures[name] for name in WHERE}
    for part, order in (("lines", list(benchmarks())), ("curves", list(curves()))):
        measured = {entry["name"]: {**entry, **where} for entry in figures[part]}
        kept = {entry["name"]: entry for entry in there[part]}
        there[part] = [(kept | measured)[name] for name in order if name in kept | measured]
    file().write_text(json.dumps(there, indent=1, ensure_ascii=False) + "\n")


def write_page() -> None:
    page = this_checkout().root / "docs" / "performance.md"
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{written(json.loads(file().read_text()))}\n\n{END}{after}")


def written(figures: Mapping[str, Any]) -> str:
    """The page's table, and below it where and when its lines and the plots were measured, and at which scale."""
    parts = [table(figures["lines"])]
    for lines in _alike(figures["lines"]):
        least, most = min(line["load"][0] for line in lines), max(line["load"][1] for line in lines)
        parts.append(f"{_named(lines)}: {_where(lines[0])}; load of the machine {least:g} to {most:g}.")
    parts += [f"Plots of {_named(drawn)}: {_where(drawn[0])}." for drawn in _alike(figures["curves"])]
    return "\n\n".join(parts)


def _alike(entries: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Lines or curves, those together that were measured on one day, at one commit and scale."""
    runs: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for entry in entries:
        runs.setdefault((entry["date"][:10], entry["commit"], entry["scale"]), []).append(entry)
    return list(runs.values())


def _named(entries: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"`{entry['name']}`" for entry in entries)


def _where(entry: Mapping[str, Any]) -> str:
    machine = entry["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in entry["versions"].items())
    return (
        f"{entry['date'][:10]}, commit {entry['commit']}, scale `{entry['scale']}`, {machine['cores']} cores of "
        f"{machine['processor']}, {machine['memory_gb']} GB; {packages}"
    )


def draw_plots(figures: Path, folder: Path) -> None:
    """With matplotlib, which nothing else needs, in an environment of its own."""
    checkout = this_checkout()
    requirements = checkout.root / "benchmarks" / "requirements.txt"
    uv = [str(checkout.venv / "bin" / "uv"), "run", "--quiet", "--no-project", "--python", str(checkout.python)]
    plots = checkout.root / "benchmarks" / "plots.py"
    command = [*uv, "--with-requirements", str(requirements), "python", str(plots), str(figures)]
    subprocess.run([*command, str(folder)], check=True, env=uv_environment(checkout.python))


def main(files: Sequence[str]) -> None:
    """Take over what single modules wrote with `--json`, if any are named, and write the page anew."""
    for name in files:
        take_over(json.loads(Path(name).read_text()))
    write_page()
    draw_plots(file(), pictures())


if __name__ == "__main__":
    main(sys.argv[1:])
