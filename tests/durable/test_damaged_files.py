"""Damaged files of probes, sweeps and indexes: one error line, and never another result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertfeat.ann import folder as ann_folder
from bertfeat.ann.library import faiss
from bertfeat.durable.records import seal
from bertfeat.errors import UserError
from bertfeat.heads.folder import load_probe, save_probe
from bertfeat.heads.linear import RidgeProbe
from bertfeat.probes.sweep import Sweep, SweepRow, read_sweep
from tests.support.index_files import beside, loaded, vectors, write_parts
from tests.support.writers import SWEEP

FILES = {
    "probe": ("probe.json", "weights.safetensors"),
    "sweep": ("result.json",),
    "index": ("index.json", "index.faiss", "rows.parquet", "transform.safetensors", "queries.safetensors"),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a probe, a sweep and an index."""
    root = tmp_path_factory.mktemp("saved")
    save_probe(RidgeProbe().fit(np.eye(4, dtype=np.float32), ["a", "a", "b", "b"]), root / "probe", {"note": "ü"})
    row = SweepRow("layer_03", (3,), 8, "accuracy", 0.5, None, None, None, 0.1, (0.5,))
    (root / "sweep").mkdir()
    (root / "sweep" / "result.json").write_bytes(seal(Sweep(**SWEEP, rows=(row,)).to_dict()))
    building = beside(root / "index")
    description = write_parts(building, transform="center")
    ann_folder.write_arrays(building / "queries.safetensors", {"vectors": vectors(4)})
    ann_folder.publish(building, root / "index", description)
    return root


def read(folder: Path) -> Any:
    """Load a probe, a sweep or an index; faiss reads no damaged index."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(faiss, "read_index", lambda *_: pytest.fail("faiss read a damaged index"))
        return {"probe": load_probe, "sweep": read_sweep, "index": loaded}[folder.name](folder)


@pytest.mark.promise("saved")
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in FILES.items() for name in names])
@given(data=st.data())
@settings(deadline=None)
def test_a_changed_or_cut_file_is_one_error_line(saved: Path, kind: str, name: str, data: st.DataObject) -> None:
    path = saved / kind / name
    good = path.read_bytes()
    at = data.draw(st.integers(0, len(good) - 1))
    change = data.draw(st.sampled_from(["flip", "cut", "insert"]))
    flipped = bytes([good[at] ^ 1 << data.draw(st.integers(0, 7))]) + good[at + 1 :]
    path.write_bytes(good[:at] + {"flip": flipped, "cut": b"", "insert": b" " + good[at:]}[change])
    try:
        with pytest.raises(UserError) as caught:
            read(saved / kind)
    finally:
        path.write_bytes(good)
    assert str(path) in str(caught.value)
    assert str(caught.value).endswith("again")
    assert "\n" not in str(caught.value)
