"""Hostile and damaged pickle files: each is a file's bytes and what its refusal says."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_HEAD, _STOP = b"\x80\x02", b"."
_NOT_ALLOWED = "asks for .*, which no tensor needs; it was not run"


class _Call:
    """An object that calls a function when it is unpickled."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


def in_zip(pickled: bytes, **records: bytes) -> bytes:
    """Return a file of torch with a pickle of one's own."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/version", b"3\n")
        archive.writestr("archive/byteorder", b"little")
        for key, data in records.items():
            archive.writestr(f"archive/data/{key}", data)
    return buffer.getvalue()


def saved(value: Any, *, is_zip: bool = True) -> bytes:
    """Return the bytes of `torch.save`."""
    buffer = io.BytesIO()
    torch.save(value, buffer, _use_new_zipfile_serialization=is_zip)
    return buffer.getvalue()


def _global(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def _int(value: int) -> bytes:
    data = value.to_bytes(8, "little")
    return b"\x8a" + bytes([len(data)]) + data


def _named(value: bytes) -> bytes:
    """Return the pickle of `{"weight": value}`."""
    return _HEAD + b"}" + _text("weight") + value + b"s" + _STOP


def _tensor(n_stored: int, n_values: int, stride: int) -> bytes:
    """Return a tensor that claims a storage and a size."""
    storage = b"(" + _text("storage") + _global("torch", "FloatStorage") + _text("0") + _text("cpu")
    storage += _int(n_stored) + b"tQ"
    hooks = _global("collections", "OrderedDict") + b")R"
    sizes = _int(0) + _int(n_values) + b"\x85" + _int(stride) + b"\x85"
    return _global("torch._utils", "_rebuild_tensor_v2") + b"(" + storage + sizes + b"\x89" + hooks + b"tR"


def calls(canary: Path) -> dict[str, tuple[bytes, str]]:
    """Return pickles that call what they must not, as torch saves them today and as it did before 1.6."""
    shell = f"touch {canary}"
    code = f"open({str(canary)!r}, 'w')"
    found = {
        "os.system": _Call(os.system, shell),
        "eval": _Call(eval, code),
        "open": _Call(open, str(canary), "w"),
        "torch.load of bytes": _Call(torch.storage._load_from_bytes, pickle.dumps(_Call(os.system, shell))),
    }
    named = {name: {"weight": value} for name, value in found.items()}
    zips = {name: (saved(value), _NOT_ALLOWED) for name, value in named.items()}
    old = {f"{name}, old": (pickle.dumps(value, 2), _NOT_ALLOWED) for name, value in named.items()}
    stolen = _named(_global("os", "system") + _text(shell) + b"\x85R")
    return zips | old | {"os.system by name": (in_zip(stolen), "asks for os.system,")}


def damaged() -> dict[str, tuple[bytes, str]]:
    """Return files that hold something other than tensors by name."""
    weight = torch.ones(4, 4)
    good = saved({"weight": weight})
    stored = {"0": bytes(16)}
    return {
        "empty": (b"", "cannot be read as tensors: "),
        "cut": (good[:-100], r"\w"),
        "a list": (saved([weight]), "holds a list"),
        "nothing": (saved({}), "no tensors by name in it, but nothing"),
        "a checkpoint of training": (saved({"state_dict": {"weight": weight}, "epoch": 3}), "but epoch, state_dict"),
        "a number as name": (saved({5: weight}), "cannot be saved as safetensors"),
        "a giant view": (in_zip(_named(_tensor(4, 1 << 50, 0)), **stored), "bytes of tensors from .* limit 16 times"),
        "a view that fits into memory": (
            saved({"weight": torch.ones(1).expand(1 << 20)}),
            "bytes of tensors from .* limit 16 times",
        ),
        "a giant storage": (in_zip(_named(_tensor(1 << 50, 1 << 50, 1)), **stored), r"\w"),
        "a view beyond its storage": (in_zip(_named(_tensor(4, 1 << 20, 1)), **stored), r"\w"),
    }
