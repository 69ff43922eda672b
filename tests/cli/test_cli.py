"""The command line: its output and its exit codes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bertfeat.encoder.loading
import bertfeat.extraction.flow
import bertfeat.extraction.run
from bertfeat import open_store
from bertfeat.config import ExtractConfig, flag
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
        ("layers", "layers", "token, word, sentence"),
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
        for command in ([*base, "--quiet"], ["verify", tmp_path / "out", "--quiet"]):
            quiet = good(*command)
            assert (quiet.out, quiet.err) == ("", "")
        labels = dict(re.split("  +", line, maxsplit=1) for line in result.out.splitlines())
        assert labels["store"] == str(tmp_path / "out")
        assert labels["rows"].startswith("token ")
        assert labels["empty documents"] == "1"
        assert open_store(tmp_path / "out").columns("token")[-3:] == ("is_special", "layer_02", "layer_03")

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

    def test_a_dry_run_estimates_the_run_and_writes_nothing(self, base: list[str], tmp_path: Path) -> None:
        result = good(*base, "--dry-run", "--level", "token,word,sentence", "--json")
        assert list(tmp_path.iterdir()) == []
        done = good(*base, "--level", "token,word,sentence", "--json").json
        assert result.json["n_rows"] == {level: info["n_rows"] for level, info in done["levels"].items()}
        assert result.json["n_documents"] == done["n_documents"]
        assert result.json["n_tokens"] == done["n_tokens"]
        assert result.json["is_exact"] is True

    def test_a_dry_run_says_what_the_run_costs(self, base: list[str]) -> None:
        found = good(*base, "--dry-run", "--price", "3600", "--json").json
        assert (round(found["cost"], 6), found["price_per_hour"]) == (round(found["seconds"], 6), 3600)
        assert " at 0.09 per hour\n" in good(*base, "--dry-run", "--price", "0.09").out
        assert "--price goes with --dry-run" in refused(*base, "--price", "0.09")
        assert "--price nan is not a price" in refused(*base, "--dry-run", "--price", "nan")


def test_verify_of_a_good_store(store: Path) -> None:
    found = good("verify", store, "--json").json
    n_rows = sum(open_store(store).n_rows(level) for level in open_store(store).levels)
    assert (found["good"], found["problems"], found["n_parts"], found["n_rows"]) == (True, [], 3, n_rows)


def test_models_lists_every_type_of_text() -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    from tests.support.families import all_model_types

    found = good("models", "--json").json
    classes = {row["model_type"]: row["model_class"] for row in found["types"]}
    # Older versions of transformers lack some.
    known = {parameter.values[0] for parameter in all_model_types()} & {*CONFIG_MAPPING_NAMES}
    assert classes.keys() >= known | {"static"}
    assert not classes.keys() & {"vit", "clip", "llava", "wav2vec2"}
    assert (classes["qwen3"], found["packages"]) == ("Qwen3Model", ["minilm"])
    lines = good("models").out.splitlines()
    assert [line.split()[0] for line in lines[2:-2]] == list(classes)


def test_every_setting_has_a_flag() -> None:
    known = {option for param in dict(commands())["extract",].params for option in param.opts}
    assert not {name for name in ExtractConfig().to_dict() if flag(name) not in known}


def test_the_first_screen_shows_eight_commands_with_a_line_each_and_names_the_others() -> None:
    shown, more = good("--help").out.split("\nMore:\n")
    listed = re.findall(r"^  ([a-z]+)  +\S", shown.split("Commands:\n")[1], re.MULTILINE)
    assert listed == ["extract", "inspect", "verify", "probe", "index", "search", "map", "export"]
    assert {"serve", "layers", "import", "compact"} <= set(re.findall(r"[a-z]+", more))


def test_help_shows_few_options_and_help_all_every_one() -> None:
    names = {param.opts[-1] for param in dict(commands())["extract",].params if param.opts[-1].startswith("-")}
    shown, every = good("extract", "--help").out, good("extract", "--help-all").out
    assert all(name in every for name in names)
    assert len([name for name in names if name in shown]) < len(names) / 2


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
