"""`bertfeat` with workers of which one stops in the middle of a shard, for a test to kill it there.

It stops at the step named in `stops/step` beside the output, once two receipts are written, and leaves its process id
in `stops/pid`.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from bertfeat.durable import steps
from bertfeat.extraction import run
from bertfeat.extraction.job import Job

_N_RECEIPTS = 2


class StoppingTask(run.ShardTask):
    def __init__(self, job: Job, *share: Any) -> None:
        super().__init__(job, *share)
        stops, receipts = job.root.parent / "stops", job.root / "_bertfeat" / "receipts"
        wanted = (stops / "step").read_text()

        def hook(name: str) -> None:
            if name == wanted and not (stops / "pid").exists() and len(list(receipts.iterdir())) >= _N_RECEIPTS:
                mine = stops / f"{os.getpid()}"
                mine.write_text(mine.name)
                mine.replace(stops / "pid")
                time.sleep(600)

        steps.hook = hook


def prepare(folder: Path, step: str) -> Path:
    """Say where to stop, for an output in `folder`; return the file that will name the process."""
    (folder / "stops").mkdir()
    (folder / "stops" / "step").write_text(step)
    return folder / "stops" / "pid"


def main() -> None:
    # Workers import it from here by name.
    from bertfeat.cli import main as bertfeat_main
    from tests.support.ray_stops import StoppingTask as Task

    run.ShardTask = Task  # type: ignore[misc]
    bertfeat_main()


if __name__ == "__main__":
    main()
