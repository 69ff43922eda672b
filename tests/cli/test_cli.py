"""The command line: its output and its exit codes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from click.testing import CliRunner

import bertfeat.encoder.loading
import bertfeat.extraction.flow
import bertfeat.extraction.run
from bertfeat import BertfeatError, open_store
from bertfeat.cli import group
from bertfeat.config import ExtractConfig, flag
from bertfeat.devices import has_fast_bfloat16
from bertfeat.errors import CheckFailed, RunError
from tests.support.command_line import bertfeat as bertfeat_cli
from tests.support.command_line import good, refused

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


@pytest.mark.parametrize("n_short", [12, 3])
def test_one_document_that_is_most_of_the_work_is_named_and_empty_ones_are_counted(
    tiny_folder: Path, tmp_path: Path, n_short: int
) -> None:
    corpus = tmp_path / "c.txt"
    corpus.write_text("one fox\n" * n_short + "\n\n" + "two dogs jump " * 40 + "\n")
    run = ("extract", corpus, "--model", tiny_folder, "--layers", "-1", "-o", tmp_path / "s")
    number, many = n_short + 3, n_short > 8
    made = good(*run)
    assert ", 2 documents without a token" in made.out
    assert (f"; document {number} has " in made.out) == many
    found = good(*run, "--json").json
    assert (found["n_empty_documents"], found["longest_document"] is not None) == (2, many)


class TestExtract:
    def test_one_line_on_stdout_and_nothing_on_stderr(self, base: list[str], tmp_path: Path) -> None:
        result = good(*base)
        assert result.err == ""
        assert result.out.startswith(f"{tmp_path / 'out'}: ")
        assert result.out.count("\n") == 1
        assert " token rows, " in result.out
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

    def test_overwrite(self, base: list[str], tmp_path: Path) -> None:
        good(*base)
        assert bertfeat_cli(*base, "--level", "word").code == 2
        good(*base, "--level", "word", "--overwrite")
        assert open_store(tmp_path / "out").levels == ("word",)

    def test_json_is_one_object_and_nothing_else(self, base: list[str]) -> None:
        result = good(*base, "--json")
        assert result.err == ""
        summary = result.json
        assert summary["was_complete"] is False
        assert summary["complete"] is True
        assert summary["levels"]["token"]["features"] == {"layer_02": 32, "layer_03": 32}
        assert summary["n_documents"] == len(TEXTS)

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

    def test_progress_when_asked(self, base: list[str]) -> None:
        err = good(*base, "--progress").err
        assert "reading the corpus" in err
        assert f"{len(TEXTS)}/{len(TEXTS)} documents" in err
        assert "tokens/s" in err

    def test_verbose_names_device_types_and_threads(self, base: list[str], tiny_folder: Path) -> None:
        result = good(*base, "--verbose", "--store-dtype", "float32", "--device", "cpu")
        lines = result.err.splitlines()
        assert all(line.startswith("bertfeat: ") for line in lines)
        assert f"model {tiny_folder} (bert, 3 layers, 32 wide), layers 2, 3" in lines[0]
        for words in ("device cpu", "compute float32", "store float32", "packs of up to", "1 worker with", "thread"):
            assert words in lines[1]
        assert "4 rows in 1 shard" in lines[2]
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
        arguments = "--text-column body --id-column key --keep-columns kind --level sentence,word --combine sum,mean"
        arguments += " --word-pooling last --pooling max --include-special-tokens --max-length 20"
        arguments += " --on-overlong truncate --store-dtype float32 --vector-encoding binary --max-batch-tokens 64"
        arguments += " --compute-dtype float32 --device cpu --shard-bytes 1kB --workers 1 --bad-rows quarantine"
        out = tmp_path / "out"
        good("extract", tmp_path / "a.csv", "-o", out, "--model", tiny_folder, "--layers", "1,2", *arguments.split())
        meta = open_store(out).metadata
        said = {"word_pooling": "last", "pooling": "max", "include_special_tokens": True, "max_length": 20}
        said |= {"on_overlong": "truncate", "store_dtype": "float32", "vector_encoding": "binary"}
        assert {name: meta[name] for name in said} == said
        assert open_store(out).plan.fields["max_batch_tokens"] == 64
        assert open_store(out).plan.fields["shard_bytes"] == 1000
        windows = ("--model", tiny_folder, "--layers", "-1", "--max-length", "20", "--stride", "3")
        good("extract", tmp_path / "a.csv", "-o", tmp_path / "windows", "--text-column", "body", *windows)
        assert open_store(tmp_path / "windows").metadata["stride"] == 3
        rows = open_store(out).polars("sentence", ["doc_id", "text", "kind"])
        assert rows.rows() == [("x", "one quick fox", "p"), ("y", "two foxes", "q")]
        assert open_store(out).columns("word")[-2:] == ("sum_01_02", "mean_01_02")


class TestDryRun:
    def test_it_estimates_the_run_and_writes_nothing(self, base: list[str], tmp_path: Path) -> None:
        result = good(*base, "--dry-run", "--level", "token,word,sentence", "--json")
        assert list(tmp_path.iterdir()) == []
        done = good(*base, "--level", "token,word,sentence", "--json").json
        assert result.json["n_rows"] == {level: info["n_rows"] for level, info in done["levels"].items()}
        assert result.json["n_documents"] == done["n_documents"]
        assert result.json["n_tokens"] == done["n_tokens"]
        assert result.json["is_exact"] is True

    def test_for_people(self, base: list[str]) -> None:
        result = good(*base, "--dry-run")
        assert result.err == ""
        first = [line.split()[0] for line in result.out.splitlines()]
        assert first[:6] == ["documents", "tokens", "token", "on", "encoder", "time"]
        # Only where the processor has it, and the run would gain by it.
        assert first[6:] in ([], ["bfloat16"] * has_fast_bfloat16())

    def test_it_needs_no_output(self, base: list[str]) -> None:
        position = base.index("-o")
        assert good(*base[:position], *base[position + 2 :], "--dry-run").out.startswith("documents  4")


class TestInspect:
    def test_for_people(self, store: Path, tiny_folder: Path) -> None:
        result = good("inspect", store)
        assert result.err == ""
        for words in ("4 documents", "token ", "word ", "sentence ", "layer_00[32]", "layer_03[32]"):
            assert words in result.out
        for words in (f"model      {tiny_folder} (bert)", "float32 on cpu", "tokens/s", "sha256", "torch "):
            assert words in result.out
        assert "not complete" not in result.out

    def test_json_is_one_object(self, store: Path) -> None:
        summary = good("inspect", store, "--json").json
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

    def test_of_an_unfinished_store(
        self, corpus: Path, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        out = tmp_path / "out"
        run = ["extract", corpus, "-o", out, "--model", tiny_folder, "--layers", "all", "--shard-bytes", "1"]
        plain = bertfeat.extraction.run.commit_shard
        n_done = 0

        def break_off(*arguments: object) -> object:
            nonlocal n_done
            if n_done == 2:
                raise RunError("the disk is full; run the same command again")
            n_done += 1
            return plain(*arguments)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(bertfeat.extraction.run, "commit_shard", break_off)
            broken = bertfeat_cli(*run)
        assert broken.code == 3
        assert broken.err.count("\n") == 1
        result = good("inspect", out)
        assert "not complete: 2 of 4 shards are done" in result.out
        assert "2 documents" in result.out
        summary = good("inspect", out, "--json").json
        assert (summary["complete"], summary["n_shards"], summary["n_shards_planned"]) == (False, 2, 4)
        log = good(*run, "--verbose").err
        assert "4 rows in 4 shards, 2 of them done before" in log
        assert "not complete" not in good("inspect", out).out

    def test_of_a_copy_without_the_private_folder(self, store: Path, tmp_path: Path) -> None:
        shutil.copytree(store / "manifests", tmp_path / "copy/manifests")
        result = good("inspect", tmp_path / "copy")
        assert "no times kept" in result.out
        assert good("inspect", tmp_path / "copy", "--json").json["tokens_per_s"] is None


class TestVerify:
    def test_good(self, store: Path) -> None:
        assert ": good; 3 parts" in good("verify", store).out

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


class TestModels:
    def test_the_list_has_every_type_of_text(self) -> None:
        from tests.support.families import all_model_types

        lines = good("models").out.splitlines()
        assert lines[-1] == "Installed model packages: minilm"
        table = good("models", "--json").json
        listed = {row["model_type"] for row in table}
        assert listed >= {parameter.values[0] for parameter in all_model_types()} | {"static"}
        assert not listed & {"vit", "clip", "llava", "wav2vec2"}
        assert [line.split()[0] for line in lines[:-1]] == [row["model_type"] for row in table]

    @pytest.mark.parametrize(
        ("model_type", "answer"),
        [
            ("qwen3", "qwen3  Qwen3Model\n"),
            ("longformer", "longformer  LongformerModel; local attention only"),
            ("mra", "mra  MraModel; not run: its attention gives zeros"),
        ],
    )
    def test_one_type(self, model_type: str, answer: str) -> None:
        assert good("models", model_type).out.startswith(answer)
        assert good("models", model_type, "--json").json["model_type"] == model_type

    def test_an_unknown_type(self) -> None:
        result = bertfeat_cli("models", "qwen33")
        assert result.code == 2
        assert "'qwen33' is not a model type of text of this transformers; did you mean 'qwen3'?" in result.err


class TestFlags:
    def test_every_setting_has_a_flag(self) -> None:
        command = group.get_command(None, "extract")  # type: ignore[arg-type]
        assert command is not None
        flags = {option for param in command.params for option in param.opts}
        assert not {name for name in ExtractConfig().to_dict() if flag(name) not in flags}

    def test_defaults_are_those_of_the_config(self) -> None:
        command = group.get_command(None, "extract")  # type: ignore[arg-type]
        assert command is not None
        context = command.make_context("extract", ["a.txt"])
        fields = ExtractConfig().to_dict()
        values = {name: value for name, value in context.params.items() if name in fields and value is not None}
        assert ExtractConfig.from_dict(values) == ExtractConfig()

    @pytest.mark.parametrize("name", ["extract", "inspect", "search", "verify", "models"])
    def test_every_option_has_help(self, name: str) -> None:
        command = group.get_command(None, name)  # type: ignore[arg-type]
        assert command is not None
        helpless = [param.name for param in command.params if param.param_type_name == "option" and not param.help]
        assert helpless == []

    def test_help_has_headings(self) -> None:
        text = CliRunner().invoke(group, ["extract", "-h"], prog_name="bertfeat").output
        headings = [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
        assert headings[:3] == ["Run:", "Corpus:", "Model:"]
        assert headings[-1] == "Other options:"
        assert "\n    bertfeat extract reviews.csv -o features --text-column body" in text
        assert "\\b" not in text


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

    def run(self, *arguments: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        command = [Path(sys.executable).with_name("bertfeat"), *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, timeout=120, check=False)

    def test_extract_from_a_pipe(self, tiny_folder: Path, tmp_path: Path) -> None:
        options = ["--model", tiny_folder, "--layers", "-1,-2", "--level", "sentence", "--json"]
        done = self.run("extract", "-", "-o", tmp_path / "out", *options, stdin=b"one fox\ntwo dogs\n")
        assert done.returncode == 0
        assert done.stderr == b"", "nothing but our own lines, and there are 0"
        assert json.loads(done.stdout)["levels"]["sentence"]["n_rows"] == 2
        assert np.isfinite(open_store(tmp_path / "out").numpy("sentence", "layer_03")).all()

    def test_a_mistake(self, tmp_path: Path) -> None:
        done = self.run("extract", tmp_path / "nowhere.txt", "-o", tmp_path / "out")
        assert done.returncode == 2
        assert done.stderr.startswith(f"bertfeat: {tmp_path / 'nowhere.txt'}: no such file".encode())
        assert done.stderr.count(b"\n") == 1

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
            ("models --jso --json >/dev/full", 2, "No such option"),
            ("verify STORE <&- >&- 2>&-", 0, ""),
            ("models --jso --json 2>/dev/full >&-", 2, ""),
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

    def test_as_a_module(self) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "bertfeat", "--version"], capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stdout == f"bertfeat, version {bertfeat.__version__}\n"
