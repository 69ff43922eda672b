"""Layers and devices as the user names them."""

from __future__ import annotations

import pytest
import torch

from bertfeat import devices
from bertfeat.encoder.layers import feature_columns, parse_layers
from bertfeat.errors import ConfigError

CPU = torch.device("cpu")


class TestLayers:
    @pytest.mark.parametrize(
        ("spec", "layers"),
        [
            ("all", range(13)),
            ("last4", [9, 10, 11, 12]),
            ("-1", [12]),
            ("0,4,-1", [0, 4, 12]),
            ("-4..-1", [9, 10, 11, 12]),
            ("0..-1", range(13)),
            ("last4,0,12,12", [0, 9, 10, 11, 12]),
        ],
    )
    def test_parse(self, spec: str, layers: list[int]) -> None:
        assert parse_layers(spec, 12) == tuple(layers)

    @pytest.mark.parametrize(
        ("spec", "said"),
        [
            ("0,7", r"^`layers`: layer 7 is out of range; tiny has layers 0 \(embeddings\) to 3, or -4 to -1$"),
            ("-8", "layer -8 is out of range"),
            ("3..2", "layer 3 is higher than layer 2"),
            ("last4", "tiny has 3 blocks only"),
            *((bad, "is not a layer; write 'all', 'last4', numbers and") for bad in ("", "1,", "1-3", "last", "٣")),
        ],
    )
    def test_refusals(self, spec: str, said: str) -> None:
        with pytest.raises(ConfigError, match=said):
            parse_layers(spec, 3, model="tiny")

    def test_one_layer_is_not_written_twice(self) -> None:
        both = feature_columns((11,), ["none", "concat", "mean"], hidden_size=8, n_layers=12)
        assert [column.name for column in both] == ["layer_11"]


class TestDevices:
    @pytest.mark.parametrize("spec", ["gpu", "cuda:x", "cuda:0,cpu"])
    def test_malformed(self, spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        with pytest.raises(ConfigError, match="must be one of auto, cpu, mps"):
            devices.resolve_device(spec)

    def test_absent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
        assert devices.resolve_device("auto") == (torch.device("cpu"),)
        with pytest.raises(ConfigError, match="no CUDA device here"):
            devices.resolve_device("cuda:0")
        with pytest.raises(ConfigError, match="no Apple GPU"):
            devices.resolve_device("mps")

    def test_several(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ctypes.CDLL", lambda name: name)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        both = (torch.device("cuda:0"), torch.device("cuda:1"))
        assert devices.resolve_device("auto") == devices.resolve_device("cuda") == both
        assert devices.resolve_device("cuda:1, cuda:0,cuda:1") == both[::-1]
        with pytest.raises(ConfigError, match="this machine has cuda:0 to cuda:1"):
            devices.resolve_device("cuda:2")
        for capability, dtype in (((8, 0), "bfloat16"), ((7, 5), "float32")):
            monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
            assert devices.resolve_compute_dtype("auto", "cuda", "cuda") == dtype
