"""Pipeline files with texts put in, cut out, doubled and replaced, by seed: never an error beside the problems."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.thorough import seeds_of_damage
from tidemark.config import file_reader

SOUND = (Path(__file__).parent / "pipelines" / "shop.yaml").read_text()
DAMAGES = 40
HOSTILE = (
    *(
        "&a ",
        "*a",
        "!!python/object:os.system ",
        "- ",
        "{",
        "}",
        "[",
        "]",
        ": ",
        "? ",
        "|\n",
        ">\n",
        "\t",
        "\0",
        "\x85",
    ),
    *("'", '"', "%", "@", "`", "#", "---\n", "...\n", "<<: ", "null", "~", "1e999", "0x1f", "2001-01-01", "9" * 400),
    *("-.inf", ".nan", "!!binary aGk=", "!!set {a}", "!!timestamp noon", "!!int one", "!!float x", "!!bool maybe"),
    *("? [a, b]\n: c\n", "\ufeff", "a: " * 50, "[" * 1200, "12:30:45", "2024-13-45", "1_000", "!unknown x"),
)


def damaged(random_: random.Random, text: str) -> bytes:
    for _ in range(random_.randint(1, 4)):
        at = random_.randrange(len(text))
        lines = text.splitlines(keepends=True)
        line = random_.randrange(len(lines))
        match random_.randrange(4):
            case 0:
                text = text[:at] + random_.choice(HOSTILE) + text[at:]
            case 1:
                text = (text[:at] + text[at + random_.randint(1, 30) :]) or " "
            case 2:
                lines.insert(random_.randrange(len(lines)), lines[line])
                text = "".join(lines)
            case 3:
                lines[line] = f"{lines[line].partition(':')[0]}: {random_.choice(HOSTILE)}\n"
                text = "".join(lines)
    written = bytearray(text.encode())
    if random_.random() < 0.1:
        written[random_.randrange(len(written))] = random_.randrange(256)
    return bytes(written)


@pytest.mark.parametrize("seed", seeds_of_damage(*range(4), below=200))
def test_a_damaged_file_is_read_or_has_problems(seed: int, tmp_path: Path) -> None:
    random_ = random.Random(seed)
    path = tmp_path / "shop.yaml"
    for _ in range(DAMAGES):
        path.write_bytes(damaged(random_, SOUND))
        config, problems = file_reader.read(path)
        assert (config is None) == bool(problems)
