"""The file of a cache of vectors: a put vector is there or is not, whatever happens to the process or to the bytes."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from bertfeat.errors import BertfeatError, RunError, UserError
from bertfeat.extraction.vectorcache import VectorCache, check_cache
from tests.support.cache_runs import put_killed_at, put_some, value_of
from tests.support.drill import Zygote

MB = 1_000_000


def found(folder: Path, wanted: Mapping[bytes, bytes], before: int | None = None) -> dict[bytes, bytes]:
    with closing(VectorCache(folder, 100 * MB)) as cache:
        sizes = {key: len(value) for key, value in wanted.items()}
        return dict(cache.get(sizes) if before is None else cache.get(sizes, before))


def put(folder: Path, values: Mapping[bytes, bytes], max_bytes: int = 100 * MB) -> None:
    with closing(VectorCache(folder, max_bytes)) as cache:
        cache.put(values.items())


def some(n: int, first: int = 0, size: int = 1500) -> dict[bytes, bytes]:
    return dict(value_of(number, size) for number in range(first, first + n))


def test_what_is_put_is_there_in_the_next_process_too(tmp_path: Path) -> None:
    values = {**some(700), b"empty" * 4: b"", b"large" * 4: bytes(range(256)) * 10_000}
    put(tmp_path / "new" / "cache", values)
    assert found(tmp_path / "new" / "cache", {**values, b"x" * 16: b"y"}) == values
    with closing(VectorCache(tmp_path / "new" / "cache", MB)) as cache:
        assert cache.known([*values, b"x" * 16]) == values.keys()


def test_the_first_value_of_a_key_stays(tmp_path: Path) -> None:
    put(tmp_path, {b"k": b"first"})
    put(tmp_path, {b"k": b"other", b"l": b"new"})
    assert found(tmp_path, {b"k": b"first", b"l": b"new"}) == {b"k": b"first", b"l": b"new"}


def test_a_run_reads_what_was_there_when_it_began(tmp_path: Path) -> None:
    old, new = some(5), some(5, 5)
    put(tmp_path, old)
    with closing(VectorCache(tmp_path, MB)) as cache:
        token = cache.begin("run", is_new=True)
    put(tmp_path, new)
    with closing(VectorCache(tmp_path, MB)) as cache:
        # Resumed, it has the token that it had; as a new run, another.
        assert cache.begin("run", is_new=False) == token
        before = cache.before(token)
        assert cache.begin("run", is_new=True) != token
        # A run that began on another machine.
        elsewhere = cache.before("a token of elsewhere")
        assert cache.before("a token of elsewhere") == elsewhere > before
    assert found(tmp_path, old | new, before) == old
    assert found(tmp_path, old | new, elsewhere) == old | new


@pytest.mark.parametrize("size", [700, 1500, 3000, 20_000, 120_000])
def test_the_file_keeps_its_size_and_the_oldest_used_goes_first(tmp_path: Path, size: int) -> None:
    most = 2 * MB
    first = some(3, size=size)
    put(tmp_path, first, most)
    n_all = 3 * most // (size + 100)
    step = min(200, most // (4 * size))
    for start in range(3, n_all, step):
        put(tmp_path, some(min(step, n_all - start), start, size), most)
        # Vectors that are read are kept.
        with closing(VectorCache(tmp_path, most)) as cache:
            assert dict(cache.get(dict.fromkeys(first, size))) == first
        assert (tmp_path / "vectors.sqlite3").stat().st_size <= most
    last = some(2, n_all - 2, size)
    assert found(tmp_path, last) == last
    everything = some(n_all, 0, size)
    kept = found(tmp_path, everything)
    numbers = [n for n in range(3, n_all) if value_of(n, size)[0] in kept]
    assert numbers == list(range(numbers[0], n_all)), "the newest are kept"
    assert sum(map(len, kept.values())) > most * 0.3


def test_a_smaller_size_takes_effect_and_what_does_not_fit_is_left_out(tmp_path: Path) -> None:
    put(tmp_path, some(1000), 10 * MB)
    file = tmp_path / "vectors.sqlite3"
    assert file.stat().st_size > MB
    with closing(VectorCache(tmp_path, MB)) as cache:
        cache.begin("run", is_new=True)
    assert file.stat().st_size <= MB
    large = {b"large": bytes(MB // 2)}
    put(tmp_path, large, MB)
    assert found(tmp_path, large) == {}
    assert found(tmp_path, some(1000)) != {}


def test_a_kill_at_every_step_leaves_a_cache_that_reads_right(tmp_path: Path, warm: Zygote) -> None:
    values = some(40, size=3000)
    put(tmp_path / "whole", some(10, size=3000))
    passed = 0
    while True:
        passed += 1
        folder = tmp_path / f"killed-{passed}"
        shutil.copytree(tmp_path / "whole", folder)
        ended = warm.run(put_killed_at, passed, str(folder), 40, 3000)
        assert values.items() >= found(folder, values).items() >= some(10, size=3000).items()
        put(folder, values)
        assert found(folder, values) == values
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
    assert passed > 3


def test_processes_put_and_read_at_once(tmp_path: Path, warm: Zygote) -> None:
    """Four processes with values in common, in a cache that holds a part of them, so that each removes what is old."""
    running = [warm.fork(put_some, str(tmp_path / "cache"), 2 * MB, seed) for seed in range(4)]
    assert [warm.wait(pid) for pid in running] == [0] * 4
    with closing(sqlite3.connect(tmp_path / "cache" / "vectors.sqlite3")) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert database.execute(
            "SELECT count(*) FROM entries LEFT JOIN vectors USING (number) WHERE value IS NULL "
        ).fetchone() == (0,)


@pytest.mark.long
def test_kills_at_random_moments(tmp_path: Path, warm: Zygote) -> None:
    lucky = random.Random(5)
    for _ in range(100):
        pids = [warm.fork(put_some, str(tmp_path / "cache"), 2 * MB, lucky.randrange(1000)) for _ in range(3)]
        for pid in pids:
            import time

            time.sleep(lucky.random() * 0.05)
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            warm.wait(pid)
        # Raises if a value is not right.
        found(tmp_path / "cache", some(400))


def is_found_out(folder: Path, values: Mapping[bytes, bytes]) -> bool:
    """Check that the right values come, or one line; return whether it was a line."""
    try:
        assert found(folder, values).items() <= values.items()
        put(folder, values)
        assert found(folder, values).items() <= values.items()
    except UserError as error:
        line = str(error)
    else:
        return False
    assert "\n" not in line
    assert line.startswith(f"{folder / 'vectors.sqlite3'}: ")
    return True


def damage_at_random(tmp_path: Path, n_times: int, *, open_log: bool) -> int:
    lucky = random.Random(7)
    values = some(30) | some(3, 100, 40_000)
    whole = tmp_path / "whole"
    with closing(VectorCache(whole, 100 * MB)) as cache:
        cache.put(values.items())
        if open_log:
            # As a killed process leaves it.
            shutil.copytree(whole, tmp_path / "left")
    source = tmp_path / ("left" if open_log else "whole")
    files = sorted(path.name for path in source.iterdir() if path.stat().st_size)
    n_lines = 0
    for number in range(n_times):
        folder = tmp_path / f"damaged-{number}"
        shutil.copytree(source, folder)
        data = bytearray((folder / files[number % len(files)]).read_bytes())
        kind = number % 4
        at = lucky.randrange(len(data) if number % 3 else min(len(data), 8192))
        if kind == 0:
            del data[at:]
        elif kind == 1:
            data[at : at + 512] = lucky.randbytes(min(512, len(data) - at))
        else:
            data[at] ^= 1 << lucky.randrange(8)
        (folder / files[number % len(files)]).write_bytes(data)
        n_lines += is_found_out(folder, values)
        shutil.rmtree(folder)
    return n_lines


@pytest.mark.parametrize("open_log", [False, True])
def test_damage_anywhere_is_one_line_or_changes_no_vector(tmp_path: Path, open_log: bool) -> None:
    n_lines = damage_at_random(tmp_path, 60, open_log=open_log)
    # A damaged log ends before the damage: what follows was not committed.
    assert open_log or n_lines > 10


@pytest.mark.long
@pytest.mark.parametrize("open_log", [False, True])
def test_3000_damages(tmp_path: Path, open_log: bool) -> None:
    n_lines = damage_at_random(tmp_path, 1500, open_log=open_log)
    assert open_log or n_lines > 300


def test_a_flipped_bit_of_a_value_and_an_exchanged_value_are_one_line(tmp_path: Path) -> None:
    values = some(3)
    for number, change in enumerate(
        (
            "UPDATE vectors SET value = x'00' WHERE number = 2",
            "UPDATE vectors SET value = (SELECT value FROM vectors WHERE number = 1) WHERE number = 2",
            "DELETE FROM vectors WHERE number = 2",
            "UPDATE entries SET digest = x'00' WHERE number = 2",
            "UPDATE entries SET digest = 7 WHERE number = 2",
            "DROP TABLE vectors",
        )
    ):
        folder = tmp_path / str(number)
        put(folder, values)
        with closing(sqlite3.connect(folder / "vectors.sqlite3")) as database, database:
            database.execute(change)
        with pytest.raises(UserError, match=r"is not a cache of vectors, or is damaged \(.*\); delete its folder"):
            found(folder, values)


@pytest.mark.parametrize("quoted", [b"\xc5\xc5", b"\n\n"])
def test_a_damaged_schema_that_sqlite_quotes_is_one_line(tmp_path: Path, quoted: bytes) -> None:
    put(tmp_path, some(3))
    file = tmp_path / "vectors.sqlite3"
    data = file.read_bytes()
    assert b"INDEX by_use" in data
    file.write_bytes(data.replace(b"INDEX by_use", b"INDEX " + quoted + b"_use"))
    assert is_found_out(tmp_path, some(3))


def test_another_version_and_other_files_are_refused(tmp_path: Path) -> None:
    put(tmp_path, some(1))
    with closing(sqlite3.connect(tmp_path / "vectors.sqlite3")) as database, database:
        database.execute("PRAGMA user_version = 1")
    for look in (VectorCache, check_cache):
        with pytest.raises(UserError, match="has version 1, expected 2; choose another cache folder"):
            look(tmp_path, MB)
    other = tmp_path / "other" / "vectors.sqlite3"
    other.parent.mkdir()
    with closing(sqlite3.connect(other)) as database, database:
        database.execute("CREATE TABLE mine (n)")
    with pytest.raises(UserError, match="it holds other tables"):
        VectorCache(other.parent, MB)
    other.write_bytes(b"no database " * 1000)
    with pytest.raises(UserError, match=r"is not a cache of vectors, or is damaged .*; delete its folder"):
        VectorCache(other.parent, MB)


def test_a_full_disk_is_one_line_and_what_was_there_stays(tmp_path: Path) -> None:
    put(tmp_path, some(5))
    with closing(VectorCache(tmp_path, 100 * MB)) as cache:
        # SQLite refuses to grow beyond it, as a full disk does.
        cache._run(f"PRAGMA max_page_count = {cache._pragma('page_count') + 2}")
        with pytest.raises(RunError, match="full; free space, or choose another cache folder") as caught:
            cache.put(some(100, 5).items())
    assert isinstance(caught.value, BertfeatError)
    assert found(tmp_path, some(105)) == some(5)
