"""Memory that is free, and probes that learn from stores of five times what they are given."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bertfeat import memory
from bertfeat.memory import free_memory
from tests.support.places import ROOT


@pytest.mark.long
def test_a_store_of_five_times_the_memory_gives_the_same_score(capsys):
    command = [sys.executable, "-m", "benchmarks.probe_memory", "--quick", "--heads", "logreg,ridge,centroid"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    measured = json.loads(done.stdout)
    assert measured["store_mib"] == pytest.approx(5 * measured["max_memory_mib"])
    for head, found in measured["heads"].items():
        with capsys.disabled():
            own = [round(found[how]["own_mib"]) for how in ("streamed", "in_memory")]
            print(f"\n{head}: {own[0]} MiB streamed, {own[1]} MiB in memory, of {measured['store_mib']:.0f} MiB")
        assert found["streamed"]["streamed"]
        assert not found["in_memory"]["streamed"]
        assert found["streamed"]["own_mib"] <= measured["max_memory_mib"]
        assert found["streamed"]["accuracy"] == pytest.approx(found["in_memory"]["accuracy"], abs=0.005)


def test_memory_is_that_of_the_control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "group_folders", lambda _: [tmp_path / "job" / "step", tmp_path / "job", tmp_path])
    group = tmp_path / "job"
    group.mkdir()
    for limit, used, reclaimable in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        (group / limit).write_text("400000\n")
        (group / used).write_text("300000\n")
        (group / "memory.stat").write_text(f"anon 1\n{reclaimable} 50000\n")
        assert free_memory() == 150_000
        (group / limit).write_text("max\n")
        assert free_memory() > 150_000
