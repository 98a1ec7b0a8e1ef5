#!/usr/bin/env python3
"""Run check_cases.py on all cases of this folder (given/ and own/) and compare its failures with later.txt.

    run.py --plan 'allot plan' [--jobs N]

A case that later.txt names must not pass, else its line is out of date; every other case
must. Prints check_cases.py's lines for cases that fail unexpectedly, then `N passed, N failed`.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def later() -> dict[str, str]:
    lines = (HERE / "later.txt").read_text(encoding="utf-8").splitlines()
    named = (line.split(":", 1) for line in lines if line.strip() and not line.startswith("#"))
    return {name.strip(): key.strip() for name, key in named}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plan", required=True, metavar="CMD")
    parser.add_argument("--jobs", type=int, default=2, metavar="N")
    options = parser.parse_args()
    lines, total = "", 0
    for folder in ("given", "own"):
        command = [sys.executable, str(HERE / "check_cases.py"), "--plan", options.plan,
                   str(HERE / folder), "--jobs", str(options.jobs), "--determinism"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        counts = re.search(r"(\d+) passed, (\d+) failed\s*$", done.stdout)
        if not counts:
            print(done.stdout + done.stderr, file=sys.stderr)
            return 2
        lines += done.stdout
        total += sum(map(int, counts.groups()))
    expected = later()
    failed = {match[1]: match[0] for match in re.finditer(r"^FAIL ([^:]+): .*$", lines, re.M)}
    wrong = [line for name, line in failed.items() if name not in expected]
    wrong += [f"FAIL {name}: passes now; take it out of later.txt" for name in expected if name not in failed]
    for line in wrong:
        print(line)
    count = total - len(expected)
    print(f"{len(expected)} cases wait for keys that are not built yet")
    print(f"{count - len(wrong)} passed, {len(wrong)} failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
