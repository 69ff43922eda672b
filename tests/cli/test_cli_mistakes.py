"""Mistakes of users: exit code 2, one line on stderr, the same in the JSON, and nothing left behind."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.support.command_line import bertfeat

# A line of `extract`, and words that its message must have: the place, the value, and what to do.
EXTRACT = {
    "nowhere.txt -o out": ["nowhere.txt: no such file"],
    "empt?.txt -o out": ["empty.txt: has no bytes"],
    "sheet.xlsx -o out": ["'.xlsx'", ".csv"],
    "columns.csv -o out": ["columns.csv: no column 'text'", "id, body", "--text-column"],
    "not.jsonl -o out": ["not.jsonl:2: not JSON", "--bad-rows quarantine"],
    "latin.txt -o out": ["latin.txt:2: byte 0xe9 at position 4", "iconv"],
    "nested.jsonl --text-column content -o out": ["nested.jsonl:1: ", "--text-column content.body"],
    "good.txt --text-column body -o out": ["good.txt: ", "--text-column 'body'"],
    "twice.jsonl --id-column id -o out": ["twice.jsonl:2: id 5", "twice.jsonl:1"],
    "good.conll --level word --label-column ner -o out": ["good.conll: ", "'ner'", "--label-column"],
    "words.jsonl -o out": ["words.jsonl:1: ", "--is-split-into-words"],
    "good.txt --model no-such-model -o out": ["no-such-model", "minilm"],
    "good.txt --model ./nowhere -o out": ["./nowhere", "no such folder"],
    "good.txt --revision main -o out": ["--revision main"],
    "good.txt --layers 4 -o out": ["layer 4", "3"],
    "good.txt --layers top -o out": ["--layers 'top'", "last4"],
    "good.txt --max-length 65 -o out": ["--max-length 65", "64"],
    "long.txt --on-overlong error -o out": ["long.txt:2: ", "64"],
    "good.txt --pooling best -o out": ["'--pooling'", "'best'", "'mean'"],
    "good.txt --level word --level sentence -o out": ["--level is given more than once"],
    "good.txt --levels word -o out": ["'--levels'", "--level"],
    "good.txt --shard-bytes lots -o out": ["--shard-bytes 'lots'", "256MB"],
    "good.txt --device tpu -o out": ["--device 'tpu'", "cuda"],
    "good.txt --keep-columns a -o out": ["--keep-columns", "--level"],
    "good.txt": ["no --output", "-o STORE"],
    "-o out": ["INPUT"],
    "- -o out": ["<stdin>: has no bytes"],
    "good.txt -o good.txt": ["good.txt: not a folder"],
    "good.txt -o folder --overwrite": ["folder: ", "mine.txt"],
}
# Flags of `probe fit made/store --level sentence`, and what the message must have.
FIT = {
    "--label nothing": "'nothing'",
    "--label doc_id": "'doc_id' has a different value in each row",
    "--feature layer_12": "'layer_12'",
    "--head forest": "'forest'",
    "--mix last4": "--mix",
    "--param depth=3": "'depth'",
    "--param C=a": "'a'",
    "--metric rouge --dev made/store": "'rouge'",
    "--class-weight heavy": "'heavy'",
    "--seeds 0": "--seeds",
    "--labels nowhere.csv": "nowhere.csv",
    "--dev nowhere": "nowhere",
    "-o folder --overwrite": "mine.txt",
    "-o good.txt/deep/p": "good.txt is not a folder; choose another --output",
}
# Flags of `index build made/store`.
BUILD = {
    "": "--level word or --level sentence",
    "--level word --feature layer_02": "'layer_02'",
    "--level word --metric angle": "'angle'",
    "--level word --transform whitten": "'whitten'",
    "--level word --factory PQ5": "'PQ5'",
    "--level word --max-memory plenty": "--max-memory 'plenty'",
    "--level word --recall 95": "95",
    "--level word -o folder": "mine.txt",
    "--level word --tune-queries none.txt": "none.txt",
    "--level word --text-column body": "is of --tune-queries, and none are given",
}
# Arguments of `search made/index`.
SEARCH = {
    "": "TEXT",
    "text --queries good.txt -o h.csv": "--queries",
    "--queries good.txt": "-o HITS.parquet",
    "--queries good.txt -o none/h.csv": "none",
    "--queries good.txt -o h.txt": "h.txt",
    "--queries latin.txt -o h.csv": "latin.txt:2: byte 0xe9",
    "--queries columns.csv -o h.csv": "--text-column",
    "text -o h": "-o is for --queries",
    "' '": "' '",
    "text --same-word": "[word]",
    "text --where 'nope = 1'": "'nope'",
    "text --where 'label ='": "--where",
    "text --columns nope": "'nope'",
}
# One thing for another.
OTHERS = {
    "search made/store text": "store: is a store, not an index",
    "probe score made/store made/probe": "store: is a store, not a probe: it has no probe.json",
    "probe score made/probe made/store --label x": "'x'",
    "probe predict made/probe made/index -o p.parquet": "index: is an index, not a bertfeat store",
    "probe predict made/probe made/store -o p.tsv": ".parquet or .csv",
    "probe compare made/probe made/probe made/store --columns nope": "'nope'",
    "probe sweep made/store -o s --level sentence --label label --limits many": "--limits holds 'many'",
    "probe sweep made/store -o s --level sentence --label label --features layer_00": "layer_00",
    "probe sweep made/store -o made/sweep --level sentence --label label": "there is a sweep already",
    "index eval made/index --queries good.txt": "--queries and --qrels belong together",
    "index update made/index made/probe": "probe: is a probe, not a bertfeat store",
    "compact made/index": "index: is an index, not a bertfeat store",
    "inspect made/corpus.jsonl": "corpus.jsonl",
    "inspect folder": "folder",
    "inspect owner/nothing": "owner/nothing",
    "inspect nothing": "hub",
    "serve made/index --port 70000": "--port",
}
# Every other command, with a place that is not there.
NOWHERE = """extract none.txt --dry-run | inspect none/none/none | verify none | search none text | serve none
probe fit none -o out | probe predict none none.txt -o out.parquet | index build none -o out | index update none none
index eval none | export none --to npy -o out | static none -o out | layers none -o out | map none -o out.parquet
card none | compact none | convert none -o out | import none.npy -o out --level word"""


def full(command: str) -> str:
    """Add what a line does not say itself."""
    kind = command.split()[0]
    if kind == "extract":
        command += " --layers all" * ("--layers" not in command) + " --model ./tiny" * ("--model" not in command)
    elif command.startswith("probe fit made"):
        command += " --label label" * ("--label " not in command) + " -o p" * ("-o " not in command)
    elif command.startswith("index build made"):
        command += " -o i" * ("-o " not in command)
    return command


MISTAKES = [
    *((f"extract {line}", words) for line, words in EXTRACT.items()),
    *((f"probe fit made/store --level sentence {flags}", [words]) for flags, words in FIT.items()),
    *((f"index build made/store {flags}", [words]) for flags, words in BUILD.items()),
    *((f"search made/index {line}", [words]) for line, words in SEARCH.items()),
    *((line, [words]) for line, words in OTHERS.items()),
    *((line, ["none"]) for line in NOWHERE.replace("\n", " | ").split(" | ")),
]


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize(("command", "words"), MISTAKES)
def test_a_mistake_is_one_line_and_changes_nothing(
    command: str, words: list[str], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    before = contents(place)
    result = bertfeat(*shlex.split(full(command)), "--json")
    assert result.code == 2, result.err
    error = result.json["error"]
    assert result.err == f"bertfeat: {error['message']}\n"
    assert result.err.count("\n") == 1
    assert error["kind"].endswith("Error")
    assert [word for word in words if word not in result.err] == [], result.err
    assert contents(place) == before
