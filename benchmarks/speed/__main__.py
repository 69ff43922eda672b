"""Run workloads and write their results.

    python -m benchmarks.speed                                every workload, three rounds
    python -m benchmarks.speed short-token mixed              some of them
    python -m benchmarks.speed --quick                        a few hundred rows, one round
    python -m benchmarks.speed short-token --rivals "flair"   bertfeat against some rivals only

`--output STEM` writes STEM.json, STEM.md, STEM.png and STEM.svg; workloads that are in STEM.json and are not run stay
in it, so that a long benchmark may be run in parts. Peers with environments of their own: FLAIR_PYTHON, ENGINES_PYTHON.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.speed.checks import CHECKS
from benchmarks.speed.harness import Setup, run_workload
from benchmarks.speed.report import table, write_report
from benchmarks.speed.workloads import WORKLOADS

# Together they show every kind of output and of peer.
_QUICK = ("short-token", "short-word", "mixed")
_QUICK_ROWS = 120


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*WORKLOADS, *CHECKS]
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(names)}")
    parser.add_argument("--quick", action="store_true", help="few rows, one round, no search for batch sizes")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--rows", type=int, help="rows of each corpus, instead of the workload's own number")
    parser.add_argument("--rivals", help="names with semicolons; bertfeat always runs")
    parser.add_argument("--output", type=Path, help="write OUTPUT.json, .md, .png and .svg")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.workloads if name not in names]:
        parser.error(f"no workload {unknown[0]!r}; there are {', '.join(names)}")
    chosen = arguments.workloads or (_QUICK if arguments.quick else names)
    setup = Setup(
        n_rounds=arguments.rounds or (1 if arguments.quick else 3),
        n_rows=arguments.rows or (_QUICK_ROWS if arguments.quick else None),
        sweep=not arguments.quick,
        only=[name.strip() for name in arguments.rivals.split(";")] if arguments.rivals else [],
    )
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for name in chosen:
            print(name, file=sys.stderr)
            place = Path(folder) / name
            place.mkdir()
            if name in CHECKS:
                results[name] = CHECKS[name](place, setup)
            else:
                results[name] = run_workload(WORKLOADS[name], place, setup)
            if arguments.output:
                write_report(results, arguments.output, command(sys.argv[1:]))
    print(table(results))


def command(arguments: list[str]) -> str:
    """Return the command that a figure names."""
    return " ".join(["python -m benchmarks.speed", *(f'"{a}"' if " " in a else a for a in arguments)])


if __name__ == "__main__":
    main()
