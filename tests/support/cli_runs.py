"""Settings of a small real extraction, and its command line, run in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.command_line import bertfeat
from tests.support.drill import write_corpus


def three_shards(folder: Path, model: Path) -> dict[str, Any]:
    """Write a corpus into `folder` and return the arguments of `extract`, without the output."""
    return {
        "inputs": str(write_corpus(folder / "corpus.jsonl", 24)),
        "model": str(model),
        "id_column": "id",
        "levels": ["word", "sentence"],
        "layers": "-1",
        "shard_bytes": 28_000,
    }


def flags(settings: dict[str, Any]) -> list[str]:
    named = {name: value for name, value in settings.items() if name != "inputs"}
    pairs = [("--level" if name == "levels" else "--" + name.replace("_", "-"), named[name]) for name in named]
    return [settings["inputs"], *(f"{flag}={','.join(v) if isinstance(v, list) else v}" for flag, v in pairs)]


def run_cli(*arguments: str) -> tuple[int, str, list[str]]:
    """Run a command; return its exit code, what it prints, and the lines on standard error."""
    done = bertfeat(*arguments)
    return done.code, done.out, done.err.splitlines()
