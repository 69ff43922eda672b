"""`bertfeat` with a worker that stops in the middle of a shard, so that a test can kill it there.

The worker stops at the step named in `stops/step` beside the output, after it has written a receipt, and writes its
process id to `stops/pid`.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from bertfeat.durable import steps
from bertfeat.extraction import run
from bertfeat.extraction.job import Job

_task_of = run.task_of


def stopping_task_of(job: Job, *share: Any) -> Any:
    stops, passed = job.root.parent / "stops", set[str]()
    wanted = (stops / "step").read_text()

    def hook(name: str) -> None:
        if name == wanted and "receipt.durable" in passed and not (stops / "pid").exists():
            mine = stops / f"{os.getpid()}"
            mine.write_text(mine.name)
            mine.replace(stops / "pid")
            time.sleep(600)
        passed.add(name)

    steps.hook = hook
    return _task_of(job, *share)


def prepare(folder: Path, step: str) -> Path:
    """Set the step to stop at, for an output in `folder`; return the file that will have the process id."""
    (folder / "stops").mkdir()
    (folder / "stops" / "step").write_text(step)
    return folder / "stops" / "pid"


def main() -> None:
    # Workers import it from here by name.
    from bertfeat.cli import main as bertfeat_main
    from tests.support.ray_stops import stopping_task_of as task_of

    run.task_of = task_of
    bertfeat_main()


if __name__ == "__main__":
    main()
