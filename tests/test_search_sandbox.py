"""The process with limits: the same hits as faiss in this process, and nothing that it does harms the caller."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import faiss
import numpy as np
import psutil
import pytest
from index_files import DIM, N_VECTORS, make_faiss, vectors, write_index

from bertfeat.errors import RunError, UserError
from bertfeat.search import files, sandbox, sandbox_process
from bertfeat.search.description import INDEX, IndexDescription
from bertfeat.search.metrics import Metric
from bertfeat.search.sandbox import Limits, SandboxedIndex
from bertfeat.search.transforms import TransformSpec, prepare

pytestmark = [pytest.mark.usefixtures("no_fsync"), pytest.mark.skipif(sys.platform != "linux", reason="Linux limits")]

QUERIES = vectors(9, seed=5)
SETTINGS = [
    {"factory": "Flat", "metric": "cosine", "transform": "whiten:8"},
    {"factory": "IVF8,Flat", "metric": "l2", "parameters": {"nprobe": 3}},
    {"factory": "HNSW16,SQ8", "metric": "ip", "transform": "center", "parameters": {"efSearch": 40}},
    {"factory": "PCA8,IVF8,PQ4x4,RFlat", "metric": "l2", "parameters": {"nprobe": 2, "k_factor_rf": 5}},
]


NORMAL = Limits()


def open_sandboxed(folder: Path, limits: Limits = NORMAL) -> SandboxedIndex:
    description = files.read_description(folder)
    return SandboxedIndex(folder / INDEX, description, files.read_transform(folder, description), limits)


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


@pytest.fixture
def no_child_is_left():
    before = children()
    yield
    gc.collect()
    assert children() <= before


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings["factory"])
def test_it_finds_what_faiss_finds_here(tmp_path, settings, no_child_is_left):
    description = write_index(tmp_path / "x", **settings)
    transform = files.read_transform(tmp_path / "x", description)
    index = faiss.read_index(str(tmp_path / "x" / INDEX))
    for name, value in description.parameters.items():
        faiss.ParameterSpace().set_index_parameter(index, name, value)
    prepared = prepare(QUERIES, transform, description.metric)
    raw, positions = index.search(prepared, 7)
    with open_sandboxed(tmp_path / "x") as found:
        assert (found.n_vectors, found.dim, found.metric) == (N_VECTORS, DIM, description.metric)
        hits = found.search(QUERIES, 7)
        np.testing.assert_array_equal(hits.positions, positions)
        np.testing.assert_allclose(hits.scores, np.sqrt(raw) if description.metric == "l2" else raw, atol=2e-6)
        assert hits.scores.dtype == np.float32
        # One by one, in float16, and with a mask.
        alone = [found.search(QUERIES[n : n + 1], 7).positions[0] for n in range(3)]
        np.testing.assert_array_equal(alone, positions[:3])
        assert found.search(QUERIES.astype(np.float16), 1).positions.shape == (9, 1)
        allowed = np.random.default_rng(3).random(N_VECTORS) < 0.3
        masked = found.search(QUERIES, 4, allowed=allowed)
        assert allowed[masked.positions[masked.positions >= 0]].all()
        assert (masked.positions[:, 0] >= 0).all()


def test_flat_search_is_brute_force_also_with_a_mask_and_large_k(tmp_path):
    write_index(tmp_path / "x", factory="Flat", metric="l2")
    data = vectors().astype(np.float64)
    distances = np.sqrt(((QUERIES[:, None].astype(np.float64) - data[None]) ** 2).sum(axis=2))
    with open_sandboxed(tmp_path / "x") as found:
        hits = found.search(QUERIES, N_VECTORS + 5)
        np.testing.assert_array_equal(hits.positions[:, :N_VECTORS], np.argsort(distances, axis=1))
        np.testing.assert_allclose(hits.scores[:, :N_VECTORS], np.sort(distances, axis=1), atol=1e-5)
        assert (hits.positions[:, N_VECTORS:] == -1).all()
        assert np.isnan(hits.scores[:, N_VECTORS:]).all()
        allowed = np.zeros(N_VECTORS, bool)
        allowed[[3, 399]] = True
        hits = found.search(QUERIES, 3, allowed=allowed)
        assert [set(row) for row in hits.positions.tolist()] == [{3, 399, -1}] * 9
        assert np.isnan(hits.scores[:, 2]).all()
        assert (found.search(QUERIES, 3, allowed=~allowed & False).positions == -1).all()
        assert found.search(QUERIES[:0], 3).positions.shape == (0, 3)


def test_many_queries_are_asked_in_several_requests(tmp_path, monkeypatch):
    write_index(tmp_path / "x")
    with open_sandboxed(tmp_path / "x") as found:
        many = vectors(1000, seed=6)
        whole = found.search(many, 5)
        monkeypatch.setattr(sandbox, "_MAX_HITS", 35)
        again = found.search(many[:50], 5)
    np.testing.assert_array_equal(again.positions, whole.positions[:50])
    np.testing.assert_array_equal(again.scores, whole.scores[:50])


def test_what_cannot_be_asked_is_refused_and_the_index_stays_open(tmp_path):
    write_index(tmp_path / "x", factory="PQ4x4")
    with open_sandboxed(tmp_path / "x") as found:
        for queries, k, allowed, reason in (
            (QUERIES, 0, None, "k is 0: ask for 1"),
            (QUERIES[:, :3], 1, None, r"queries of shape \(9, 3\): the index takes \(n_queries, 16\)"),
            (QUERIES * np.nan, 1, None, "query 0 holds NaN"),
            (QUERIES, 1, np.ones(3, bool), r"allowed is bool of shape \(3,\): give bool of \(400,\)"),
            (QUERIES, 1, np.ones(N_VECTORS), "allowed is float64"),
            # faiss has no filter for this kind of index.
            (
                QUERIES,
                1,
                np.arange(N_VECTORS) > 0,
                "index.faiss: this index cannot be searched among some of its vectors only",
            ),
        ):
            with pytest.raises(UserError, match=reason):
                found.search(queries, k, allowed=allowed)
        assert found.search(QUERIES, 2).positions.shape == (9, 2)


def test_it_is_closed_at_the_end(tmp_path, no_child_is_left):
    write_index(tmp_path / "x")
    with open_sandboxed(tmp_path / "x") as found:
        process = psutil.Process(found._process.process_id)
        assert process.is_running()
    assert not process.is_running()
    with pytest.raises(UserError, match="has ended"):
        found.search(QUERIES, 1)
    found.close()
    forgotten = open_sandboxed(tmp_path / "x")
    process = psutil.Process(forgotten._process.process_id)
    del forgotten
    gc.collect()
    assert not process.is_running()


def test_several_threads_share_it(tmp_path):
    write_index(tmp_path / "x")
    with open_sandboxed(tmp_path / "x") as found:
        want = found.search(QUERIES, 5).positions
        got = []

        def ask() -> None:
            got.extend(found.search(QUERIES, 5).positions for _ in range(10))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(got) == 40
    assert all(np.array_equal(positions, want) for positions in got)


def test_the_process_has_its_limits(tmp_path):
    write_index(tmp_path / "x")
    with open_sandboxed(tmp_path / "x", Limits(cpu_s=77)) as found:
        found.search(QUERIES, 1)
        process = psutil.Process(found._process.process_id)
        assert process.rlimit(resource.RLIMIT_NOFILE) == (0, 0)
        assert process.rlimit(resource.RLIMIT_FSIZE) == (0, 0)
        assert process.rlimit(resource.RLIMIT_CORE) == (0, 0)
        assert process.rlimit(resource.RLIMIT_CPU) == (77, 82)
        n_bytes = process.rlimit(resource.RLIMIT_AS)[1]
        assert 1 << 30 < n_bytes < 3 << 30
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert "NoNewPrivs:\t1" in status
        assert "Threads:\t1" in status
        if os.geteuid() == 0:
            # Not to be read by others, but for the superuser.
            assert set(process.environ()) - {"LD_LIBRARY_PATH"} == set(sandbox_process._ENVIRONMENT)
            targets = {str(entry.readlink()) for entry in Path(f"/proc/{process.pid}/fd").iterdir()}
            files_open = {target for target in targets if not target.startswith("pipe:")}
            # The mapping keeps the file open, for reading.
            assert files_open == {os.devnull, str(tmp_path / "x" / INDEX)}
            assert process.cwd() == "/"
            maps = Path(f"/proc/{process.pid}/maps").read_text()
            assert str(tmp_path / "x" / INDEX) in maps


def test_the_child_loads_no_more_than_searching_needs():
    code = (
        "import sys, faiss, bertfeat.search.index\n"
        "print([name for name in ('torch', 'polars', 'pyarrow', 'transformers', 'click') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def described(n_vectors: int = N_VECTORS, dim: int = DIM, metric: str = "l2") -> IndexDescription:
    return IndexDescription(n_vectors, dim, Metric(metric), TransformSpec.parse("none"), "Flat")


def test_another_index_than_described_is_refused(tmp_path, no_child_is_left):
    faiss.write_index(make_faiss(vectors(), "Flat", Metric.L2), str(tmp_path / "x"))
    for description in (described(n_vectors=399), described(dim=15)):
        with pytest.raises(UserError, match=r"x: is .*, not .* as its description says; the file is"):
            SandboxedIndex(tmp_path / "x", description, None)
    with pytest.raises(UserError, match="x: cannot be loaded: the index compares by another metric than ip"):
        SandboxedIndex(tmp_path / "x", described(metric="ip"), None)
    with SandboxedIndex(tmp_path / "x", described(), None) as found:
        assert found.search(QUERIES, 1).positions.min() >= 0


def test_files_that_faiss_refuses_are_named(tmp_path, no_child_is_left):
    (tmp_path / "empty").touch()
    (tmp_path / "noise").write_bytes(np.random.default_rng(0).bytes(5000))
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    for name in ("empty", "noise", "folder", "fifo"):
        with pytest.raises(UserError, match=f"{name}: cannot be loaded: .*; the file is damaged or hostile"):
            SandboxedIndex(tmp_path / name, described(), None)
    with pytest.raises(UserError, match="nothing: no such file"):
        SandboxedIndex(tmp_path / "nothing", described(), None)


def test_a_file_that_asks_for_more_memory_than_it_may_is_refused(tmp_path, no_child_is_left):
    # An index that claims to hold a hundred billion vectors, and then some.
    data = bytearray(faiss.serialize_index(make_faiss(vectors(), "IVF8,Flat", Metric.L2)).tobytes())
    size = np.int64(N_VECTORS).tobytes()
    at = data.index(size)
    data[at : at + 8] = np.int64(10**11).tobytes()
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(UserError, match="x: "):
        SandboxedIndex(tmp_path / "x", described(), None)
    faiss.write_index(make_faiss(vectors(20000), "Flat", Metric.L2), str(tmp_path / "y"))
    with (
        pytest.raises(UserError, match="y: "),
        SandboxedIndex(
            tmp_path / "y", described(20000), None, Limits(extra_bytes=-2 * (tmp_path / "y").stat().st_size + 100_000)
        ),
    ):
        pass


class Lying:
    """Puts a script in the place of the child: `answers` is the body of a function that gets `out` and `stop`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._patch = folder, monkeypatch

    def does(self, *lines: str, ready: bool = True) -> None:
        body = "\n    ".join(lines)
        script = self._folder / "child.py"
        script.write_text(f"""
import json, os, signal, struct, sys, time
import resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
def say(header, *rest):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    os.write(1, struct.pack("<I", len(text)) + text + b"".join(rest))
def hear():
    size = struct.unpack("<I", os.read(0, 4))[0]
    request = json.loads(os.read(0, size))
    os.read(0, request["n_queries"] * request["dim"] * 4 + request["n_allowed"])
    return request
def hits(scores, positions):
    hear()
    say({{"found": True}}, struct.pack(f"<{{len(scores)}}f", *scores), struct.pack(f"<{{len(positions)}}q", *positions))
LOADED = {{"dim": {DIM}, "index_dim": {DIM}, "n_vectors": {N_VECTORS}}}
def load():
    assert os.read(0, 6) == b"\\2\\0\\0\\0{{}}", "a transform that there is not"
    say(LOADED)
{"say({'ready': True})" if ready else ""}
try:
    {body}
    time.sleep(60)
except BrokenPipeError:
    pass
""")
        self._patch.setattr(sandbox_process, "_CHILD", script)


