"""Mistakes with URLs: each is one line, with exit code 2; and what a cluster cannot read is refused."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from bertfeat import extract
from bertfeat.errors import InputError
from tests.support.command_line import bertfeat
from tests.support.object_stores import BUCKET, forget_clients, objects, point_at, s3_server, upload

pytestmark = pytest.mark.usefixtures("s3")


@pytest.fixture(autouse=True)
def fresh_clients():
    """Leave no client behind that was made for another server."""
    yield
    forget_clients()


def one_line(*arguments, **settings):
    result = bertfeat(*arguments, **settings)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1), result.err
    return result.err.removeprefix("bertfeat: ").strip()


PROBE = ["--label", "x", "--head", "ridge", "--level", "word", "--feature", "layer_01"]
NO_BUCKET = "no such bucket; create it, or check its name and the endpoint"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["extract", "s3://nowhere/a.txt", "-o", "out"], NO_BUCKET),
        (["extract", "s3://nowhere/*.txt", "-o", "out"], NO_BUCKET),
        (["extract", f"s3://{BUCKET}/folder/a.txt", "-o", "s3://nowhere/out", "--layers=-1"], NO_BUCKET),
        (["inspect", "s3://nowhere/out"], NO_BUCKET),
        (["verify", "s3://nowhere/out"], NO_BUCKET),
        (["inspect", "az://features/out"], "unknown object store; pass a path, or a URL with s3://, gs://, gcs://"),
        (["inspect", "s3://"], "not a place in an object store; write s3://BUCKET/NAME"),
        (["inspect", f"s3://{BUCKET}/nothing-here"], "no such folder"),
        (["extract", f"s3://{BUCKET}/x.txt", "-o", "out"], "no such object; check the name"),
        (["extract", f"s3://{BUCKET}/x*.txt", "-o", "out"], "no file matches"),
        (["extract", f"s3://{BUCKET}/folder", "-o", "out"], "is a folder; name its files"),
        (["probe", "fit", "out", "-o", "s3://features/probe", *PROBE], "a probe must be in a local folder"),
    ],
)
def test_a_place_that_is_not_there_is_named(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    upload(Path(__file__), f"s3://{BUCKET}/folder/a.txt")
    assert said in one_line(*arguments)
    assert list(tmp_path.iterdir()) == []


def test_credentials_that_are_wrong_or_missing(monkeypatch):
    with s3_server(INITIAL_NO_AUTH_ACTION_COUNT="0") as url:
        point_at(monkeypatch, url)
        line = one_line("inspect", "s3://features/out")
        assert ": no access (" in line
        assert "check the credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE)" in line
        point_at(monkeypatch, url)
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        assert "no access (Unable to locate credentials)" in one_line("verify", "s3://features/out")


def test_standard_input_and_frames_do_not_reach_other_machines(root):
    line = one_line("extract", "-", "-o", root, "--runner", "ray", stdin=b"one\ntwo\n")
    assert "- cannot be read by the machines of a cluster; upload it first, and name the object" in line
    with pytest.raises(InputError, match=r"^a data frame cannot be read by the machines of a cluster; upload it first"):
        extract(pl.DataFrame({"text": ["one"]}), root, runner="ray")
    assert objects(root) == {}
