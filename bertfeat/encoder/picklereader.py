"""The process with limits that reads pickle files and writes their tensors as safetensors; `pickleprocess` starts it.

It runs as a file and imports nothing of bertfeat. Settings are JSON in the first argument. It writes into files that
are there already: the tensors into those with numbers for names, and what it did into `report`.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import re
import resource
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

# Names of linux/sched.h, linux/prctl.h and linux/landlock.h. The numbers of the calls are those of every processor.
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
_NO_NEW_PRIVILEGES = 38
_CAPABILITIES_V3 = 0x20080522
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_WRITE_FILE, _READ_FILE, _READ_FOLDER, _TRUNCATE = 1 << 1, 1 << 2, 1 << 3, 1 << 14
# How many rights on files each version knows.
_N_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
_MAX_FILE_RIGHTS = 16

# Of the system; libraries are also loaded late.
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")

# What Python reports before it happens, and what reading tensors never does.
_REFUSED = (
    *("ctypes.", "ftplib.", "http.", "os.chmod", "os.chown", "os.exec", "os.fork", "os.kill", "os.link", "os.mkdir"),
    *("os.posix_spawn", "os.putenv", "os.remove", "os.rename", "os.rmdir", "os.spawn", "os.symlink", "os.system"),
    *("os.truncate", "os.utime", "pickle.", "pty.", "shutil.", "smtplib.", "socket.", "subprocess.", "urllib."),
)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# torch's names of types, and those of safetensors.
_DTYPES = {f"float{n}": f"F{n}" for n in (16, 32, 64)} | {"bfloat16": "BF16", "bool": "BOOL"}
_DTYPES |= {f"{kind}int{n}": f"{'U' if kind else 'I'}{n}" for kind in ("", "u") for n in (8, 16, 32, 64)}
_MEMORY = "takes more memory than a file of its size needs"
_MAX_REASON = 300
_MAX_LEFT_OUT = 1_000


class Refused(Exception):
    """A pickle file cannot be converted; the message says why."""


def leave_system() -> bool:
    """Give up the network and all privileges, and return whether the network is gone; only on Linux.

    The process must not have a second thread yet.
    """
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    # Where users may not have namespaces of their own, root may.
    has_left = any(libc.unshare(kind) == 0 for kind in (_NEW_USER | _NEW_NETWORK, _NEW_NETWORK))
    libc.capset((ctypes.c_uint32 * 2)(_CAPABILITIES_V3, 0), (ctypes.c_uint32 * 6)())
    return has_left


def limit(max_bytes: int, max_file_bytes: int, cpu_s: int) -> None:
    """Limit memory beyond what is mapped by now, the size of each file, computing time and processes."""
    if sys.platform == "linux":
        n_mapped = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * mmap.PAGESIZE
        _set(resource.RLIMIT_AS, n_mapped + max_bytes)
    # The first limit ends the process by a signal that tells why, the second one in any case.
    _set(resource.RLIMIT_CPU, cpu_s, cpu_s + 5)
    _set(resource.RLIMIT_FSIZE, max_file_bytes)
    _set(resource.RLIMIT_CORE, 0)
    _set(resource.RLIMIT_NOFILE, 64)
    _set(resource.RLIMIT_NPROC, 0)


def _set(what: int, soft: int, hard: int | None = None) -> None:
    most = resource.getrlimit(what)[1]
    wanted = (soft, soft if hard is None else hard)
    if most != resource.RLIM_INFINITY:
        wanted = (min(wanted[0], most), min(wanted[1], most))
    resource.setrlimit(what, wanted)


def landlock_version() -> int:
    """Return the version of Landlock of this Linux; 0 or less without it."""
    return (
        int(ctypes.CDLL(None).syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)) if sys.platform == "linux" else 0
    )


def close_files(readable: list[str], folder: str) -> bool:
    """Let the process read and write only there from now on, and execute nothing; return whether the system can."""
    version = landlock_version()
    if sys.platform != "linux" or version < 1:
        return False
    libc = ctypes.CDLL(None)
    rights = (1 << _N_FILE_RIGHTS.get(version, _MAX_FILE_RIGHTS)) - 1
    # Also TCP since version 4; signals and sockets without a path since version 6.
    handled = (ctypes.c_uint64 * 3)(rights, 3, 3)
    n_bytes = 8 if version < 4 else 16 if version < 6 else 24
    rules = libc.syscall(_CREATE_RULESET, handled, ctypes.c_size_t(n_bytes), 0)
    if rules < 0:
        return False
    writing = (_READ_FILE | _WRITE_FILE | _TRUNCATE) & rights
    allowed = {place: _READ_FILE | (_READ_FOLDER if Path(place).is_dir() else 0) for place in readable}
    for place, right in {**allowed, folder: writing}.items():
        if Path(place).exists():
            fd = os.open(Path(place), getattr(os, "O_PATH", 0) | os.O_CLOEXEC)
            rule = right.to_bytes(8, sys.byteorder) + fd.to_bytes(4, sys.byteorder)
            libc.syscall(_ADD_RULE, rules, 1, rule, 0)
            os.close(fd)
    is_closed = bool(libc.syscall(_RESTRICT_SELF, rules, 0) == 0)
    os.close(rules)
    return is_closed


def watch(writable: list[str]) -> None:
    """Refuse what Python reports that reading tensors never does."""
    places = frozenset(writable)

    def refuse(event: str, args: tuple[Any, ...]) -> None:
        writes = event == "open" and args[2] & _WRITING and str(args[0]) not in places
        if writes or event.startswith(_REFUSED):
            raise Refused(f"asks for {event}, which reading tensors does not need")

    sys.addaudithook(refuse)


class Writer:
    """Writer of the tensors of pickle files into numbered files of safetensors.

    Args:
        n_files: How many files there are.
        max_bytes: The most that all tensors may hold.
        shard_bytes: The size from which on a further file is begun.
    """

    def __init__(self, n_files: int, max_bytes: int, shard_bytes: int) -> None:
        self.left_out: list[str] = []
        self.n_written = 0
        self._n_files = n_files
        self._rest = max_bytes
        self._shard_bytes = shard_bytes

    def convert(self, path: str) -> list[int]:
        """Write the tensors of a pickle file; return the numbers of the files."""
        tensors = self._tensors(_load(path))
        first = self.n_written
        shard: dict[str, Any] = {}
        n_bytes = 0
        for name in sorted(tensors):
            if shard and n_bytes + tensors[name].nbytes > self._shard_bytes:
                self._write(shard)
                shard, n_bytes = {}, 0
            shard[name] = tensors[name]
            n_bytes += tensors[name].nbytes
        self._write(shard)
        return list(range(first, self.n_written))

    def _tensors(self, loaded: Any) -> dict[str, Any]:
        import torch

        if not isinstance(loaded, dict):
            raise Refused(f"holds a {type(loaded).__name__}, not tensors by name")
        for name in loaded:
            if type(name) is not str or not name or not name.isprintable() or name == "__metadata__":
                raise Refused(f"{name!r:.60} is not the name of a tensor")
        tensors = {name: value for name, value in loaded.items() if isinstance(value, torch.Tensor)}
        others = [name[:100] for name in loaded if name not in tensors]
        if not tensors:
            keys = ", ".join(others[:5]) or "none"
            raise Refused(f"no tensors by name at its top (its keys: {keys:.200}), so transformers cannot read it")
        self.left_out += others[: _MAX_LEFT_OUT - len(self.left_out)]
        for name, tensor in tensors.items():
            _check(name, tensor)
            self._rest -= tensor.nbytes
            if self._rest < 0:
                raise Refused("its tensors claim far more values than the file holds")
        return tensors

    def _write(self, tensors: dict[str, Any]) -> None:
        import torch

        if self.n_written == self._n_files:
            raise Refused("its tensors need more files than their size asks for")
        # Larger types first, as safetensors' own writer does, so that every value lies at a multiple of its size.
        names = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name in names:
            tensor, start = tensors[name], end
            end += tensor.nbytes
            header[name] = {"dtype": _dtype(tensor), "shape": list(tensor.shape), "data_offsets": [start, end]}
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        with Path(str(self.n_written)).open("r+b") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for name in names:
                if tensors[name].numel():
                    file.write(tensors[name].detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        self.n_written += 1


def _dtype(tensor: Any) -> str | None:
    return _DTYPES.get(str(tensor.dtype).removeprefix("torch."))


def _check(name: str, tensor: Any) -> None:
    import torch

    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    if not is_plain or tensor.is_quantized or tensor.is_nested or tensor.device.type != "cpu":
        raise Refused(f"{name[:100]!r} is not a plain tensor")
    if _dtype(tensor) is None:
        raise Refused(f"{name[:100]!r} has the type {tensor.dtype}, which is not supported")


def _load(path: str) -> Any:
    import torch

    with Path(path).open("rb") as file:
        is_zip = file.read(4) == b"PK\x03\x04"
    if is_zip:
        with zipfile.ZipFile(path) as archive:
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise Refused("is compressed, and torch never compresses what it saves")
    # Files from before torch 1.6 have no zip format and cannot be mapped.
    return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)


def _convert(settings: dict[str, Any]) -> dict[str, Any]:
    writer = Writer(settings["n_files"], settings["max_output_bytes"], settings["shard_bytes"])
    shards = []
    for path in settings["pickles"]:
        try:
            shards.append(writer.convert(path))
        except MemoryError:
            return {"error": f"{path}: {_MEMORY}"}
        except Exception as error:
            return {"error": f"{path}: {_reason(error)}"}
    return {"shards": shards, "left_out": writer.left_out}


def _reason(error: Exception) -> str:
    said = " ".join(str(error).split())
    if isinstance(error, Refused):
        return said
    if "alloc" in said.lower() and "memory" in said.lower():
        return _MEMORY
    if found := re.search(r"GLOBAL (\S+)", said):
        return f"asks for {found[1]:.100}, which no tensor needs; it was not run"
    # What torch says of other pickles comes after advice on how to run them all the same.
    last = said.rpartition("WeightsUnpickler error: ")[2].partition(" Check the documentation")[0]
    return f"cannot be read as tensors: {last[:_MAX_REASON] or type(error).__name__}"


def _end_with_parent() -> None:
    os.read(0, 1)
    os._exit(1)


def start() -> bool:
    """Import what is needed, before any limit is taken, and return whether the network is gone."""
    has_left = leave_system()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import numpy
    import torch

    assert numpy
    assert torch
    return has_left


def work(settings: dict[str, Any], *, has_left: bool) -> dict[str, Any]:
    """Take the limits that the settings name, then read the pickle files that they name; return the report."""
    limit(settings["max_bytes"], settings["max_output_bytes"], settings["cpu_s"])
    python = [*sys.path, sys.prefix, sys.base_prefix, *_LIBRARIES, *settings["libraries"]]
    is_closed = close_files([*python, *settings["pickles"]], settings["folder"])
    missing = [] if sys.platform == "linux" else ["memory"]
    missing += [] if is_closed else ["files and programs"]
    # Landlock knows connections since version 4.
    missing += [] if has_left or (is_closed and landlock_version() >= 4) else ["network"]
    watch([*(str(number) for number in range(settings["n_files"])), "report"])
    return {**_convert(settings), "missing": missing}


def main() -> None:
    """Do what the settings in the first argument say."""
    settings = json.loads(sys.argv[1])
    # Behind the standard library, whose modules nothing may replace.
    sys.path.extend(settings["import_path"])
    os.chdir(settings["folder"])
    try:
        report = work(settings, has_left=start())
    except (ImportError, OSError, ValueError) as error:
        report = {"not_started": str(error)}
    with Path("report").open("r+b") as file:
        file.write(json.dumps(report).encode())
    # What a pickle made is not taken apart.
    os._exit(0)


if __name__ == "__main__":
    main()
