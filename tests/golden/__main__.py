"""`python -m golden RELEASE`: write the logs of a release, once."""

from __future__ import annotations

import sys

from golden.record import FOLDER, write_release

if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    write_release(FOLDER / sys.argv[1])
