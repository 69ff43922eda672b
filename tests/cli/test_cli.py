"""The command line: its output and its exit codes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from unittest.mock import Mock

import click
import pytest

import bertfeat.encoder.loading
import bertfeat.extraction.flow
import bertfeat.extraction.run
from bertfeat import BertfeatError, open_store
from bertfeat.cli import group
from bertfeat.config import ExtractConfig, flag
from bertfeat.errors import CheckFailed, RunError
from tests.support.command_line import bertfeat as bertfeat_cli
from tests.support.command_line import commands, good, refused

TEXTS = ["one quick fox", "", "she sells sea shells, and he buys them", "über naïve cafés"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def base(corpus: Path, tiny_folder: Path, tmp_path: Path) -> list[str]:
    """A run that succeeds; its output is `tmp_path / "out"`."""
    return ["extract", str(corpus), "-o", str(tmp_path / "out"), "--model", str(tiny_folder), "--layers", "-1,-2"]


@pytest.fixture(scope="module")
def store(corpus: Path, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished store of every level; not to be changed."""
    out = tmp_path_factory.mktemp("finished") / "out"
    good("extract", corpus, "-o", out, "--model", tiny_folder, "--layers", "all", "--level", "token,word,sentence")
    return out


@pytest.mark.usefixtures("one_thread")
def test_the_level_is_the_only_one_that_is_stored_or_must_be_given(
    store: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "c.txt").write_text("one quick fox sells sea shells\n" * 10)
    words = tmp_path / "words"
    good("extract", tmp_path / "c.txt", "-o", words, "--model", tiny_folder, "--layers", "-1", "--level", "word")
    for number, (command, output, can) in enumerate((
        ("probe fit --label word --head centroid", "probe", "token, word, sentence"),
        ("probe sweep --label word --head centroid", "sweep", "token, word, sentence"),
        ("layers", "layers", "token, word, sentence"),
        ("map", "map.parquet", "token, word, sentence"),
        ("index build", "index", "token, word, sentence"),
        ("export --to npy", "npy", "token, word, sentence"),
        ("export --to google-jsonl", "g.jsonl", "token, word"),
        ("static", "static.txt", "token, word"),
    )):  # fmt: skip
        out = tmp_path / f"{number}-{output}"
        said = refused(*command.split(), store, "-o", out)
        assert said.endswith(f"several levels; pass {' or '.join(f'--level {one}' for one in can.split(', '))}\n")
        assert not out.exists()
        good(*command.split(), words, "-o", out)
        assert out.exists()


