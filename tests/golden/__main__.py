"""`python -m golden RELEASE`: write the logs of a release, once.

`python -m golden RELEASE --states`: while it is not released, record again how its states are kept.

`python -m golden RELEASE --logs`: while it is not released, record the logs that it lacks.
"""

from __future__ import annotations

import sys

from golden.record import FOLDER, write_logs, write_release, write_states

if __name__ == "__main__":
    match sys.argv[1:]:
        case [release]:
            write_release(FOLDER / release)
        case [release, "--logs"]:
            write_logs(FOLDER / release)
            write_states(FOLDER / release)
        case [release, "--states"]:
            write_states(FOLDER / release)
        case _:
            raise SystemExit(__doc__)
