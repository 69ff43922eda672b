"""Mistakes with URLs: each is one line, with exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertfeat import open_store
from bertfeat.errors import StorageError
from tests.support.command_line import bertfeat
from tests.support.object_stores import BUCKET, forget_clients, point_at, s3_server, upload

pytestmark = pytest.mark.usefixtures("s3")


@pytest.fixture(autouse=True)
def fresh_clients():
    """Leave no client behind that was made for another server."""
    yield
    forget_clients()


class TestMistakes:
    def one_line(self, *arguments):
        result = bertfeat(*arguments)
        assert (result.code, result.out, result.err.count("\n")) == (2, "", 1), result.err
        return result.err.removeprefix("bertfeat: ").strip()

    def test_a_bucket_that_is_not_there(self, tmp_path, tiny_folder):
        (tmp_path / "a.txt").write_text("one\n")
        for arguments in (
            ["extract", str(tmp_path / "a.txt"), "-o", "s3://nowhere/out", "--model", str(tiny_folder), "--layers=-1"],
            ["extract", "s3://nowhere/a.txt", "-o", str(tmp_path / "out")],
            ["extract", "s3://nowhere/*.txt", "-o", str(tmp_path / "out")],
            ["inspect", "s3://nowhere/out"],
            ["verify", "s3://nowhere/out"],
        ):
            assert "no such bucket; create it, or check its name and the endpoint" in self.one_line(*arguments)
        assert not (tmp_path / "out").exists()

    def test_credentials_that_are_wrong_or_missing(self, monkeypatch, tmp_path):
        with s3_server(INITIAL_NO_AUTH_ACTION_COUNT="0") as url:
            point_at(monkeypatch, url)
            line = self.one_line("inspect", "s3://features/out")
            assert line.startswith("s3://features/out")
            assert ": no access (" in line
            assert "check the credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE)" in line
            assert ": no access (" in self.one_line("extract", "s3://features/a.txt", "-o", str(tmp_path / "out"))
            point_at(monkeypatch, url)
            monkeypatch.delenv("AWS_ACCESS_KEY_ID")
            assert "no access (Unable to locate credentials)" in self.one_line("verify", "s3://features/out")

    def test_wrong_places(self, tmp_path):
        for place, reason in (
            ("az://features/out", "unknown object store; pass a path, or a URL with s3://, gs://, gcs://"),
            ("s3://", "not a place in an object store; write s3://BUCKET/NAME"),
            ("s3://features//out", "not a place in an object store"),
        ):
            assert reason in self.one_line("inspect", place)
        with pytest.raises(StorageError, match="a URL that was made a Path, which folds its slashes"):
            open_store(Path("s3://features/out"))
        assert "no such object; check the name" in self.one_line("extract", f"s3://{BUCKET}/x.txt", "-o", str(tmp_path))
        assert "no file matches" in self.one_line("extract", f"s3://{BUCKET}/x*.txt", "-o", str(tmp_path))
        upload(Path(__file__), f"s3://{BUCKET}/folder/a.txt")
        assert "is a folder; name its files" in self.one_line("extract", f"s3://{BUCKET}/folder", "-o", str(tmp_path))
        assert "no such folder" in self.one_line("inspect", f"s3://{BUCKET}/nothing-here")

    def test_probes_are_written_to_folders(self, tmp_path):
        arguments = ["probe", "fit", str(tmp_path), "-o", "s3://features/probe", "--label", "x", "--head", "ridge"]
        assert "a probe must be in a local folder" in self.one_line(
            *arguments, "--level", "word", "--feature", "layer_01"
        )
        assert not list(Path.cwd().glob("s3:*"))
