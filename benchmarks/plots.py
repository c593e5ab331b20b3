"""docs/performance.json -> one SVG per curve: `plots.py FIGURES FOLDER`.

benchmarks/page.py runs it, with matplotlib in an environment of its own. The two lines of a plot have the same two
colours in all plots; text is text, so that a page can be searched.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

OURS, BESIDE, GREY = "#1f6f8b", "#c06014", "#6b7280"


def draw(curve: dict[str, Any], file: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": curve["name"], "font.size": 10})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.6))
    xs = [point["x"] for point in curve["points"]]
    axes.plot(xs, [point["ours"] for point in curve["points"]], "o-", color=OURS, label=curve["ours"])
    beside = [(point["x"], point["beside"]) for point in curve["points"] if point["beside"] is not None]
    if beside:
        axes.plot(*zip(*beside, strict=True), "s--", color=BESIDE, label=curve["beside"])
        axes.legend(frameon=False)
    if len(xs) > 1 and max(xs) / max(min(xs), 1) > 50:
        axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel(curve["x"])
    axes.set_ylabel(curve["y"])
    axes.set_title(curve["title"], loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(color=GREY)
    axes.grid(axis="y", color="#e5e7eb")
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)


def main(figures: str, folder: str) -> None:
    for curve in json.loads(Path(figures).read_text())["curves"]:
        draw(curve, Path(folder) / f"performance-{curve['name']}.svg")


if __name__ == "__main__":
    main(*sys.argv[1:])
