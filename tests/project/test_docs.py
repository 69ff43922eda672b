"""The commands and Python blocks of the README and docs/, which run in one folder."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from bertfeat import __all__ as public_names
from bertfeat import exports, heads, search
from bertfeat.config import ExtractConfig
from bertfeat.heads.registry import HeadSettings
from docs import settingtables
from docs.promisetable import PROMISES, marked_tests, with_promises
from tests.support import pipeline_runs
from tests.support.command_line import Result, bertfeat, flags
from tests.support.places import ROOT
from tests.support.shown_output import check_shown

NAVIGATION = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
GUIDES = [f"docs/{name}" for name in NAVIGATION]
PAGES = {name: (ROOT / name).read_text(encoding="utf-8") for name in ["README.md", *GUIDES]}
ALL = "\n".join(PAGES.values())
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\b\d+(?:\.\d+)?\b")
# What no two runs have alike: the speed of an extraction, and the seconds of a sweep.
TIMES = re.compile(r"^tokens per s .*| +\d+\.\d{4}$|(?<=encoding of ).*$", re.MULTILINE)
GIT: list[str | Path] = ["git", "-C"]
# Of each text under examples/data: enough to show everything, and quick.
N_LINES = {"peps.txt": 12, "wnut17_dev.conll": 160, "reviews.csv": 41, "reviews_test.csv": 31}


@pytest.fixture(scope="module")
def shared_place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like the root of the repository, with the heads of its texts."""
    place = tmp_path_factory.mktemp("pages")
    shutil.copytree(ROOT / "examples" / "data", place / "examples" / "data")
    for name, n_lines in N_LINES.items():
        text = place / "examples" / "data" / name
        lines = text.read_text(encoding="utf-8").splitlines(keepends=True)
        text.write_text("".join(lines[:n_lines]), encoding="utf-8")
    (place / "UD_English-EWT").mkdir()
    for name, split in (("dev", "train"), ("test", "dev")):
        text = ROOT / "tests" / "data" / "ud_ewt" / f"{name}.conllu"
        shutil.copy(text, place / "UD_English-EWT" / f"en_ewt-ud-{split}.conllu")
    for name in (".gitignore", "Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, place)
    (place / "pipelines").symlink_to(ROOT / "pipelines")
    subprocess.run([*GIT, place, "init", "--quiet"], check=True)
    subprocess.run([*GIT, place, "add", "."], check=True)
    return place


@pytest.fixture
def place(shared_place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, as the current folder."""
    monkeypatch.chdir(shared_place)
    return shared_place


def run_here(command: str) -> Result | None:
    """Run a command of bertfeat in this process, where an import of torch has been paid for; None for another."""
    given, is_piped, piped = command.rpartition(" | ")
    words = shlex.split(piped)
    if words[0] == "bertfeat":
        stdin = subprocess.run(["bash", "-c", given], capture_output=True, check=True).stdout if is_piped else b""
        return bertfeat(*words[1:], stdin=stdin)
    if words[:2] == ["python", "-m"]:
        # That a new process finds it is shown of an installed wheel by test_package.py.
        assert importlib.util.find_spec(words[2])
        return pipeline_runs.run(
            words[2].removeprefix("bertfeat.pipelines").removeprefix(".") or "__main__", *words[3:]
        )
    return None


def run_command(command: str, folder: Path) -> str:
    """Run a command, which must succeed, and return its output."""
    if result := run_here(command):
        # A recipe reports what it has done so far on standard error.
        reported = "" if command.startswith("python -m bertfeat.pipelines.") else result.err
        assert (result.code, reported) == (0, ""), f"{command}: {result.err}"
        return result.out
    # What make would install and run is run by the checks themselves; here its targets only have to exist.
    line = f"{command} --dry-run" if command.startswith("make ") else command
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # The suite may run under make, whose settings must not reach these commands.
    environment = {**os.environ, "PATH": path, "MAKEFLAGS": "", "MAKELEVEL": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", line],
        cwd=folder,
        env=environment,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stderr.decode()}"
    return done.stdout.decode()


def run_page(page: str, folder: Path, check: Callable[[str, str], None] | None = None) -> dict[str, Any]:
    """Run the blocks of a page, check each output that it shows, and return the names that its Python leaves."""
    printed, names = "", {}
    for language, block in BLOCK.findall(PAGES[page]):
        if language == "bash":
            commands = filter(str.strip, block.replace("\\\n", " ").splitlines())
            printed = "".join([run_command(command, folder) for command in commands])
        elif language == "python":
            # Each block runs alone: it imports and opens what it uses.
            left: dict[str, Any] = {}
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(block, page, "exec"), left)
            printed = out.getvalue()
            names |= left
        elif check is not None and not block.startswith("python -m "):  # a command that takes minutes
            check(block, printed)
    return names


@pytest.fixture
def check_printed(request: pytest.FixtureRequest) -> Callable[..., None]:
    """The check of an output that a page shows, which `--renew-shown` replaces by what is printed now."""
    if not request.config.getoption("--renew-shown"):
        return lambda shown, printed: check_shown(TIMES.sub("", shown), TIMES.sub("", printed))

    def renew(shown: str, printed: str) -> None:
        for page, text in PAGES.items():
            if f"\n{shown}```" in text:
                (ROOT / page).write_text((ROOT / page).read_text("utf-8").replace(shown, printed), "utf-8")

    return renew


def check_words(shown: str, printed: str) -> None:
    """Check that two outputs are alike but for their numbers."""
    assert NUMBER.sub("#", shown).split() == NUMBER.sub("#", printed).split(), printed


def test_the_readme_prints_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check_printed: Any) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    run_page("README.md", tmp_path, check_printed)


def test_the_layers_of_one_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check_printed: Any) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_page("docs/start/bank.md", tmp_path, check_printed)
    assert names["rows"].tolist() == sorted(names["rows"])
    assert len(names["rows"]) == 8
    # A word behind "bank" moves it in BERT, trained or not, and no bit of it in GPT-2.
    assert names["moved"]["minilm"][1:].min() > 0.1
    assert names["moved"]["./bert-random"][1:].min() > 0.01
    assert names["moved"]["./gpt2-random"].max() == 0


@pytest.mark.long
def test_a_sentence_classifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check_printed: Any) -> None:
    shutil.copytree(ROOT / "examples" / "data", tmp_path / "examples" / "data")
    monkeypatch.chdir(tmp_path)
    names = run_page("docs/start/classifier.md", tmp_path, check_printed)
    scores = {row.feature: row.score for row in names["sweep"].rows}
    middle = [scores[f"layer_{layer:02d}"] for layer in (3, 4, 5)]
    assert min(middle) > scores["layer_06"] > 0.7
    assert scores["concat_last4"] > max(scores.values()) - 0.02
    assert names["interval"].low < names["score"].value < names["interval"].high
    assert names["score"].value > 0.75


@pytest.mark.parametrize("page", [page for page in GUIDES if page != "docs/start/bank.md"])
def test_a_page_runs_in_the_folder_of_the_others(page: str, place: Path) -> None:
    # Here are the heads of the texts only, which give other numbers.
    run_page(page, place, check_words if page.startswith(("docs/start/", "docs/shipping")) else None)
    listed = [*GIT, place, "ls-files", "--others", "--exclude-standard", "--directory"]
    left = subprocess.run(listed, check=True, capture_output=True, text=True).stdout
    assert left == "", f"{page}: add it to .gitignore"


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md"])
def test_every_file_and_heading_that_a_page_links_exists(page: str) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        if "://" in link or name.startswith("pictures/"):
            continue
        target = (ROOT / page).parent / name if name else ROOT / page
        assert target.exists(), f"{page}: {link}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}, link


def test_every_page_is_in_the_navigation_and_the_readme_is_short() -> None:
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(NAVIGATION) == sorted(pages)
    assert len(PAGES["README.md"].splitlines()) <= 120


def test_every_flag_that_a_page_names_is_one() -> None:
    # Flags of bertfeat are in code spans; blocks run.
    named = set(re.findall(r"`(--[a-z-]+)", ALL))
    recipes = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "pipelines").glob("*.py"))
    assert sorted(named - flags() - set(re.findall(r"\"(--[a-z-]+)\"", recipes))) == []


def test_every_public_name_is_on_a_page_of_the_api_once() -> None:
    pattern = re.compile(r"^::: bertfeat\.(\w+(?:\.\w+)?)$", re.MULTILINE)
    named = [name for page in PAGES.values() for name in pattern.findall(page)]
    # Errors are on the page of their module.
    rooms = {"exports": exports.__all__, "heads": heads.__all__, "plots": ["charts", "tables"]}
    rooms["search"] = search.__all__
    expected = set(public_names) - {"__version__", "BertfeatError"} - set(rooms)
    for room, names in rooms.items():
        modules = {path.stem for path in (ROOT / "bertfeat" / room).glob("*.py") if room != "plots"}
        expected |= {f"{room}.{name}" for name in names if name not in modules}
    assert sorted(named) == sorted(expected)


def test_the_tables_of_settings_have_every_one_with_its_default() -> None:
    page, heads = settingtables.on_page_markdown(PAGES["docs/api.md"]).split("### Parameters of heads")
    for field in dataclasses.fields(ExtractConfig):
        row = re.search(rf"^\| `{field.name}` \| `(.*?)` \| \S", page, re.MULTILINE)
        assert row, field.name
        assert row[1] == (",".join(field.default) or "()" if isinstance(field.default, tuple) else str(field.default))
    assert set(re.findall(r"^\| `(\w+)` \| `", heads, re.MULTILINE)) == set(get_type_hints(HeadSettings))


def test_every_variable_that_the_package_reads_is_on_the_page_of_scripts() -> None:
    named = set()
    for path in sorted((ROOT / "bertfeat").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "environ" in text:
            named |= set(re.findall(r"\"(_?[A-Z]+(?:_[A-Z]+)+|TMPDIR)\"", text))
    assert {"BERTFEAT_CACHE", "RAY_ADDRESS", "_BERTFEAT_COMPLETE"} <= named
    assert sorted(name for name in named if f"`{name}`" not in PAGES["docs/scripts.md"]) == []


def test_the_page_of_guarantees_is_made_from_the_marks_of_tests() -> None:
    page, tests = PAGES["docs/guarantees.md"], marked_tests()
    assert page == with_promises(page), "run: python docs/promisetable.py"
    # Each promise is held by a test, and each mark names a promise.
    assert sorted(tests) == sorted(name for promises in PROMISES.values() for name in promises)
