"""The file of a cache of vectors: a put value is there or is not, whatever happens to the process or to the bytes."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bertfeat.errors import RunError
from bertfeat.extraction.vector_cache import FILE, VectorCache
from tests.support.drill import Zygote
from tests.support.runner_fakes import die_at

pytestmark = pytest.mark.promise("saved")

MB = 1_000_000


def some(n: int, first: int = 0, size: int = 1500) -> dict[bytes, bytes]:
    """Return keys and values, which follow from their numbers."""
    return {
        hashlib.sha256(f"{number} {size}".encode()).digest()[:16]: random.Random(number).randbytes(size)
        for number in range(first, first + n)
    }


def found(folder: Path, wanted: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    with VectorCache(folder, 100 * MB) as cache:
        return cache.get(wanted)


def put(folder: Path, values: Mapping[bytes, bytes], max_bytes: int = 100 * MB) -> None:
    with VectorCache(folder, max_bytes) as cache:
        cache.put(values.items())


def put_killed_at(point: int, folder: str) -> None:
    """Put 40 values in two transactions, and die at the step of this number."""
    die_at(point)
    with VectorCache(folder, 100 * MB) as cache:
        for first in (0, 20):
            cache.put(some(20, first, 3000).items())


def put_some(folder: str, seed: int) -> None:
    """Put and read values in an order of the seed, some large, and check those that are read."""
    lucky = random.Random(seed)
    for _ in range(12):
        values = some(100, lucky.randrange(300)) | some(5, lucky.randrange(40), 40_000)
        with VectorCache(folder, 2 * MB) as cache:
            cache.put(values.items())
            assert cache.get(values).items() <= values.items()


@pytest.mark.parametrize("size", [2_000, 120_000])
def test_the_file_keeps_its_size_and_the_oldest_goes_first(tmp_path: Path, size: int) -> None:
    n_all, step = 6 * MB // size, max(100_000 // size, 1)
    for start in range(0, n_all, step):
        put(tmp_path, some(step, start, size), 2 * MB)
        assert (tmp_path / FILE).stat().st_size <= 2 * MB
    everything = some(n_all, 0, size)
    kept = found(tmp_path, everything)
    is_kept = [key in kept for key in everything]
    assert is_kept == sorted(is_kept), "the newest are kept"
    assert sum(is_kept) * size > 2 * MB * 0.3


def test_a_kill_at_every_step_leaves_a_cache_that_reads_right(tmp_path: Path, warm: Zygote) -> None:
    values = some(40, size=3000)
    put(tmp_path / "whole", some(10, size=3000))
    for point in range(1, 6):
        folder = tmp_path / f"killed-{point}"
        shutil.copytree(tmp_path / "whole", folder)
        assert warm.run(put_killed_at, point, str(folder)) == (0 if point == 5 else -signal.SIGKILL)
        assert values.items() >= found(folder, values).items() >= some(10, size=3000).items()
        put(folder, values)
        assert found(folder, values) == values


def test_processes_put_and_read_at_once(tmp_path: Path, warm: Zygote) -> None:
    """Three processes with values in common, in a cache that holds a part of them, so that each removes what is old."""
    running = [warm.fork(put_some, str(tmp_path / "cache"), seed) for seed in range(3)]
    assert [warm.wait(pid) for pid in running] == [0] * 3
    with closing(sqlite3.connect(tmp_path / "cache" / FILE)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert database.execute("SELECT count(*) FROM vectors").fetchone() > (0,)


@pytest.mark.promise("saved")
@pytest.mark.long
def test_kills_at_random_moments(tmp_path: Path, warm: Zygote) -> None:
    lucky = random.Random(5)
    for _ in range(100):
        pids = [warm.fork(put_some, str(tmp_path / "cache"), lucky.randrange(1000)) for _ in range(3)]
        for pid in pids:
            time.sleep(lucky.random() * 0.05)
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            warm.wait(pid)
        assert found(tmp_path / "cache", some(400)).items() <= some(400).items()
    assert found(tmp_path / "cache", some(400)), "no process has kept anything"


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("n_times", [40, pytest.param(1500, marks=pytest.mark.long)])
def test_damage_anywhere_is_one_line_or_changes_no_value(tmp_path: Path, n_times: int, log: bool) -> None:
    lucky, values = random.Random(7), some(30) | some(3, 100, 40_000)
    with VectorCache(tmp_path / "whole", 100 * MB) as cache:
        cache.put(values.items())
        # With its log, as a killed process leaves it.
        shutil.copytree(tmp_path / "whole", tmp_path / "left")
    files = sorted(path for path in (tmp_path / ("left" if log else "whole")).iterdir() if path.stat().st_size)
    n_lost, lines = 0, []
    for number in range(n_times):
        folder = tmp_path / f"damaged-{number}"
        shutil.copytree(files[0].parent, folder)
        file = folder / files[number % len(files)].name
        data = bytearray(file.read_bytes())
        at = lucky.randrange(len(data) if number % 3 else min(len(data), 8192))
        if number % 4 == 0:
            del data[at:]
        elif number % 4 == 1:
            data[at : at + 512] = lucky.randbytes(min(512, len(data) - at))
        else:
            data[at] ^= 1 << lucky.randrange(8)
        file.write_bytes(data)
        try:
            n_lost += found(folder, values) != values
            put(folder, values)
            assert found(folder, values).items() <= values.items()
        except RunError as error:
            lines.append(str(error))
        shutil.rmtree(folder)
    assert all(f"/{FILE}: " in line and "\n" not in line for line in lines)
    assert n_lost > 3
    # A damaged log ends before the damage: what follows was not committed.
    assert log or len(lines) > 3


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE vectors SET value = x'00' WHERE number = 2",
        "UPDATE vectors SET value = (SELECT value FROM vectors WHERE number = 1) WHERE number = 2",
        "DELETE FROM vectors WHERE number = 2",
    ],
)
def test_a_damaged_value_is_encoded_again(tmp_path: Path, change: str) -> None:
    values = some(3)
    put(tmp_path, values)
    with closing(sqlite3.connect(tmp_path / FILE)) as database, database:
        database.execute(change)
    assert found(tmp_path, values) == dict(list(values.items())[::2])
    put(tmp_path, values)
    assert found(tmp_path, values) == values


def test_what_is_no_cache_and_a_full_disk_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / FILE).write_bytes(b"no database " * 1000)
    said = r"file is not a database; free space, delete the file, or choose another folder"
    with pytest.raises(RunError, match=said):
        VectorCache(tmp_path, MB)
    put(tmp_path / "full", some(5))
    connect = sqlite3.connect

    def connect_to_full_disk(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        database = connect(*args, **kwargs)
        # SQLite refuses to grow beyond it, as a full disk does.
        database.execute("PRAGMA max_page_count = 12")
        return database

    monkeypatch.setattr(sqlite3, "connect", connect_to_full_disk)
    with pytest.raises(RunError, match="full; free space, delete the file"):
        put(tmp_path / "full", some(100, 5))
    monkeypatch.undo()
    assert found(tmp_path / "full", some(105)) == some(5)