class TestExtract:
    def test_facts_on_stdout_and_nothing_on_stderr(self, base: list[str], tmp_path: Path) -> None:
        dry, result = good(*base, "--dry-run"), good(*base)
        assert (dry.err, result.err) == ("", "")
        labels = dict(re.split("  +", line, maxsplit=1) for line in result.out.splitlines())
        assert labels["store"] == str(tmp_path / "out")
        assert labels["rows"].startswith("token ")
        assert labels["empty documents"] == "1"
        assert open_store(tmp_path / "out").columns("token")[-3:] == ("is_special", "layer_02", "layer_03")

    def test_a_second_run_does_nothing_and_loads_no_model(
        self, base: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        good(*base)
        before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.parquet")}
        for module in (bertfeat.extraction.flow, bertfeat.encoder.loading):
            monkeypatch.setattr(module, "load_encoder", Mock(side_effect=AssertionError("a model was loaded")))
        assert "already complete" in good(*base).out
        assert good(*base, "--json").json["was_complete"] is True
        assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.parquet")} == before
        with pytest.raises(AssertionError, match="a model was loaded"):
            bertfeat.extract(base[1], tmp_path / "other", model=base[5], layers="-1")

    def test_quiet_says_nothing(self, base: list[str]) -> None:
        store = base[base.index("-o") + 1]
        for command in ([*base, "--quiet"], ["verify", store, "--quiet"]):
            result = good(*command)
            assert (result.out, result.err) == ("", "")
        (part,) = Path(store, "token").glob("*.parquet")
        part.unlink()
        result = bertfeat_cli("verify", store, "--quiet")
        assert result.code == 1
        assert part.name in result.out
        assert "1 problem" in result.err

    def test_verbose_names_device_types_and_work(self, base: list[str], tiny_folder: Path) -> None:
        result = good(*base, "--verbose", "--store-dtype", "float32", "--device", "cpu")
        shown = [" ".join(line.split()) for line in result.err.splitlines()]
        said = (f"model {tiny_folder}", "layers 2, 3", "device cpu", "compute dtype float32", "rows 4", "shards 1")
        assert {f"bertfeat: {text}" for text in said} <= set(shown)
        assert "sea" not in result.err, "no text of the corpus in logs"

    def test_standard_input(self, base: list[str], tmp_path: Path, corpus: Path) -> None:
        good(*base)
        piped = ["-" if argument == str(corpus) else argument for argument in base]
        assert "already complete" in good(*piped, stdin=corpus.read_bytes()).out, "the same bytes are the same plan"
        good(*piped, "--format", "jsonl", "--overwrite", stdin=b'{"text": "from a pipe"}\n')
        assert open_store(tmp_path / "out").metadata["layers"] == [2, 3]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]

    def test_every_setting_reaches_the_run(self, tiny_folder: Path, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("key,body,kind\nx,one quick fox,p\ny,two foxes,q\n")
        said = {"layers": "1,2", "word_pooling": "last", "pooling": "max", "max_length": 20, "on_overlong": "truncate"}
        said |= {"store_dtype": "float32", "vector_encoding": "binary", "max_batch_tokens": 64, "id_column": "key"}
        said |= {"text_column": "body", "compute_dtype": "float32", "device": "cpu", "shard_bytes": 1000, "workers": 1}
        said |= {"keep_columns": "kind", "levels": "sentence,word", "combine": "sum,mean", "bad_rows": "quarantine"}
        flags = [word for name, value in said.items() for word in (flag(name), str(value))]
        made = ("extract", tmp_path / "a.csv", "--model", tiny_folder, "--include-special-tokens")
        good(*made, "-o", tmp_path / "out", *flags)
        store = bertfeat.extract(
            str(tmp_path / "a.csv"), tmp_path / "b", model=str(tiny_folder), include_special_tokens=True, **said
        )
        assert open_store(tmp_path / "out").plan.fields == store.plan.fields
        assert open_store(tmp_path / "out").columns("word")[-2:] == ("sum_01_02", "mean_01_02")


class TestDryRun:
    def test_it_estimates_the_run_and_writes_nothing(self, base: list[str], tmp_path: Path) -> None:
        result = good(*base, "--dry-run", "--level", "token,word,sentence", "--json")
        assert list(tmp_path.iterdir()) == []
        done = good(*base, "--level", "token,word,sentence", "--json").json
        assert result.json["n_rows"] == {level: info["n_rows"] for level, info in done["levels"].items()}
        assert result.json["n_documents"] == done["n_documents"]
        assert result.json["n_tokens"] == done["n_tokens"]
        assert result.json["is_exact"] is True


class TestInspect:
    def test_it_shows_what_is_stored(self, store: Path, tiny_folder: Path) -> None:
        summary, shown = good("inspect", store, "--json").json, good("inspect", store).out
        assert all(words in shown for words in ("sentence", "layer_00 32", str(tiny_folder), "sha256", "torch "))
        levels = open_store(store).levels
        assert {level: info["n_rows"] for level, info in summary["levels"].items()} == {
            str(level): open_store(store).n_rows(level) for level in levels
        }
        n_bytes = sum(path.stat().st_size for path in store.rglob("*.parquet"))
        assert summary["n_bytes"] == n_bytes
        assert summary["complete"] is True
        assert summary["metadata"]["versions"].keys() == {"bertfeat", "torch", "transformers"}
        assert {"encode", "read", "tokenize"} <= summary["seconds"].keys()
        assert summary["tokens_per_s"] > 0


class TestVerify:
    def test_good(self, store: Path) -> None:
        assert good("verify", store, "--json").json | {"n_bytes": 0} == {
            "good": True,
            "problems": [],
            "n_parts": 3,
            "n_rows": sum(open_store(store).n_rows(level) for level in open_store(store).levels),
            "n_bytes": 0,
            "n_rows_encoded_again": None,
            "warnings": [],
        }

    def test_a_bad_part_is_named(self, base: list[str], tmp_path: Path) -> None:
        good(*base)
        part = next((tmp_path / "out" / "token").glob("*.parquet"))
        content = bytearray(part.read_bytes())
        content[len(content) // 2] ^= 1
        part.write_bytes(content)
        result = bertfeat_cli("verify", tmp_path / "out")
        assert result.code == 1
        assert result.out.startswith(f"token/{part.name}: ")
        assert result.err.count("\n") == 1
        good(*base)
        good("verify", tmp_path / "out")


def test_models_lists_every_type_of_text() -> None:
    from tests.support.families import all_model_types

    found = good("models", "--json").json
    classes = {row["model_type"]: row["model_class"] for row in found["types"]}
    assert classes.keys() >= {parameter.values[0] for parameter in all_model_types()} | {"static"}
    assert not classes.keys() & {"vit", "clip", "llava", "wav2vec2"}
    assert (classes["qwen3"], found["packages"]) == ("Qwen3Model", ["minilm"])
    lines = good("models").out.splitlines()
    assert [line.split()[0] for line in lines[2:-2]] == list(classes)


class TestFlags:
    def test_every_setting_has_a_flag(self) -> None:
        command = group.get_command(None, "extract")  # type: ignore[arg-type]
        assert command is not None
        flags = {option for param in command.params for option in param.opts}
        assert not {name for name in ExtractConfig().to_dict() if flag(name) not in flags}

    def test_help_shows_the_options_that_most_people_need_and_help_all_the_rest(self) -> None:
        def listed(*words: str) -> set[str]:
            return set(re.findall(r"^  (?:-\w, )?(-[\w-]+)(?= |$)", good(*words).out, re.MULTILINE))

        for words, command in commands():
            every = {param.opts[-1] for param in command.params if isinstance(param, click.Option)} | {"--help"}
            shown = listed(*words, "--help")
            assert len(shown) <= 16, words
            assert (listed(*words, "--help-all") if "--help-all" in every else shown) == every, words


class TestExitCodes:
    @pytest.mark.parametrize(
        ("error", "code"),
        [(CheckFailed("x"), 1), (RunError("x"), 3), (BertfeatError("two\nlines"), 3), (KeyboardInterrupt(), 130)],
    )
    def test_of_errors(self, error: BaseException, code: int, base: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bertfeat.extraction.run, "open_job", Mock(side_effect=error))
        result = bertfeat_cli(*base)
        assert result.code == code
        assert result.err.startswith("bertfeat: ") or code == 130
        assert len(result.err.strip().splitlines()) == 1

    def test_a_bug_prints_its_traceback(self, base: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bertfeat.extraction.run, "open_job", Mock(side_effect=ZeroDivisionError("oh")))
        result = bertfeat_cli(*base)
        assert result.code == 3
        assert "ZeroDivisionError: oh" in result.err
        assert result.err.splitlines()[-1].startswith("bertfeat: ")


class TestProcess:
    """The installed command in a process of its own."""

    @pytest.mark.parametrize("command", ["inspect STORE", "--help"])
    def test_a_closed_pipe(self, store: Path, command: str) -> None:
        read, write = os.pipe()
        os.close(read)
        program = [str(Path(sys.executable).with_name("bertfeat")), *command.replace("STORE", str(store)).split()]
        done = subprocess.run(program, stdout=write, stderr=subprocess.PIPE, timeout=120, check=False)
        os.close(write)
        assert (done.returncode, done.stderr) == (0, b"")

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
    @pytest.mark.parametrize(
        ("command", "code", "said"),
        [
            ("inspect STORE >/dev/full", 3, "standard output cannot be written: no space left on device"),
            ("--version >/dev/full 2>/dev/full", 3, ""),
            ("verify STORE <&- >&- 2>&-", 0, ""),
            ("extract - -o STORE/none --model MODEL --layers -1 <&-", 2, "standard input is closed"),
        ],
    )
    def test_full_and_closed_streams(self, store: Path, tiny_folder: Path, command: str, code: int, said: str) -> None:
        line = f"{Path(sys.executable).with_name('bertfeat')} {command}"
        line = line.replace("STORE", str(store)).replace("MODEL", str(tiny_folder))
        # Python keeps what it could not write only with a buffer.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        done = subprocess.run(["sh", "-c", line], stderr=subprocess.PIPE, env=environment, timeout=120, check=False)
        assert done.returncode == code
        assert said.encode() in done.stderr
        assert done.stderr.count(b"\n") == bool(said)

    def test_objects_are_freed_at_the_end(self) -> None:
        """Libraries made with nanobind, as DuckDB and triton, print a page about each object that is there at exit."""
        code = """
            import sys, duckdb
            from bertfeat.cli import run

            class Held:
                def __del__(self, write=print):
                    write("freed")

            held = Held()
            held.itself = held
            sys.argv = ["bertfeat", "--version"]
            run()
        """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.endswith("\nfreed\n")