@pytest.fixture
def child(tmp_path, monkeypatch, no_child_is_left):
    (tmp_path / "x").write_bytes(b"x")
    return Lying(tmp_path, monkeypatch)


SHORT = Limits(load_s=5, answer_s=5)
GARBLED = [
    "os.write(1, b'\\xff' * 4)",
    "say(b'\\xff\\xfe')",
    "say(b'[' * 60000)",
    "say(b'[1]')",
    "say(b'')",
]


@pytest.mark.parametrize("what", [*GARBLED, "say({'dim': 16})", "say({**LOADED, 'dim': 15})", "say({})"])
def test_garbled_answers_to_loading_are_refused(tmp_path, child, what):
    child.does(what)
    with pytest.raises(UserError, match=r"x: (.* gave a garbled answer|is .*, not .* as its description says); the"):
        SandboxedIndex(tmp_path / "x", described(), None, SHORT)


@pytest.mark.parametrize("what", [*GARBLED, "say({'found': False})", "say({'found': True, 'more': 1})"])
def test_garbled_answers_to_a_search_are_refused(tmp_path, child, what):
    child.does("load()", "hear()", what)
    with SandboxedIndex(tmp_path / "x", described(), None, SHORT) as found:
        with pytest.raises(UserError, match="x: the process that it is loaded in gave a garbled answer;"):
            found.search(QUERIES[:1], 2)
        with pytest.raises(UserError, match="has ended"):
            found.search(QUERIES[:1], 2)


