"""`bertfeat` with a worker that stops in the middle of a shard, so that a test can kill it there.

The worker stops at the step named in `stops/step` beside the output, after two receipts are written, and writes its
process id to `stops/pid`.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from bertfeat.durable import steps
from bertfeat.extraction import shardtask
from bertfeat.extraction.job import Job

_N_RECEIPTS = 2


class StoppingTask(shardtask.ShardTask):
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
    """Set the step to stop at, for an output in `folder`; return the file that will have the process id."""
    (folder / "stops").mkdir()
    (folder / "stops" / "step").write_text(step)
    return folder / "stops" / "pid"


def main() -> None:
    # Workers import it from here by name.
    from bertfeat.cli import main as bertfeat_main
    from tests.support.ray_stops import StoppingTask as Task

    shardtask.ShardTask = Task  # type: ignore[misc]
    bertfeat_main()


if __name__ == "__main__":
    main()
