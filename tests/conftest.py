"""Fixtures for all tests: models that need no network, and guards against connections and changes outside."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from bertfeat.store.reader import Store
    from tests.support.drill import Zygote

# Before transformers is imported anywhere; child processes inherit it.
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "NO_COLOR": "1",
    "COLUMNS": "100",
    # Otherwise actors of Ray wait until no other test computes.
    "RAY_worker_niceness": "0",
}
# The processes of pytest-xdist share the cores, their children too: threads that wait for a taken core only spin.
if _n_processes := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // int(_n_processes))))

import pytest

# Until all is imported: imports make a million objects and no garbage.
gc.disable()

LOCAL = {"localhost", "::1", "0.0.0.0", ""}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flag that puts what is printed now in the place of what pages show."""
    parser.addoption("--renew-shown", action="store_true", help="Write the printed output into README.md and docs/.")


def pytest_collection_finish() -> None:
    """Look for garbage again, but not among what was imported."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Let everything be freed at exit: nanobind, of which DuckDB is made, prints a page about what is not."""
    gc.unfreeze()


class NetworkUsed(AssertionError):
    """A test reached for the network."""


def _is_local(address: object) -> bool:
    if not isinstance(address, tuple):
        return True  # a path: a socket of this machine
    host = str(address[0])
    return host in LOCAL or host.startswith("127.")


@pytest.fixture(scope="session", autouse=True)
def only_local_connections() -> Iterator[None]:
    """Fail on any connection that leaves this machine."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("connect", "connect_ex"):
            plain = getattr(socket.socket, name)

            def guarded(self: socket.socket, address: Any, plain: Any = plain) -> Any:
                if not _is_local(address):
                    raise NetworkUsed(f"a test connects to {address!r}")
                return plain(self, address)

            patch.setattr(socket.socket, name, guarded)
        yield


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep digests of model folders out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("BERTFEAT_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """The folder of the packaged all-MiniLM-L6-v2."""
    from bertfeat.encoder.packaged import minilm

    return minilm().folder


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real BERT, tiny and random: 3 layers, 32 wide, some 200 word pieces, windows of up to 64 tokens."""
    from tests.support.families import build_model

    return build_model(
        "bert", tmp_path_factory.mktemp("tiny") / "bert", num_hidden_layers=3, max_position_embeddings=64
    )


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Iterator[Zygote]:
    """A process that has imported what an extraction uses, whose children can be killed."""
    from tests.support.drill import three_shards, zygote

    folder = tmp_path_factory.mktemp("zygote")
    with zygote(folder, three_shards(folder, tiny_folder)) as made:
        yield made


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    """The URL of a server of this machine that speaks S3; its tests are skipped without its packages."""
    pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    from tests.support.object_stores import s3_server

    with s3_server() as url:
        yield url


@pytest.fixture(scope="module")
def s3(s3_url: str) -> Iterator[str]:
    """A bucket on that server; `s3://` refers to the server in this process and its children."""
    from tests.support.object_stores import make_bucket, point_at

    with pytest.MonkeyPatch.context() as patch:
        point_at(patch, s3_url)
        make_bucket()
        yield s3_url


@pytest.fixture
def root(request: pytest.FixtureRequest) -> str:
    """The URL of a place for a store that no other test uses."""
    from tests.support.object_stores import BUCKET

    return f"s3://{BUCKET}/{request.node.name}/s"


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Compute on one thread: tiny matrices are slower on several."""
    import torch
    from threadpoolctl import threadpool_limits

    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        yield
    torch.set_num_threads(n_threads)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Headless Chromium."""
    from tests.support.chromium import CHROMIUM, launched

    # Whoever asks for these tests must not take none of them for a success.
    assert CHROMIUM, "Chromium is not installed"
    with launched() as browser:
        yield browser


@pytest.fixture(scope="session")
def odd_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store of sentences and words, some of them odd."""
    from tests.support.index_stores import ODD, documents, make_store

    rows = [*documents(0), *({"id": text[:60], "text": text, "label": text[:90], "n": 90.5} for text in ODD)]
    return make_store(tmp_path_factory.mktemp("odd") / "made", rows, levels="sentence,word", layers="6")


@pytest.fixture(scope="session")
def servers(odd_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The addresses of search pages of the sentences and the words of `odd_store`; both load torch, so once."""
    import bertfeat
    from tests.support.chromium import served

    folder = tmp_path_factory.mktemp("served")
    for level in ("sentence", "word"):
        bertfeat.build_index(odd_store, folder / f"{level}s.index", level=level).close()
    with served(folder / "sentences.index") as sentences, served(folder / "words.index") as words:
        yield {"sentence": sentences, "word": words}


@pytest.fixture
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for the disk: no power fails in a test."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