@pytest.mark.parametrize(
    ("scores", "positions", "reason"),
    [
        ("[1, 2]", "[0, 400]", "found a position that there is not"),
        ("[1, 2]", "[0, -2]", "found a position that there is not"),
        ("[1, 2]", "[2**62, 0]", "found a position that there is not"),
        ("[1, float('nan')]", "[0, 1]", "gave a score that is no number"),
        ("[1, float('inf')]", "[0, 1]", "gave a score that is no number"),
        ("[1, 2]", "[0, -1]", "gave a score where it found nothing"),
        ("[1, -0.5]", "[0, 1]", "gave a score that no l2 has"),
        ("[1, 1]", "[7, 7]", "found a vector twice"),
        ("[1, 1]", "[7, 8]", "found a vector that was not allowed"),
    ],
)
def test_hits_that_cannot_be_are_refused(tmp_path, child, scores, positions, reason):
    child.does("load()", f"hits({scores}, {positions})")
    with SandboxedIndex(tmp_path / "x", described(), None, SHORT) as found:
        with pytest.raises(UserError, match=f"x: the process that it is loaded in {reason}; the file"):
            found.search(QUERIES[:1], 2, allowed=np.arange(N_VECTORS) != 8)
        with pytest.raises(UserError, match="has ended"):
            found.search(QUERIES[:1], 2)


