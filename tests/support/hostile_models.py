"""Model folders with one hostile or odd value each, and a drill that extracts with each of them.

The drill forks a process per folder, with limits on memory and CPU time, and writes one JSON line per folder:
`python -m tests.support.hostile_models GOOD_MODEL SCRATCH`.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Change = Callable[[Path], None]

VALUES = (None, True, -1, 0, 10**9, 10**30, 1.5, "x", [], {})
# Keys that a config may have beside those of a saved model.
FURTHER_KEYS = (
    *("dtype", "attn_implementation", "_attn_implementation", "chunk_size_feed_forward", "pruned_heads", "num_labels"),
    *("id2label", "rope_scaling", "layer_types", "tokenizer_class", "_name_or_path", "trust_remote_code"),
)
FURTHER_VALUES = (10**9, "../../etc", [], {"0": [0]})
TOKENIZER_SETTINGS: tuple[tuple[str, Any], ...] = (
    *(("tokenizer_class", value) for value in ("LlamaTokenizer", "NoSuchTokenizer", 5, "os.system")),
    *(("cls_token", value) for value in (5, {"a": 1}, "unheard")),
    *(("added_tokens_decoder", value) for value in (5, {"99999999999": {"content": "q"}}, {"x": {"content": "q"}})),
    *(("model_max_length", "x"), ("extra_special_tokens", {"a": "b"}), ("auto_map", {}), ("subfolder", "../..")),
    *(("vocab_file", "/etc/passwd"), ("tokenizer_file", "/nonexistent"), ("name_or_path", "evil/repo")),
)
_FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)


def edited(file: str, key: str, value: Any) -> Change:
    """Set a value in a JSON file; dots in the key go into objects."""

    def change(folder: Path) -> None:
        content = inner = json.loads((folder / file).read_text())
        *outer, last = key.split(".")
        for name in outer:
            inner = inner[name]
        inner[last] = value
        (folder / file).write_text(json.dumps(content))

    return change


def added(*tokens: tuple[str, int]) -> Change:
    """Append added tokens to tokenizer.json."""

    def change(folder: Path) -> None:
        content = json.loads((folder / "tokenizer.json").read_text())
        content["added_tokens"] += [{"id": number, "content": text, **_FLAGS} for text, number in tokens]
        (folder / "tokenizer.json").write_text(json.dumps(content))

    return change


def replaced(file: str, content: bytes) -> Change:
    """Replace the content of a file."""
    return lambda folder: (folder / file).write_bytes(content) and None


def in_place(file: str, make: Callable[[Path], None]) -> Change:
    """Put something else in the place of a file."""

    def change(folder: Path) -> None:
        (folder / file).unlink(missing_ok=True)
        make(folder / file)

    return change


def cases(good: Path) -> dict[str, Change]:
    """Return every case by name; each changes a copy of the model in `good`."""
    found: dict[str, Change] = {}
    for key in sorted(json.loads((good / "config.json").read_text())):
        for value in VALUES:
            found[f"config {key} {value!r:.20}"] = edited("config.json", key, value)
    for key in FURTHER_KEYS:
        for value in FURTHER_VALUES:
            found[f"config+ {key} {value!r:.20}"] = edited("config.json", key, value)
    for key, value in TOKENIZER_SETTINGS:
        found[f"tokenizer_config {key} {value!r:.30}"] = edited("tokenizer_config.json", key, value)
    return found | _tokenizers() | _others()


def _tokenizers() -> dict[str, Change]:
    def tokenizer(key: str, value: Any) -> Change:
        return edited("tokenizer.json", key, value)

    bert = {"type": "BertProcessing", "sep": ["[SEP]", 4_000_000], "cls": ["[CLS]", 2]}
    found = {f"tokenizer id {n}": tokenizer("model.vocab.the", n) for n in (-1, 5000, 4 * 10**9)}
    for regex in ("^(a|a|aa)+$", "(("):
        splitter = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
        found[f"tokenizer regex {regex}"] = tokenizer("pre_tokenizer", splitter)
    found |= {
        f"tokenizer file {content[:8]!r}": replaced("tokenizer.json", content)
        for content in (b"null", b"{", b"\xff\xfe{}", b"[" * 100_000 + b"]" * 100_000, b"", b"{}")
    }
    return found | {
        "tokenizer no unk": tokenizer("model.unk_token", "NOPE"),
        "tokenizer added word": added(("fox", 99999)),
        "tokenizer post_processor id": tokenizer("post_processor", bert),
        "tokenizer model type": tokenizer("model.type", "Nope"),
    }


def _others() -> dict[str, Change]:
    files = ("model.safetensors", "config.json", "tokenizer.json", "vocab.txt")
    named = {
        "generation_config.json": b"{{{",
        "modules.json": b"[5]",
        "special_tokens_map.json": b'{"cls_token": 7, "additional_special_tokens": {"a": 1}}',
        "tokenizer_config.json": b"[]",
    }
    header = b"{" + b" " * 89_999_998 + b"}"
    return {
        # Opening a pipe blocks for ever.
        **{f"fifo {file}": in_place(file, os.mkfifo) for file in files},
        **{f"link {file}": in_place(file, lambda place: place.symlink_to("/etc/hostname")) for file in files},
        "weights header of spaces": replaced("model.safetensors", len(header).to_bytes(8, "little") + header),
        **{f"content {file}": replaced(file, content) for file, content in named.items()},
        "content special_tokens_map.json cut": replaced("special_tokens_map.json", b"[1"),
    }


def drill(good: Path, scratch: Path) -> None:
    """Extract with every case in a process of its own; print name, outcome, message and peak memory."""
    # Imported once, before the forks.
    from transformers import AutoTokenizer, BertModel  # noqa: F401

    from bertfeat.extraction.run import extract  # noqa: F401

    corpus = scratch / "corpus.txt"
    corpus.write_text("the quick fox\n" + "a" * 3000 + "!\n")
    for name, change in cases(good).items():
        folder = Path(shutil.copytree(good, scratch / "model"))
        change(folder)
        child = os.fork()
        if not child:
            _limited_extract(corpus, folder, scratch / "said")
        _, status, usage = os.wait4(child, 0)
        kind = {0: "ok", 2: "refused", 3: "failed"}.get(os.waitstatus_to_exitcode(status), f"died {status}")
        said = (scratch / "said").read_text(errors="replace")
        print(json.dumps([name, kind, said, usage.ru_maxrss >> 10]), flush=True)
        shutil.rmtree(folder)


def _limited_extract(corpus: Path, folder: Path, said: Path) -> None:
    import bertfeat
    from bertfeat.errors import BertfeatError

    code, message = 9, ""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(said, os.O_RDWR | os.O_CREAT | os.O_TRUNC), 2)
        resource.setrlimit(resource.RLIMIT_AS, (9 << 30, 9 << 30))
        resource.setrlimit(resource.RLIMIT_CPU, (60, 65))
        bertfeat.extract(corpus, folder / "out", model=str(folder), levels=["token", "sentence"], layers=[0, -1])
        code = 0
    except BertfeatError as error:
        code, message = error.exit_code, str(error)
    except BaseException as error:
        message = f"{type(error).__name__}: {error}"
    finally:
        os.write(2, message.encode("utf-8", "replace"))
        os._exit(code)


if __name__ == "__main__":
    drill(Path(sys.argv[1]), Path(sys.argv[2]))
