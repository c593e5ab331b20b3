"""One decoder under Atheris, which sees the lines that an input reaches.

`python -m tests.fuzzing.instrumented NAME PROGRAM OPTIONS`: PROGRAM is what libFuzzer starts to merge inputs, and
OPTIONS are its own, and folders of inputs.
"""

from __future__ import annotations

import random
import struct
import sys
from contextlib import suppress

import atheris

with atheris.instrument_imports(include=["tidemark"]):
    from tests.fuzzing.decoders import DECODERS


def main() -> None:
    _, name, *arguments = sys.argv
    decoder = DECODERS[name]

    def mutated(content: bytes, most: int, seed: int) -> bytes:
        """By the decoder's own grammar half the time, else by libFuzzer."""
        random_ = random.Random(seed)
        if random_.random() < 0.5:
            with suppress(RecursionError, ValueError, struct.error):  # such as a part that is too long
                return decoder.mutated(content, random_)[:most]
        return atheris.Mutate(content, most)

    atheris.Setup(arguments, decoder.has_read, **({"custom_mutator": mutated} if decoder.mutated else {}))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
