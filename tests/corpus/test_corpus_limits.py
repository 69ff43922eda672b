"""Documents that are too long, and Parquet files with changed bytes: one line each, never an abort."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertfeat.errors import InputError
from bertfeat.records import Document
from tests.support.corpus_files import WRITERS, read_all, write
from tests.support.places import ROOT


@pytest.mark.promise("input-damage")
@pytest.mark.parametrize("name", [*WRITERS, "conll"])
def test_a_document_beyond_the_limit_is_a_bad_row(tmp_path: Path, name: str) -> None:
    rows = ["a", "é" * 4_000_001, "é" * 4_000_000]
    content = "".join(f"{row} O\n\n" for row in rows).encode() if name == "conll" else WRITERS[name](rows)
    path = write(tmp_path, f"a.{name}", content)
    found = read_all(path, bad_rows="quarantine", levels="sentence")
    assert [isinstance(row, Document) for row in found] == [True, False, True]
    said = "the row has 4,000,001 characters, 4,000,000 are the most that are read; cut"
    with pytest.raises(InputError, match=rf"a\.{name}:\d: {said}"):
        read_all(path, levels="sentence")


# Changes bytes of a file and reads it: an abort of pyarrow's C++ would end this process.
CHANGES = """
import json, random, sys
from collections import Counter
from pathlib import Path
from tests.support.corpus_files import documents
from bertfeat.errors import InputError
path, n_changes = Path(sys.argv[1]), int(sys.argv[2])
settings = {"id_column": "id", "keep_columns": "k,s.a", "levels": "sentence"}
data, random, found = path.read_bytes(), random.Random(1), Counter()
n_footer = int.from_bytes(data[-8:-4], "little") + 8
expected = documents(path, **settings)
for number in range(n_changes):
    changed = bytearray(data)
    in_footer = number % 2 == 0
    for _ in range(random.randrange(1, 4)):
        place = random.randrange(len(data) - n_footer, len(data)) if in_footer else random.randrange(len(data))
        changed[place] = random.choice([data[place] ^ 1 << random.randrange(8), random.randrange(256)])
    path.write_bytes(changed)
    try:
        documents(path, **settings)
        found["read"] += 1
    except InputError as error:
        found["one line" if "\\n" not in str(error) else "lines"] += 1
print(json.dumps(found))
"""


@pytest.mark.promise("input-damage")
@pytest.mark.parametrize(
    ("options", "n_changes"),
    [
        ({}, 100),
        pytest.param({"compression": "zstd", "row_group_size": 50}, 2500, marks=pytest.mark.long),
        pytest.param({"data_page_version": "2.0", "write_statistics": False}, 2500, marks=pytest.mark.long),
    ],
)
def test_parquet_with_changed_bytes_is_read_or_one_line(
    tmp_path: Path, options: dict[str, object], n_changes: int
) -> None:
    columns = {"text": [f"text {n % 7}" for n in range(200)], "k": [["a", "b"]] * 200, "id": list(range(200))}
    pq.write_table(pa.table({**columns, "s": [{"a": n} for n in range(200)]}), tmp_path / "a.parquet", **options)
    command = [sys.executable, "-c", CHANGES, str(tmp_path / "a.parquet"), str(n_changes)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    found = json.loads(done.stdout)
    assert found.keys() == {"read", "one line"}
