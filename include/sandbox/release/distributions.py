"""Builds the sdists and wheels of tidemark-cdc and airflow-provider-tidemark, and checks them: `make dist`.

`make release` does the same for a version that CHANGELOG.md has a day for, and writes its notes. VERSION, at the top of
the checkout, is the version of both. A copy of the sources is built, so no `build/` and no `*.egg-info` is left in the
checkout.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Final

from sandbox.checkout import Checkout
from sandbox.setup.uv_settings import uv_environment
from sandbox.steps import StepFailed, Steps, run

LIBRARY: Final = "tidemark-cdc"
PROVIDER: Final = Path(__file__).parent / "provider"
PARTS: Final = (
    *("include/tidemark", "plugins/tidemark_airflow", "spark_apps"),
    *("pyproject.toml", "setup.py", "README.md", "LICENSE", "VERSION"),
)
TWINE: Final = "twine==7.0.0"


def build(checkout: Checkout, into: Path) -> list[Path]:
    """The files made: sdist and wheel of each distribution."""
    sources = checkout.made / "tmp" / "distributions"
    shutil.rmtree(sources, ignore_errors=True)
    shutil.rmtree(into, ignore_errors=True)
    try:
        for name, copy in ((LIBRARY, _copy_library), (PROVIDER.name, _copy_provider)):
            copy(checkout.root, sources / name)
            uv = checkout.venv / "bin" / "uv"
            command = [uv, "build", "--no-build-isolation", "--offline", "--python", checkout.python, "--out-dir", into]
            run([*command, sources / name], checkout.logs / f"build-{name}.log", env=os.environ)
    finally:
        shutil.rmtree(sources, ignore_errors=True)
    return sorted([*into.glob("*.whl"), *into.glob("*.tar.gz")])


def _copy_library(root: Path, folder: Path) -> None:
    for part in PARTS:
        (folder / part).parent.mkdir(parents=True, exist_ok=True)
        if (root / part).is_dir():
            shutil.copytree(root / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(root / part, folder / part)


def _copy_provider(root: Path, folder: Path) -> None:
    shutil.copytree(PROVIDER, folder)
    for file in ("LICENSE", "VERSION"):
        shutil.copy(root / file, folder / file)
    examples = folder / "example_dags"
    examples.mkdir()
    for example in (root / "dags").glob("example_*.py"):
        shutil.copy(example, examples)
    readme = folder / "README.md"
    readme.write_text(readme.read_text().replace("{versions}", _tested_versions(root)))
    version = (root / "VERSION").read_text().strip()
    (folder / "dependencies.txt").write_text(f"{LIBRARY}[airflow]=={version}\n")


def _tested_versions(root: Path) -> str:
    """The table of docs/versions.md, as the last `make versions` left it."""
    page = (root / "docs" / "versions.md").read_text()
    return page.partition("<!-- begin: written by make versions -->")[2].partition("<!-- end -->")[0].strip()


def release(checkout: Checkout) -> int:
    """`make release`: what `make dist` makes, of a version whose changes are written down, and its notes in dist/."""
    notes = release_notes((checkout.root / "CHANGELOG.md").read_text(), (checkout.root / "VERSION").read_text().strip())
    code = dist(checkout)
    file = checkout.root / "dist" / "NOTES.md"
    file.write_text(notes)
    print(file.relative_to(checkout.root))
    return code


def release_notes(changelog: str, version: str) -> str:
    """The text of the version in CHANGELOG.md. Raises StepFailed unless it is the newest one, and has a day."""
    newest, _, rest = changelog.partition("\n## ")[2].partition("\n")
    if not re.fullmatch(rf"{re.escape(version)}, \d{{4}}-\d\d-\d\d", newest):
        raise StepFailed(
            f"CHANGELOG.md begins with {newest!r}, and VERSION is {version}: write `## {version}, YYYY-MM-DD` above "
            "what is new, or correct VERSION"
        )
    return rest.partition("\n## ")[0].strip() + "\n"


def dist(checkout: Checkout) -> int:
    """`make dist`: into dist/, checked by twine."""
    steps = Steps()
    with steps.step("sdists and wheels"):
        files = build(checkout, checkout.root / "dist")
    with steps.step("twine check"):
        twine = [checkout.venv / "bin" / "uv", "tool", "run", "--quiet", "--from", TWINE, "twine"]
        env = {**uv_environment(checkout.python), "UV_CACHE_DIR": str(checkout.made / "cache" / "uv")}
        run([*twine, "check", "--strict", *files], checkout.logs / "twine.log", env=env)
    print("\n".join(str(file.relative_to(checkout.root)) for file in files))
    return 0