def test_hits_that_can_be_are_taken(tmp_path, child):
    child.does("load()", "hits([4, float('nan')], [7, -1])", "hits([0, 0.5], [1, 0])", "say({'error': 'no\\n'})")
    with SandboxedIndex(tmp_path / "x", described(), None, SHORT) as found:
        hits = found.search(QUERIES[:1], 2)
        assert hits.positions.tolist() == [[7, -1]]
        assert hits.scores[0, 0] == 4
        assert np.isnan(hits.scores[0, 1])
        assert found.search(QUERIES[:1], 2).scores.tolist() == [[0, 0.5]]
        with pytest.raises(UserError, match=r"x: no\?$"):
            found.search(QUERIES[:1], 2)


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGKILL", "SIGFPE", "SIGBUS"])
def test_a_crash_is_a_line(tmp_path, child, name):
    crash = f"os.kill(os.getpid(), signal.{name})"
    child.does(crash)
    with pytest.raises(UserError, match=rf"x: the process that it is loaded in crashed \({name}\); the file is"):
        SandboxedIndex(tmp_path / "x", described(), None, SHORT)
    child.does("load()", "hear()", crash)
    with (
        SandboxedIndex(tmp_path / "x", described(), None, SHORT) as found,
        pytest.raises(UserError, match=rf"x: .* crashed \({name}\)"),
    ):
        found.search(QUERIES[:1], 2)


