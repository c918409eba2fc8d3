"""`make test`'s end when tests failed: those of real processes run once more, without neighbours.

python tests/second_try.py EXIT_CODE

tests/contract, tests/e2e and tests/integration start brokers, services and torch ranks, next to
another test that does the same on the same cores. One that failed there and passes alone does not
fail the run, but it is printed as what it is: a bug to fix, in the test or in the platform. It is
not done for any other test, for more than `MOST` of them, or for anything else that went wrong.

Exit code: 0 if all that failed pass now, else 1, or the code that was given.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
FAILED = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
REAL_PROCESSES = ("tests/contract/", "tests/e2e/", "tests/integration/")
TESTS_FAILED = 1
MOST = 8


def main(code: int) -> int:
    """See the module."""
    if code != TESTS_FAILED:
        return code
    failed = sorted(json.loads(FAILED.read_text(encoding="utf-8")))
    others = [name for name in failed if not name.startswith(REAL_PROCESSES)]
    if others or not failed or len(failed) > MOST:
        return code
    print(f"\nfailed beside others, tried once more alone: {', '.join(failed)}", flush=True)
    again = subprocess.run([sys.executable, "-m", "pytest", "-q", *failed], cwd=ROOT, check=False)
    if again.returncode == 0:
        print("passed alone: each of these is a bug to fix, in the test or in the platform")
    return again.returncode


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
