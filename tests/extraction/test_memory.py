"""The peak memory does not depend on the size of the corpus: `make test-long`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.places import ROOT


@pytest.mark.promise("memory")
@pytest.mark.long
def test_twenty_times_the_corpus_takes_no_more_memory(capsys):
    command = [sys.executable, "-m", "benchmarks.memory", "--quick"]
    measured = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout)
    with capsys.disabled():
        print(f"\npeak memory on a corpus and on 20 times as much: {measured}")
    assert measured["twenty_times"]["n_lines"] == 20 * measured["one"]["n_lines"]
    assert measured["one"]["n_shards"] > 3
    assert measured["ratio"] <= 1.10
