"""Settings of the Ray runner, without Ray: shares of a cluster, and what is refused before it starts."""

from __future__ import annotations

import socket

import pytest

from bertfeat.errors import UserError
from bertfeat.runners.ray import Machine, share_out
from tests.support.command_line import bertfeat


@pytest.mark.parametrize(
    ("machines", "n_actors", "on_gpu", "share"),
    [
        ([Machine(2, 0)], 2, False, (2, 1)),
        ([Machine(0, 0), Machine(16, 0), Machine(16, 0)], None, False, (2, 16)),
        ([Machine(8, 0), Machine(24, 0)], 3, False, (3, 8)),
        ([Machine(4, 0)], 9, False, (9, 1)),
        ([Machine(64, 8), Machine(96, 0)], None, True, (8, 8)),
        ([Machine(64, 8)], 3, True, (3, 21)),
    ],
)
def test_actors_get_as_many_cpus_as_all_of_them_can_have(machines, n_actors, on_gpu, share):
    assert share_out(machines, n_actors, on_gpu=on_gpu) == share


@pytest.mark.parametrize(("on_gpu", "what"), [(True, "GPU"), (False, "CPU")])
def test_a_cluster_without_room_is_refused(on_gpu, what):
    with pytest.raises(UserError, match=rf"has no {what} now; if it grows on demand, pass `workers`"):
        share_out([Machine(8 * on_gpu, 0)], None, on_gpu=on_gpu)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--ray-address", "auto"], "--ray-address auto has no effect without --runner ray; add it"),
        (["--runner", "ray", "--ray-address", "somewhere"], "--ray-address 'somewhere' must be one of auto, local, "),
        (["--runner", "ray", "--device", "cuda:1"], "--device cuda:1 numbers devices, which Ray assigns"),
        (["--runner", "slurm"], "'slurm' is not one of 'local', 'ray'"),
    ],
)
def test_flags_that_are_refused(tmp_path, flags, message):
    result = bertfeat("extract", "corpus.txt", "-o", tmp_path / "s", *flags)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert not (tmp_path / "s").exists()


def test_an_address_without_a_server_is_reported_at_once(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    (tmp_path / "corpus.txt").write_text("one\n")
    flags = ["--runner", "ray", "--ray-address", f"ray://{address}"]
    result = bertfeat("extract", tmp_path / "corpus.txt", "-o", tmp_path / "s", *flags)
    assert result.code == 2
    assert result.err.startswith(f"bertfeat: --ray-address ray://{address}: no answer (connection refused)")
    assert not (tmp_path / "s").exists()
