"""Every example in a docstring runs."""

from __future__ import annotations

import doctest
import functools
import importlib
import pkgutil
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import bertfeat
from tests.support.places import ROOT

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(bertfeat.__path__, "bertfeat.")
    if module.name != "bertfeat.__main__"
)


def examples_of(module: str) -> list[doctest.DocTest]:
    found = doctest.DocTestFinder().find(importlib.import_module(module))
    return [test for test in found if any(doctest.SKIP not in example.options for example in test.examples)]


CALL = re.compile(r'extract\("([^"]+)", tmp / "(\w+)", (.*)\)')
WITH_DOCTESTS = [module for module in MODULES if examples_of(module)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Extract from a corpus with settings, each once: examples repeat them."""
    folder = tmp_path_factory.mktemp("stores")

    @functools.cache
    def extract(corpus: str, settings: str) -> Path:
        place = folder / str(len(list(folder.iterdir())))
        bertfeat.extract(corpus, place, **eval(f"dict({settings})"))
        return place

    return extract


@pytest.mark.parametrize("module", WITH_DOCTESTS)
def test_docstrings(
    module: str, made: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    for test in examples_of(module):
        test.globs["tmp"] = tmp_path
        for corpus, name, settings in CALL.findall(test.docstring or ""):
            # The example finds its store finished.
            shutil.copytree(made(corpus, settings), tmp_path / name)
        said: list[str] = []
        result = doctest.DocTestRunner().run(test, out=said.append)
        assert result.attempted > 0
        assert result.failed == 0, "".join(said)
