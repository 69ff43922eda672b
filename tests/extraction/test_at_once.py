"""Two processes that save a probe to one place at once: the result is one of the two, complete."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from bertfeat.heads.folder import load_probe, save_probe
from bertfeat.heads.registry import make_head

N_ROUNDS = 30
# For each line of input, a place and whether to replace what is there, saves the probe in argv[1]; prints the outcome.
SAVING = """
import sys
from pathlib import Path
from bertfeat.errors import BertfeatError
from bertfeat.heads.folder import load_probe, save_probe
source = Path(sys.argv[1])
probe, _ = load_probe(source)
print("ready", flush=True)
for line in sys.stdin:
    place, overwrite = line.split()
    try:
        save_probe(probe, Path(place), {"by": source.name}, overwrite=overwrite == "True")
        print("saved", flush=True)
    except BertfeatError as error:
        print("refused", error, flush=True)
"""


@pytest.mark.usefixtures("no_fsync")
def test_of_two_probes_saved_at_once_one_is_complete(tmp_path):
    vectors = np.random.default_rng(0).standard_normal((40, 64)).astype(np.float32)
    names, processes = ("first", "second"), []
    try:
        for name in names:
            probe = make_head("centroid").fit(vectors, [name, "other"] * 20)
            save_probe(probe, tmp_path / name, {"by": name})
            command = [sys.executable, "-c", SAVING, str(tmp_path / name)]
            processes.append(subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert [process.stdout.readline() for process in processes] == ["ready\n"] * 2
        for number in range(N_ROUNDS):
            overwrite = number % 2 == 1
            place = tmp_path / "probes" / str(number)
            if overwrite:
                save_probe(load_probe(tmp_path / "first")[0], place, {"by": "before"})
            for process in processes:
                process.stdin.write(f"{place} {overwrite}\n")
                process.stdin.flush()
            said = [process.stdout.readline() for process in processes]
            # Loading checks the digests.
            saved_by = load_probe(place)[1]["by"]
            assert said[names.index(saved_by)] == "saved\n", said
            assert overwrite or sorted(line[:5] for line in said) == ["refus", "saved"], said
        assert not [file for file in tmp_path.glob("probes/*") if file.name.startswith(".")]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
