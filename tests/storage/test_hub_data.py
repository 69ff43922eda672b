"""Data sets of a hub as a corpus: pinned to a commit, read like local files, and never written."""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterator
from pathlib import Path

import fsspec
import huggingface_hub
import polars as pl
import pytest

import bertfeat
from bertfeat.errors import PlanMismatch
from bertfeat.storage import filesystems
from tests.support.command_line import good, refused
from tests.support.fake_hub import FakeHub, fake_hub

TEXTS = ["she sells sea shells", "one fox", "the sea shore", "über naïve cafés"]
ROOT = "hf://datasets/owner/corpus"


def files() -> dict[str, bytes]:
    parquet = io.BytesIO()
    pl.DataFrame({"text": TEXTS}).write_parquet(parquet)
    lines = "\n".join(TEXTS).encode()
    return {"data/a.txt": lines, "data/b.txt": b"the fox\n", "data/c.parquet": parquet.getvalue(), "README.md": b"none"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with fake_hub() as made:
        importlib.reload(filesystems)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setitem(fsspec.config.conf, "hf", {"endpoint": made.url, "token": False})
        made.commit(files())
        yield made
    importlib.reload(filesystems)


def extracted(inputs: str | list[str], output: Path, model: Path) -> bertfeat.Store:
    return bertfeat.extract(inputs, output, model=str(model), levels="sentence", layers="-1")


def test_files_are_read_as_local_ones_and_at_one_commit(hub: FakeHub, tiny_folder: Path, tmp_path: Path) -> None:
    first = hub.branches["main"]
    for name in ("data/a.txt", "data/b.txt", "data/c.parquet"):
        (tmp_path / Path(name).name).write_bytes(files()[name])
    for name, found in {"*.txt": ["a.txt", "b.txt"], "c.parquet": ["c.parquet"]}.items():
        here = extracted([str(tmp_path / file) for file in found], tmp_path / f"here{name[-4:]}", tiny_folder)
        there = extracted(f"{ROOT}/data/{name}", tmp_path / f"there{name[-4:]}", tiny_folder)
        assert there.polars("sentence").equals(here.polars("sentence"))
        assert [file.path for file in there.plan.inputs] == [f"{ROOT}@{first}/data/{file}" for file in found]
    # Another commit with the same bytes is the same corpus; other bytes are refused, and the old ones have a name.
    hub.commit(files())
    assert extracted(f"{ROOT}/data/*.txt", there.path.parent / "there.txt", tiny_folder).version == 0
    hub.commit({**files(), "data/a.txt": b"other\n"})
    with pytest.raises(
        PlanMismatch, match=f"input 1 was {ROOT}@{first}/data/a.txt, now {ROOT}@{hub.branches['main']}/"
    ):
        extracted(f"{ROOT}/data/*.txt", tmp_path / "there.txt", tiny_folder)
    assert len(extracted(f"{ROOT}@{first}/data/a.txt", tmp_path / "old", tiny_folder)) == len(TEXTS)
    assert good("verify", tmp_path / "there.txt", "--deep", "--documents", "2").out.startswith(
        f"{tmp_path}/there.txt: good"
    )


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("hf://datasets/owner/none/a.txt", "no such data set or revision; check the names and the right to read it"),
        (f"{ROOT}@v2/data/a.txt", "no such data set or revision"),
        (f"{ROOT}/data/none.txt", "no such object; check the name"),
        (f"{ROOT}/none/*.txt", "no file matches"),
        (f"{ROOT}/data", "is a folder; name its files, for example with a glob: hf://datasets/owner/corpus@"),
        ("hf://owner/model/a.txt", "not a file of a data set; write hf://datasets/OWNER/NAME/FILE"),
    ],
)
def test_a_place_that_is_not_there_is_named(
    place: str, said: str, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refused("extract", place, "-o", "out")
    assert hub.url not in refused("extract", place, "-o", "out")


@pytest.mark.parametrize(
    "command", ["extract c.txt -o {0}", "extract c.txt --append -o {0}", "inspect {0}", "verify {0}"]
)
def test_no_store_is_there(command: str, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.txt").write_text("one fox\n")
    said = refused(*command.format(f"{ROOT}/store").split())
    assert "read as a corpus only; write the store to a folder, then run bertfeat card and hf upload" in said
    assert not hub.asked
