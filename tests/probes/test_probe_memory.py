"""Memory that is free, and probes that learn from stores of five times what they are given."""

from __future__ import annotations

import json
import resource
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
    group = tmp_path / "job"
    group.mkdir()
    (group / "memory.max").write_text("500000000\n")
    (group / "memory.current").write_text("300000000\n")
    (group / "memory.stat").write_text("anon 1\ninactive_file 50000000\n")
    names = ("memory.max", "memory.current", "inactive_file")
    assert list(memory._of_group(tmp_path, "/job/step", names)) == [250_000_000]
    (group / "memory.max").write_text("max\n")
    assert list(memory._of_group(tmp_path, "/job/step", names)) == []
    monkeypatch.setattr(memory, "_of_groups", lambda: iter([7]))
    assert free_memory() == 7


def test_memory_is_that_of_the_address_space() -> None:
    limit = 1 << 32
    script = "from bertfeat.memory import free_memory; print(free_memory())"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert 0 < int(done.stdout) < limit
