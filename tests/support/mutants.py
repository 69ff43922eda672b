"""Mutants: small faults that somebody could make, each of which the tests must find.

`make test-mutants` copies the checkout, puts in one fault at a time, and runs the tests that hold its promise. A fault
that these tests do not find is printed, and the exit code is 1.

The table `tests/data/mutants.txt` has a few lines for each fault: the promise that it breaks; the file of the package,
and after a colon the tests; behind `-` the text to replace, which the file has once; and behind `+` the text that
replaces it, if there is one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "tests" / "data" / "mutants.txt"


class Mutant(NamedTuple):
    """A fault: the promise that it breaks, the file of the package, its text before and after, and the tests."""

    promise: str
    file: str
    old: str
    new: str
    tests: str


def read_mutants() -> list[Mutant]:
    """Return the faults of the table."""
    mutants = []
    for block in TABLE.read_text("utf-8").split("\n\n"):
        if not block.startswith("#"):
            promise, where, *lines = block.splitlines()
            file, _, tests = where.partition(": ")
            old, new = ("\n".join(line[1:] for line in lines if line[0] == sign) for sign in "-+")
            mutants.append(Mutant(promise, file, old, new, tests))
    return mutants


def run(mutant: Mutant, folder: Path) -> bool:
    """Put a fault into a copy of the checkout, run its tests, and take it out; return whether the tests found it."""
    file = folder / "bertfeat" / mutant.file
    text = file.read_text("utf-8")
    if text.count(mutant.old) != 1:
        raise SystemExit(f"{mutant.file}: {mutant.old!r} occurs {text.count(mutant.old)} times; must be once")
    file.write_text(text.replace(mutant.old, mutant.new), "utf-8")
    try:
        words = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", *(f"tests/{name}" for name in mutant.tests.split())]
        environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode not in (0, 1):
            raise SystemExit(f"{mutant.promise}: pytest ended with {done.returncode}\n{done.stdout[-2000:]}")
        if done.returncode:
            print([line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))][:1])
        return done.returncode == 1
    finally:
        file.write_text(text, "utf-8")


def main() -> None:
    """Run all mutants, or those whose promise or file has a word of the command line."""
    wanted = [m for m in read_mutants() if all(word in f"{m.promise} {m.file}" for word in sys.argv[1:])]
    alive = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "checkout"
        tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
        for name in tracked.decode().strip("\0").split("\0"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
        for mutant in wanted:
            found = run(mutant, folder)
            print("found" if found else "NOT FOUND", mutant.promise, flush=True)
            alive += [] if found else [mutant.promise]
    print(f"{len(wanted) - len(alive)} of {len(wanted)} faults are found")
    sys.exit(bool(alive))


if __name__ == "__main__":
    main()
