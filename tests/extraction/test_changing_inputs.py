"""Inputs that change while a run reads them: no store is made of two versions of a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import bertfeat
from bertfeat.errors import InputError, RunError
from bertfeat.records import Plan, Receipt
from tests.support.drill import result_files

pytestmark = [pytest.mark.promise("changing"), pytest.mark.usefixtures("one_thread", "no_fsync")]


class Meanwhile(bertfeat.Progress):
    """Change something when the corpus is read, or when the shards begin."""

    def __init__(self, moment: str, change: Callable[[], object]) -> None:
        self.moment, self.change = moment, change

    def stage(self, text: str, n_done: int = 0, n_total: int | None = None) -> None:
        if text == self.moment:
            self.change()

    def start(self, plan: Plan, receipts: Sequence[Receipt]) -> None:
        self.stage("start")


def test_a_file_that_is_still_written_while_it_is_planned_is_refused(tmp_path, settings):
    corpus, added = Path(settings["inputs"]), '{"id": "n", "text": "one"}\n'
    more = Meanwhile("reading the corpus", lambda: corpus.write_text(corpus.read_text() + added))
    with pytest.raises(InputError, match=r"corpus\.jsonl: changes while it is read; wait until it is whole"):
        bertfeat.extract(output=tmp_path / "s", progress=more, **settings)
    assert not (tmp_path / "s").exists()


def test_rows_of_a_file_that_changes_while_they_are_encoded_are_not_kept(tmp_path, settings):
    corpus, old = Path(settings["inputs"]), Path(settings["inputs"]).read_text()
    whole = result_files(bertfeat.extract(output=tmp_path / "whole", **settings).path)
    other = Meanwhile("start", lambda: corpus.write_text(old.replace("e", "a").replace('"taxt"', '"text"')))
    with pytest.raises(RunError, match=r"corpus\.jsonl: changed while its rows were encoded"):
        bertfeat.extract(output=tmp_path / "s", progress=other, **settings)
    assert not list((tmp_path / "s").glob("manifests/*"))
    corpus.write_text(old)
    assert result_files(bertfeat.extract(output=tmp_path / "s", **settings).path) == whole


def test_a_file_may_grow_after_it_is_planned_and_be_written_again_as_it_is(tmp_path, settings):
    corpus = Path(settings["inputs"])
    whole = result_files(bertfeat.extract(output=tmp_path / "whole", **settings).path)
    for number, added in enumerate(("", '{"id": "n", "text": "one"}\n')):
        more = Meanwhile("start", lambda added=added: corpus.write_text(corpus.read_text() + added))
        assert result_files(bertfeat.extract(output=tmp_path / str(number), progress=more, **settings).path) == whole


def test_an_append_of_a_file_that_changes_can_be_given_up(tmp_path, settings):
    store = bertfeat.extract(output=tmp_path / "s", **settings)
    later = tmp_path / "later.jsonl"
    later.write_text('{"id": "n", "text": "one"}\n')
    other = Meanwhile("start", lambda: later.write_text('{"id": "n", "text": "two"}\n'))
    with pytest.raises(RunError, match=r"later\.jsonl: changed while its rows were encoded"):
        bertfeat.append(store, later, progress=other)
    assert len(bertfeat.open_store(store.path)) == len(store)
    grown = bertfeat.append(store, later, overwrite=True)
    assert grown.polars("sentence", ["text"])["text"][-1] == "two"
