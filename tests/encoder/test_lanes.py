"""Packs in several lanes: their order, bits that do not depend on the lanes, and errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import bertfeat
from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.encoder.encoder import PackEncoder, encode_packs
from bertfeat.encoder.loading import load_encoder
from tests.support.families import random_pack

pytestmark = pytest.mark.numeric

PACKS = [random_pack([9, 7, 7, 3], seed=i) for i in range(9)] + [random_pack([2], seed=10)]


@pytest.fixture(scope="module")
def encoder(good: Path) -> PackEncoder:
    return load_encoder(open_checkpoint(str(good)), [0, 2])


@pytest.fixture
def threads() -> Iterator[None]:
    """Two threads, also where the process has one core for itself."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(n_threads)


@pytest.mark.usefixtures("threads")
class TestLanes:
    @pytest.mark.parametrize("n_lanes", [1, 3])
    def test_order_and_bits(self, encoder: PackEncoder, n_lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
        expected = [encoder.encode(pack) for pack in PACKS]
        n_threads = torch.get_num_threads()
        monkeypatch.setattr(encoder, "n_lanes", n_lanes)
        found = list(encode_packs(encoder, iter(PACKS)))
        assert [pack for pack, _ in found] == PACKS
        for (_, states), one in zip(found, expected, strict=True):
            for layer in (0, 2):
                assert torch.equal(states.layer(layer), one.layer(layer))
        assert torch.get_num_threads() == n_threads

    def test_a_store_does_not_depend_on_the_lanes(self, tmp_path: Path) -> None:
        corpus = tmp_path / "corpus.txt"
        corpus.write_text("".join(f"{'word ' * (i % 40)}number {i}\n" for i in range(120)), encoding="utf-8")
        digests = []
        for n_lanes in (1, 3):
            torch.set_num_threads(n_lanes)
            store = bertfeat.extract(corpus, tmp_path / str(n_lanes), layers="2,-1", levels=["token", "sentence"])
            digests.append([part.digest for level in store.levels for part in store.parts(level)])
        assert digests[0] == digests[1]
