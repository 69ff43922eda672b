"""Steps of planning a corpus and of using a store for `benchmarks.scale`: seconds and peak memory of each."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.memory import peak_mib

_LEVELS: dict[str, Any] = {"levels": "sentence", "layers": "-1"}


class Steps:
    """Seconds of steps, and the peak memory after each."""

    def __init__(self) -> None:
        self.done: dict[str, dict[str, float]] = {}

    def time(self, name: str, call: Callable[[], Any]) -> Any:
        """Make a call and record it."""
        start = time.perf_counter()
        result = call()
        self.done[name] = {"seconds": round(time.perf_counter() - start, 3), "peak_mib": peak_mib()}
        return result


def planned(given: dict[str, Any]) -> dict[str, Any]:
    """Plan a corpus and write the plan (again: read it), or extract it, or check the store."""
    import bertfeat

    what, inputs, output = given.pop("what"), given.pop("inputs"), Path(given.pop("output"))
    steps = Steps()
    steps.time("start", lambda: None)
    if what == "extract":
        steps.time(what, lambda: bertfeat.extract(inputs, output, **_LEVELS, **given))
    elif what == "verify":
        report = steps.time(what, lambda: bertfeat.verify(output))
        assert report.is_good, report
    else:
        return _plan(steps, inputs, output, {**_LEVELS, **given})
    return {"steps": steps.done}


def _plan(steps: Steps, inputs: str, output: Path, settings: dict[str, Any]) -> dict[str, Any]:
    from bertfeat.config import ExtractConfig
    from bertfeat.extraction.job import open_inputs, open_job
    from bertfeat.progress import Progress
    from bertfeat.store import layout
    from bertfeat.store.writer import open_for_writing

    config = ExtractConfig.from_dict(settings)
    with contextlib.ExitStack() as stack:
        found = steps.time("list and digest", lambda: stack.enter_context(open_inputs(inputs, output, config)))
        job = steps.time("plan", lambda: open_job(config, found, output, Progress(), overwrite=False))
        stack.enter_context(steps.time("open the store", lambda: open_for_writing(output, job.plan)))
        n_bytes = (output / layout.plan_path(job.plan.plan_hash)).stat().st_size
    shards = len(job.plan.shards)
    return {"files": len(found), "rows": job.plan.n_rows, "shards": shards, "plan_bytes": n_bytes, "steps": steps.done}


def used(given: dict[str, Any]) -> dict[str, Any]:
    """Use a store step by step."""
    import bertfeat
    from bertfeat.store import layout

    path, steps = Path(given["store"]), Steps()
    steps.time("start", lambda: None)
    store = steps.time("open", lambda: bertfeat.open_store(path))
    steps.time("count rows", lambda: len(store))
    steps.time("receipts", lambda: list(store.receipts()))
    steps.time("read a column", lambda: store.numpy("sentence", -1))
    steps.time("scan: one column of text", lambda: store.scan("sentence").select("doc_id").collect())
    steps.time("verify", lambda: bertfeat.verify(path))
    names = {"manifest": layout.manifest_path(store.version), "plan": layout.plan_path(store.plan.plan_hash)}
    sizes = {what: (path / name).stat().st_size for what, name in names.items()}
    return {"shards": len(store.plan.shards), "bytes": sizes, "steps": steps.done}
