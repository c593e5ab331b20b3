from __future__ import annotations

import sys

from sandbox.setup.set_up import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
