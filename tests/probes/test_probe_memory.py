"""Probes learn from stores of five times the memory that they are given: `make test-long`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.places import ROOT

pytestmark = pytest.mark.long


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