def test_a_crash_before_a_large_request_is_read_is_a_line(tmp_path, child):
    child.does("load()", "os._exit(3)")
    with (
        SandboxedIndex(tmp_path / "x", described(), None, SHORT) as found,
        pytest.raises(UserError, match="loaded in ended before it had answered"),
    ):
        found.search(vectors(5000), 2)


@pytest.mark.parametrize("endless", ["time.sleep(60)", "while True: pass", "while True: os.write(1, b' ' * 4096)"])
def test_a_hang_is_a_line(tmp_path, child, endless):
    limits = Limits(load_s=3, answer_s=0.3)
    child.does("load()", "hear()", endless)
    with (
        SandboxedIndex(tmp_path / "x", described(), None, limits) as found,
        pytest.raises(UserError, match=r"x: .* (gave no answer in time|gave a garbled answer);"),
    ):
        found.search(QUERIES[:1], 2)
    child.does("load()", "time.sleep(60)")
    with (
        SandboxedIndex(tmp_path / "x", described(), None, limits) as found,
        pytest.raises(UserError, match="loaded in gave no answer in time"),
    ):
        found.search(np.repeat(QUERIES, 900, axis=0), 2)


def test_too_much_computing_is_a_line(tmp_path, child):
    child.does("resource.setrlimit(resource.RLIMIT_CPU, (1, 2))", "while True: pass")
    with pytest.raises(UserError, match="loaded in computed for longer than it may"):
        SandboxedIndex(tmp_path / "x", described(), None, SHORT)


def test_a_process_that_does_not_start_is_no_fault_of_the_file(tmp_path, child, monkeypatch):
    for first in ("say({'error': 'No module named faiss'})", "os._exit(1)", "say({'ready': False})"):
        child.does(first, ready=False)
        with pytest.raises(RunError, match=r"cannot start a process to load .*x in: "):
            SandboxedIndex(tmp_path / "x", described(), None, SHORT)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    with pytest.raises(RunError, match=r"cannot start a process to load .*x in: .*No such file"):
        SandboxedIndex(tmp_path / "x", described(), None, SHORT)


def test_a_search_that_is_broken_off_ends_the_process(tmp_path, monkeypatch):
    write_index(tmp_path / "x")
    with open_sandboxed(tmp_path / "x") as found:

        def interrupted(deadline: float) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(found._process, "receive_header", interrupted)
            with contextlib.suppress(KeyboardInterrupt):
                found.search(QUERIES, 1)
        with pytest.raises(UserError, match="has ended"):
            found.search(QUERIES, 1)


def test_modules_beside_the_working_folder_are_not_imported(tmp_path, monkeypatch):
    write_index(tmp_path / "x")
    for name in ("numpy", "faiss", "json"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit({json.dumps(name)})")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend("")
    with open_sandboxed(tmp_path / "x") as found:
        assert found.search(QUERIES, 1).positions.min() >= 0
