"""Other systems: nothing needs Linux only, files are synced on macOS, and Windows is refused clearly."""

from __future__ import annotations

import fcntl
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertfeat.durable import files
from bertfeat.store.offsets import VectorOffsets, read_values
from tests.support.places import ROOT

# Names that Python has on Linux, but not (or not in every version) on macOS.
LINUX_ONLY = {
    "os": "sched_getaffinity sched_setaffinity sched_getscheduler sched_setscheduler sched_getparam sched_setparam "
    "posix_fadvise posix_fallocate preadv pwritev copy_file_range splice memfd_create eventfd eventfd_read "
    "eventfd_write pidfd_open fdatasync pipe2 getrandom getxattr setxattr listxattr removexattr getresuid getresgid "
    "setresuid setresgid unshare setns O_DIRECT O_TMPFILE O_PATH O_NOATIME O_RSYNC O_LARGEFILE POSIX_FADV_SEQUENTIAL "
    "POSIX_FADV_WILLNEED POSIX_FADV_DONTNEED SCHED_BATCH SCHED_IDLE RWF_NOWAIT RWF_HIPRI RWF_DSYNC RWF_APPEND",
    "fcntl": "F_OFD_GETLK F_OFD_SETLK F_OFD_SETLKW F_SETPIPE_SZ F_GETPIPE_SZ F_ADD_SEALS F_GET_SEALS F_NOTIFY "
    "F_SETLEASE F_GETLEASE F_SETSIG F_GETSIG",
    "resource": "prlimit RUSAGE_THREAD RLIMIT_RTPRIO RLIMIT_RTTIME RLIMIT_SIGPENDING RLIMIT_MSGQUEUE RLIMIT_NICE",
    "signal": "SIGPOLL SIGPWR SIGSTKFLT SIGRTMIN SIGRTMAX SIGCLD sigtimedwait sigwaitinfo pidfd_send_signal",
    "select": "epoll",
    "socket": "AF_NETLINK AF_ALG AF_VSOCK SOCK_CLOEXEC SOCK_NONBLOCK TCP_USER_TIMEOUT TCP_KEEPIDLE",
    "time": "CLOCK_BOOTTIME CLOCK_TAI",
    "mmap": "MAP_POPULATE MAP_STACK MADV_HUGEPAGE MADV_POPULATE_READ MADV_DONTFORK",
}
# For a new process, before other imports: removes these names, and hides /proc and /sys from all code except installed
# packages, which check the platform themselves.
ELSEWHERE = f"""
import importlib, os, sys
for module, names in {LINUX_ONLY!r}.items():
    module = importlib.import_module(module)
    for name in names.split():
        module.__dict__.pop(name, None)

# Python 3.13 defines it with a name that was removed above; on macOS it is this.
if hasattr(os, "process_cpu_count"):
    os.process_cpu_count = os.cpu_count

def hide(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith(("/proc/", "/sys/")):
        frame = sys._getframe(1)
        while frame.f_globals.get("__name__", "").partition(".")[0] in ("pathlib", "os"):
            frame = frame.f_back
        if "site-packages" not in frame.f_code.co_filename:
            raise FileNotFoundError(2, "hidden", arguments[0])

sys.addaudithook(hide)
link = os.readlink
def readlink(path, **options):
    if str(path).startswith("/proc/"):
        raise FileNotFoundError(2, "hidden", path)
    return link(path, **options)
os.readlink = readlink
"""


def run_elsewhere(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE + code], capture_output=True, text=True, timeout=300, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_extraction_and_an_index_need_nothing_that_only_linux_has(tmp_path: Path, tiny_folder: Path) -> None:
    (tmp_path / "corpus.txt").write_text("the bank of the river\na boat\n")
    code = f"""
import bertfeat
from bertfeat.memory import free_memory
place = {str(tmp_path)!r}
corpus, model = place + "/corpus.txt", {str(tiny_folder)!r}
store = bertfeat.extract(corpus, place + "/s", levels=["token", "sentence"], layers="-1", model=model)
assert store.numpy("token", store.columns("token")[-1]).any() and store.take("sentence", "layer_03", [1, 0]).any()
assert bertfeat.verify(place + "/s").is_good
assert free_memory() > 0
index = bertfeat.build_index(store, place + "/x", level="sentence", feature="layer_03")
print(index.search(store.take("sentence", "layer_03", [1]), k=1)["text"][0])
"""
    assert run_elsewhere(code) == "a boat\n"


def test_names_that_only_linux_has_are_read_with_getattr() -> None:
    names = [f"{module}.{name}" for module, names in LINUX_ONLY.items() for name in names.split()]
    pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\b")
    files = [path for folder in ("bertfeat", "pipelines", "examples") for path in (ROOT / folder).rglob("*.py")]
    assert [(path.name, found) for path in files for found in pattern.findall(path.read_text("utf-8"))] == []


class ShortReads(io.FileIO):
    def readinto(self, buffer: Any) -> int:
        return super().readinto(memoryview(buffer)[:99])


def test_a_read_of_fewer_bytes_than_were_asked_for_goes_on(tmp_path) -> None:
    """macOS reads at most 2 GB at once, and file systems of a network may end a read earlier."""
    values = np.arange(5000, dtype=np.float32).reshape(1000, 5)
    (tmp_path / "f").write_bytes(b"head" + values.tobytes())
    column = VectorOffsets(row_bytes=20, starts=np.array([0, 1000]), offsets=np.array([4]))
    with ShortReads(str(tmp_path / "f")) as file:
        for rows in (range(50, 950), np.array([7, 8, 9, 500, 900])):
            out = np.empty((len(rows), 5), np.float32)
            read_values(file, column, rows, 0, out)
            np.testing.assert_array_equal(out, values[np.array(rows)])


@pytest.mark.parametrize(("command", "syncs"), [(None, 1), (fcntl.F_GETFD, 0), (10_051, 1)])
def test_a_file_is_synced_by_what_the_system_offers(tmp_path, monkeypatch, command, syncs) -> None:
    """Linux lacks F_FULLFSYNC; another command of Linux takes its place, one that works or one that is refused."""
    asked = []
    monkeypatch.setattr(os, "fsync", asked.append)
    if command is not None:
        monkeypatch.setattr(fcntl, "F_FULLFSYNC", command, raising=False)
    with (tmp_path / "f").open("wb") as file:
        files.sync_fd(file.fileno())
        assert asked == [file.fileno()] * syncs
    monkeypatch.undo()
    with pytest.raises(OSError, match="Bad file descriptor"):
        files.sync_fd(10_000)


def test_windows_is_refused_with_advice() -> None:
    code = "import sys; sys.platform = 'win32'; import bertfeat"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    last = "ImportError: bertfeat runs on Linux and macOS; on Windows, run it in WSL (Windows Subsystem for Linux)"
    assert done.stderr.splitlines()[-1] == last
