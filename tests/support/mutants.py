"""Mutants: small faults that somebody could make, each of which the tests must find.

`make test-mutants` copies the checkout, puts in one fault at a time, and runs the tests that hold its promise. A fault
that these tests do not find is printed, and the exit code is 1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Mutant(NamedTuple):
    """A fault: the promise that it breaks, the file of the package, its text before and after, and the tests."""

    promise: str
    file: str
    old: str
    new: str
    tests: str


MUTANTS = [
    # Numbers
    Mutant(
        "layers are those of transformers",
        "encoder/encoder.py",
        "found.hidden_states[layer] for layer in",
        "found.hidden_states[max(layer - 1, 0)] for layer in",
        "encoder/test_parity.py",
    ),
    Mutant(
        "concatenated layers are in their order",
        "extraction/pooling.py",
        "target[:, k * width : (k + 1) * width]",
        "target[:, (len(column.layers) - 1 - k) * width : (len(column.layers) - k) * width]",
        "extraction/test_levels.py extraction/test_pooling.py encoder/test_parity.py",
    ),
    Mutant(
        "a mean of layers is divided by their number",
        "extraction/pooling.py",
        "return total / len(layers) if",
        "return total if",
        "extraction/test_pooling.py extraction/test_levels.py",
    ),
    Mutant(
        "lasttoken takes the last token",
        "extraction/pooling.py",
        '"lasttoken": PoolingMode(Takes.LAST,',
        '"lasttoken": PoolingMode(Takes.FIRST,',
        "extraction/test_pooling.py extraction/test_sentence_embedding.py",
    ),
    Mutant(
        "a word over several windows is their mean",
        "extraction/pooling.py",
        "seen is None else {k: merge(seen[k], part[k]) for k in part}",
        "seen is None else seen",
        "extraction/test_pooling.py",
    ),
    Mutant(
        "positions restart in each window",
        "text/packing.py",
        "position_ids=ragged_arange(np.zeros(len(chosen), dtype=np.int64), lengths)",
        "position_ids=np.arange(len(flat))",
        "text/test_packing.py",
    ),
    Mutant(
        "windows with other segments are not copies",
        "text/packing.py",
        ", types[start * type_width : end * type_width]",
        ', b""',
        "text/test_packing.py extraction/test_pairs.py",
    ),
    Mutant(
        "attention keeps the windows of a pack apart",
        "encoder/encoder.py",
        "packed(make_layout(filled.lengths, self.device))",
        "packed(make_layout(np.array([filled.n_tokens]), self.device))",
        "encoder/test_comparison.py",
    ),
    Mutant(
        "a padding token in the text has the position of padding",
        "encoder/encoder.py",
        "(running[1:] - before) * counted + self._padding_idx",
        "(running[1:] - before) + self._padding_idx",
        "encoder/test_families.py",
    ),
    Mutant(
        "copies of windows stay with theirs when a pack is halved",
        "encoder/encoder.py",
        "copy_of=pack.copy_of[served] - (windows.start or 0)",
        "copy_of=pack.copy_of[served]",
        "encoder/test_encoder.py encoder/test_lanes.py text/test_packing.py",
    ),
    Mutant(
        "autocast of the caller changes nothing",
        "encoder/encoder.py",
        "torch.autocast(self.device.type, enabled=False)",
        "torch.autocast(self.device.type, enabled=torch.is_autocast_enabled(self.device.type))",
        "encoder/test_fake_cuda.py",
    ),
    Mutant(
        "packs come in their order",
        "encoder/encoder.py",
        "while pending:\n                yield from pending.popleft()",
        "while pending:\n                yield from pending.pop()",
        "encoder/test_lanes.py encoder/test_encoder.py",
    ),
    Mutant(
        "a token is kept from the window with most context",
        "text/spans.py",
        "// 2 + 1 for i",
        "// 2 for i",
        "text/test_windows.py project/test_doctests.py",
    ),
    Mutant(
        "windows overlap by the stride",
        "text/spans.py",
        "(start, min(limits.stride, room - 1))",
        "(start, 0)",
        "text/test_windows.py",
    ),
    Mutant(
        "a word's bounds leave out spaces",
        "text/alignment.py",
        "np.where(tokens.is_blank, far, tokens.char_start)",
        "tokens.char_start",
        "text/test_alignment.py text/test_odd_text.py text/test_surface.py",
    ),
    Mutant(
        "words lost to truncation count no tokens",
        "text/alignment.py",
        "last, kept[last] - kept[first])",
        "last, last - first)",
        "text/test_alignment.py extraction/test_levels.py",
    ),
    Mutant(
        "special tokens count in a sentence only if they are asked for",
        "text/alignment.py",
        "windows.kept & (windows.source >= 0) if counts is Counts.TEXT else",
        "windows.kept if counts is Counts.TEXT else",
        "extraction/test_pooling.py extraction/test_sentence_embedding.py text/test_alignment.py",
    ),
    Mutant(
        "the second text of a pair has its segment ids",
        "text/template.py",
        "type_ids=(int(types[first]), int(types[last]))",
        "type_ids=(int(types[first]), int(types[first]))",
        "extraction/test_pairs.py text/test_windows.py",
    ),
    Mutant(
        "features that are not finite are refused",
        "store/commit.py",
        "    if row is None:\n        return\n    vector",
        "    if row is None or row >= 0:\n        return\n    vector",
        "extraction/test_reliability_rows.py store/test_store_writer.py",
    ),
    # Publication
    Mutant(
        "a file is on the disk before it has its name",
        "durable/publication.py",
        "                sink.sync()\n",
        "",
        "durable store/test_store_writer.py store/test_store_faults.py",
    ),
    Mutant(
        "a name is on the disk before the next step",
        "durable/publication.py",
        "            sync_path(final.parent)\n",
        "",
        "durable store/test_store_writer.py store/test_store_faults.py",
    ),
    Mutant(
        "a failed replacement leaves the old folder",
        "durable/publication.py",
        "            with contextlib.suppress(OSError):\n                _recover(final)\n            raise",
        "            raise",
        "durable",
    ),
    Mutant(
        "a killed replacement is finished, and the old one kept",
        "durable/publication.py",
        "    else:\n        old.rename(final)\n        sync_path(old.parent)",
        "    else:\n        shutil.rmtree(old, ignore_errors=True)",
        "durable",
    ),
    Mutant(
        "of two writers one makes the version",
        "store/manifest.py",
        'if folder.put_if_absent(name, data, "manifest"):\n        return',
        'if True:\n        folder.write(name, data, "manifest")\n        return',
        "store/test_two_writers.py storage/test_object_store_writing.py",
    ),
    Mutant(
        "a second run is refused",
        "store/writer.py",
        "self._lock.enter_context(folder.lock(shared=shared))",
        "self._lock.enter_context(folder.lock(shared=True))",
        "store/test_two_writers.py extraction/test_reliability.py",
    ),
    Mutant(
        "a part that changed after its receipt is read again",
        "store/receipts.py",
        "return receipt is not None and all(there[file.path].modified <= receipt.modified for file in shard.files)",
        "return receipt is not None",
        "store/test_store_writer.py store/test_verification.py extraction/test_reliability.py",
    ),
    Mutant(
        "a part of another size is written again",
        "store/receipts.py",
        "info.oddity is None and info.n_bytes == n_bytes for",
        "info.oddity is None for",
        "store/test_store_writer.py store/test_verification.py extraction/test_reliability.py",
    ),
    # Damage
    Mutant(
        "verify compares digests",
        "store/verification.py",
        "elif (found := self._folder.digest(file.path)) != file.digest:",
        "elif (found := file.digest) != file.digest:",
        "store/test_verification.py",
    ),
    Mutant(
        "verify finds files that belong to no shard",
        "store/verification.py",
        "if in_level and name not in listed and not",
        "if in_level and not name and not",
        "store/test_verification.py",
    ),
    Mutant(
        "a manifest leads to files of its store only",
        "store/manifest.py",
        "if path not in own or not layout.is_piece(path):",
        "if not path:",
        "store/test_store_json.py",
    ),
    Mutant(
        "values are found by their digest, not guessed",
        "store/parts.py",
        "return runs if _digest_with(file, sink.n_bytes, runs, table.vectors) == sink.digest else None",
        "return runs",
        "store",
    ),
    Mutant(
        "one layer of a concatenation is read from its place",
        "store/offsets.py",
        "* column.row_bytes + start * out.itemsize",
        "* column.row_bytes",
        "store/test_reading_rows.py store/test_store_reader.py",
    ),
    Mutant(
        "a compaction reads whole parts only",
        "store/compaction.py",
        "if not is_whole(folder, part):",
        "if not part:",
        "store/test_compaction.py",
    ),
    Mutant(
        "a compacted store knows the files of its rows",
        "store/compaction.py",
        "file=piece.file + n_inputs",
        "file=piece.file",
        "store/test_compaction.py",
    ),
    Mutant(
        "a changed setting is refused by name",
        "store/writer.py",
        "plan_file.check_same_plan(self.folder.path, stored, plan, has_grown=len(others) > 1)",
        "pass",
        "extraction/test_reliability_plan.py store/test_store_writer.py",
    ),
    Mutant(
        "links in place of the output are refused",
        "store/writer.py",
        "        if links:\n",
        "        if links and not self.there:\n",
        "extraction/test_reliability_rows.py",
    ),
    Mutant(
        "an append keeps earlier versions readable",
        "store/manifest.py",
        "newest.first_version if newest is not None and only_adds else version",
        "version",
        "extraction/test_appending.py store/test_store_writer.py",
    ),
    Mutant(
        "rows come in the order in which they were asked for",
        "store/selection.py",
        "    return read_vectors(parts, once, source, kept)[places]",
        "    return read_vectors(parts, rows, source, kept)",
        "store/test_reading_rows.py",
    ),
    Mutant(
        "a part of another size is not read",
        "store/vectors.py",
        "    if n_bytes != part.info.n_bytes:",
        "    if n_bytes < 0:",
        "store/test_reading_rows.py",
    ),
    Mutant(
        "of two writers in an object store one makes the version",
        "store/folder.py",
        "        except FileExistsError:\n            return False\n        step",
        "        except FileExistsError:\n            return True\n        step",
        "storage/test_object_store_writing.py",
    ),
    Mutant(
        "the shards of a worker that died run again",
        "runners/pool.py",
        "            yield from self._run(again, 1)\n",
        "",
        "runners/test_runners.py",
    ),
    Mutant(
        "features of models with other weights are not the same",
        "store/provenance.py",
        '    "weights_sha256": "model weights",\n',
        "",
        "store/test_provenance.py",
    ),
    # Corpora
    Mutant(
        "no row is lost at the end",
        "corpus/shards.py",
        "    if starts:\n        shards.append",
        "    if len(shards) != 1 and starts:\n        shards.append",
        "corpus/test_shards.py corpus/test_corpus_reading.py",
    ),
    Mutant(
        "a number of a row is that of the corpus",
        "corpus/reader.py",
        "doc_id=index if content.doc_id is None else content.doc_id,\n            text=",
        "doc_id=row.row if content.doc_id is None else content.doc_id,\n            text=",
        "corpus/test_corpus_reading.py extraction/test_appending.py",
    ),
    Mutant(
        "duplicate ids are refused",
        "corpus/reader.py",
        "(twice := register.find_duplicate()) is not None",
        "(twice := register.find_duplicate()) == ()",
        "corpus/test_corpus_reading.py extraction/test_reliability_rows.py",
    ),
    Mutant(
        "a file that lost rows since the plan is refused",
        "corpus/reader.py",
        "            if index < end:\n",
        "            if index > end:\n",
        "corpus/test_corpus_reading.py extraction/test_changing_inputs.py",
    ),
    Mutant(
        "a document beyond the limit is a bad row",
        "corpus/reader.py",
        "return content if reason is None else RowError",
        "return content if reason != 0 else RowError",
        "corpus/test_corpus_limits.py",
    ),
    Mutant(
        "a byte order mark is not text",
        "corpus/line_streams.py",
        "if offset == 0 and line.startswith(BOM):",
        "if offset < 0 and line.startswith(BOM):",
        "corpus/test_corpus_readers.py",
    ),
    Mutant(
        "CRLF ends a line",
        "corpus/line_streams.py",
        'line[:-2] if line.endswith(b"\\r\\n") else line.removesuffix(b"\\n")',
        'line.removesuffix(b"\\n")',
        "corpus/test_corpus_readers.py",
    ),
    # Safety
    Mutant(
        "no file leads out of a model folder",
        "encoder/weights.py",
        "if not real.is_relative_to(root):",
        "if not real:",
        "encoder/test_checkpoint_safety.py encoder/test_hostile_models.py",
    ),
    Mutant(
        "an index of weights names safetensors beside it only",
        "encoder/weights.py",
        "if Path(name).name != name or not name.endswith(ending):",
        "if not name:",
        "encoder/test_checkpoint_safety.py encoder/test_hostile_models.py",
    ),
    # Probes
    Mutant(
        "entities follow conlleval's rules",
        "heads/entities.py",
        'starts = prefix in "BS" or (prefix in "IE" and last in "OES") or',
        'starts = prefix in "BS" or',
        "heads/test_entities.py heads/test_scores.py",
    ),
    Mutant(
        "F1 is the harmonic mean",
        "heads/scores.py",
        "2 * right / (n_true + n_predicted), n_true",
        "right / (n_true + n_predicted), n_true",
        "heads/test_scores.py",
    ),
    Mutant(
        "an interval has its level on both sides",
        "heads/scores.py",
        "[(1 - _LEVEL) / 2, (1 + _LEVEL) / 2]",
        "[1 - _LEVEL, _LEVEL]",
        "heads/test_scores.py",
    ),
    Mutant(
        "a probe whose weights changed is refused",
        "heads/folder.py",
        "load(read_checked(where / WEIGHTS, document.weights, SAVE_AGAIN))",
        "load((where / WEIGHTS).read_bytes())",
        "durable/test_damaged_files.py",
    ),
    Mutant(
        "dimensions are divided by their deviation",
        "vectors/standardized.py",
        "moments.squares / max(1, moments.n_rows)",
        "moments.squares / max(1, moments.n_rows - 1)",
        "vectors heads/test_rowprobe.py",
    ),
    Mutant(
        "squares do not depend on blocks",
        "vectors/moments.py",
        "+ gap**2 * weight",
        "+ gap**2",
        "vectors heads/test_rowprobe.py",
    ),
    Mutant(
        "no document is in both parts of a split",
        "probes/rows.py",
        "return self._only(~is_held), self._only(is_held)",
        "return self._only(~is_held), self._only(is_held | is_held[::-1])",
        "probes/test_learningrows.py probes/test_fitting.py",
    ),
    Mutant(
        "rows without a label do not count",
        "probes/rows.py",
        'found = candidates.filter(is_given(candidates["label"]))',
        'found = candidates.filter(candidates["label"].is_not_null())',
        "probes/test_fitting.py",
    ),
    # Search
    Mutant(
        "exact hits count the rounding of keys",
        "vectors/nearest.py",
        "errors = 2 * (self._bound * errors + _TINY)",
        "errors = 0 * errors",
        "ann/test_exact.py",
    ),
    Mutant(
        "a row does not find itself",
        "vectors/nearest.py",
        "kept = here[row] != exclude[query]",
        "kept = here[row] != exclude[0]",
        "ann/test_exact.py map/test_map.py",
    ),
    Mutant(
        "MRR is one by the rank",
        "ann/evaluation.py",
        "1 / hits[0] if hits",
        "1 / len(hits) if hits",
        "ann/test_evaluation.py",
    ),
    Mutant(
        "ties count in recall",
        "ann/evaluation.py",
        "good |= sign * found_scores >= sign * last",
        "good |= sign * found_scores > sign * last",
        "ann/test_evaluation.py ann/test_autoindex.py",
    ),
    Mutant(
        "an index whose files changed is refused",
        "ann/folder.py",
        "if FileDigest.of(path) == wanted:",
        "if FileDigest.of(path).n_bytes == wanted.n_bytes:",
        "durable/test_damaged_files.py ann/test_indexfolder.py",
    ),
    Mutant(
        "an index grows only with its own store",
        "search/update.py",
        "if digest.add(first) != origin.rows_digest:",
        "if not digest.add(first):",
        "search/test_storeupdate.py",
    ),
    Mutant(
        "null meets no condition",
        "search/filters.py",
        "mask.fill_null(False)",
        "mask.fill_null(True)",
        "search/test_search.py",
    ),
    # Pages and the command line
    Mutant(
        "the search page refuses other hosts",
        "serve/page.py",
        'allowed_hosts=[_HOST, "localhost"]',
        'allowed_hosts=["*"]',
        "serve/test_serving.py",
    ),
    Mutant(
        "the search page refuses other origins",
        "serve/page.py",
        "if any(origin !=",
        "if all(origin !=",
        "serve/test_serving.py project/test_doctests.py",
    ),
    Mutant(
        "markup on a map is text",
        "map/page.py",
        '.replace("<", "\\\\u003c").replace(">", "\\\\u003e")',
        "",
        "map/test_map.py",
    ),
    Mutant(
        "a mistake of the user ends with 2",
        "cli/failures.py",
        "error.exit_code, error, outcome)",
        "RUN_FAILED, error, outcome)",
        "cli/test_cli_errors.py",
    ),
    Mutant(
        "a damaged vector of a cache is encoded again",
        "extraction/vector_cache.py",
        "digest == _digest(key, value)",
        "digest",
        "extraction/test_vectorcache.py",
    ),
]


def run(mutant: Mutant, folder: Path) -> bool:
    """Put a fault into a copy of the checkout, run its tests, and take it out; return whether the tests found it."""
    file = folder / "bertfeat" / mutant.file
    text = file.read_text("utf-8")
    if text.count(mutant.old) != 1:
        raise SystemExit(f"{mutant.file}: {mutant.old!r} occurs {text.count(mutant.old)} times; must be once")
    file.write_text(text.replace(mutant.old, mutant.new), "utf-8")
    try:
        words = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", *(f"tests/{name}" for name in mutant.tests.split())]
        environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode not in (0, 1):
            raise SystemExit(f"{mutant.promise}: pytest ended with {done.returncode}\n{done.stdout[-2000:]}")
        if done.returncode:
            print([line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))][:1])
        return done.returncode == 1
    finally:
        file.write_text(text, "utf-8")


def main() -> None:
    """Run all mutants, or those whose promise or file has a word of the command line."""
    wanted = [m for m in MUTANTS if all(word in f"{m.promise} {m.file}" for word in sys.argv[1:])]
    alive = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "checkout"
        tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
        for name in tracked.decode().strip("\0").split("\0"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
        for mutant in wanted:
            found = run(mutant, folder)
            print("found" if found else "NOT FOUND", mutant.promise, flush=True)
            alive += [] if found else [mutant.promise]
    print(f"{len(wanted) - len(alive)} of {len(wanted)} faults are found")
    sys.exit(bool(alive))


if __name__ == "__main__":
    main()
