"""Build of an index, piece by piece, in a folder of its own; an interrupted build resumes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bertfeat.ann.budget import MemoryPlan
from bertfeat.ann.description import INDEX, TRANSFORM, IndexDescription
from bertfeat.ann.exact import checked_queries, sample_positions
from bertfeat.ann.folder import publish_aside, read_arrays, read_index, read_json, write_arrays, write_index, write_json
from bertfeat.ann.index import VectorIndex
from bertfeat.ann.library import faiss
from bertfeat.ann.search_parameters import codes_of, core, leaves, parts, transforms
from bertfeat.ann.transforms import Transform, fit_transform, prepared_chunks, prepared_rows, transform_of
from bertfeat.ann.tuning import HeldOut, reached, tune
from bertfeat.durable import files
from bertfeat.durable.steps import step
from bertfeat.errors import RunError
from bertfeat.forks import limit_threads
from bertfeat.records import Float32Array, Int32Array
from bertfeat.vectors.array import Vectors

TRUTH = "truth.safetensors"  # queries and their nearest vectors
TUNING = "tuning.json"
SECONDS = "seconds.json"
TRAINED = "trained.faiss"
CHECKPOINT = "checkpoint.faiss"
# The default of faiss, for seed 0.
_FAISS_SEED = 1234

Value = TypeVar("Value")


def build(
    source: Vectors, folder: Path, plans: list[MemoryPlan], queries: Float32Array | None = None
) -> IndexDescription:
    """Build, or resume, an index by the plans of `plan_build` and 2 or more raw queries (n, dim) to tune by."""
    if queries is not None:
        queries = checked_queries(queries, source.shape[1])
    folder.mkdir(parents=True, exist_ok=True)
    with threads(plans[0].settings.threads):
        return _Builder(source, folder, plans, queries).build()


@dataclass(frozen=True, slots=True)
class _Builder:
    source: Vectors
    folder: Path
    plans: list[MemoryPlan]
    queries: Float32Array | None

    def build(self) -> IndexDescription:
        """Build one index after the other until one reaches the recall."""
        transform = self._timed("transform", self._transform)
        held = self._timed("truth", lambda: self._held(transform))
        measured: list[dict[str, Any]] = []
        for number in range(len(self.plans)):
            measured.append(self._candidate(number, transform, held))
            if held is None or measured[-1]["target_met"]:
                break
        # The first of equal ones.
        best = max(range(len(measured)), key=lambda i: reached(measured[i]))
        target = self.folder / INDEX
        with files.write_errors(target):
            files.link_exclusive(self.folder / f"candidate-{best}" / INDEX, target)
            files.sync_path(self.folder)
        step(f"{INDEX}.linked")
        summary = {name: value for name, value in measured[best].items() if name not in ("tried", "parameters")}
        n_vectors, dim = self.source.shape
        settings = self.plans[0].settings
        return IndexDescription(
            n_vectors=n_vectors,
            dim=dim,
            metric=settings.metric,
            transform=settings.transform,
            factory=self.plans[best].info.text,
            parameters=measured[best]["parameters"],
            settings=settings,
            measured={**summary, "candidates": measured},
            seconds=self._seconds(),
        )

    def _transform(self) -> Transform | None:
        if (arrays := read_arrays(self.folder / TRANSFORM)) is not None:
            return transform_of(arrays)
        transform = fit_transform(self.source, self.plans[0].settings.transform_spec)
        if transform is not None:
            write_arrays(self.folder / TRANSFORM, transform.to_arrays())
        return transform

    def _held(self, transform: Transform | None) -> HeldOut | None:
        """Return queries with their nearest vectors; None for a single vector, which has no others."""
        if self.source.shape[0] < 2:
            return None
        if (arrays := read_arrays(self.folder / TRUTH)) is not None:
            return HeldOut(**arrays)
        held = HeldOut.drawn(self.source, self.plans[0], transform, self.queries)
        write_arrays(self.folder / TRUTH, held._asdict())
        return held

    def _candidate(self, number: int, transform: Transform | None, held: HeldOut | None) -> dict[str, Any]:
        """Build an index, unless that is done, and return its measurements."""
        plan, folder = self.plans[number], self.folder / f"candidate-{number}"
        name = plan.info.text
        folder.mkdir(exist_ok=True)
        filling = _Filling(plan, self.source, transform, folder)

        def measure() -> dict[str, Any]:
            if held is None:
                return {"recall_at_10": None, "target_met": None, "parameters": {}}
            index = VectorIndex(read_index(folder / INDEX), plan.info.metric, transform)
            return tune(index, held, self.source, plan.settings.recall)

        if not (folder / INDEX).exists():
            self._timed(f"training {name}", filling.train)
            self._timed(f"adding {name}", filling.fill)
        for path in folder.iterdir():
            if path.name not in (INDEX, TUNING):
                path.unlink()
        if (values := read_json(folder / TUNING, dict[str, Any])) is None:
            bytes_each = round((folder / INDEX).stat().st_size / plan.shape.n_vectors, 2)
            values = {"factory": name, "bytes_per_vector": bytes_each, **self._timed(f"tuning {name}", measure)}
            write_json(folder / TUNING, values)
        return values

    def _seconds(self) -> dict[str, float]:
        return read_json(self.folder / SECONDS, dict[str, float]) or {}

    def _timed(self, name: str, stage: Callable[[], Value]) -> Value:
        """Do a stage and keep its seconds."""
        started = time.perf_counter()
        value = stage()
        seconds = self._seconds()
        # In a resumed build a finished stage is only read: its seconds are those of the earlier run.
        if name not in seconds:
            seconds[name] = round(time.perf_counter() - started, 3)
            write_json(self.folder / SECONDS, seconds)
        return value


@contextlib.contextmanager
def threads(n_threads: int) -> Iterator[None]:
    """Let faiss use this many threads within the block, or one in a forked process."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1 if limit_threads() else n_threads)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


@dataclass(frozen=True, slots=True)
class _Filling:
    """An index in a folder, which is trained and filled with the transformed vectors of a source by a plan."""

    plan: MemoryPlan
    source: Vectors
    transform: Transform | None
    folder: Path

    def train(self) -> None:
        """Write the empty index, trained on a sample of the source, unless it is there."""
        if (self.folder / TRAINED).exists():
            return
        index, seed = self.plan.info.make(), self.plan.settings.seed
        for part in map(codes_of, leaves(index)):
            if isinstance(part, faiss.IndexIVF):
                _seed(part.cp, seed)
            if hasattr(part, "pq"):
                _seed(part.pq.cp, seed)
        rotations = [found for found in transforms(index) if isinstance(found, faiss.OPQMatrix)]
        # OPQ learns its rotation with code books of its own, those that faiss makes by default; it does not own these.
        books = [faiss.ProductQuantizer(found.d_out, found.M, 8) for found in rotations]
        for rotation, book in zip(rotations, books, strict=True):
            _seed(book.cp, seed)
            rotation.pq = book
        if self.plan.info.n_training_min:
            positions = sample_positions(self.source.shape[0], self.plan.n_training, seed)
            index.train(prepared_rows(self.source, positions, self.transform, self.plan.info.metric))
        for rotation in rotations:
            rotation.pq = None
        write_index(self.folder / TRAINED, index)

    def fill(self) -> None:
        """Write the index with all vectors; what an earlier run has done is not done again."""
        write_index(self.folder / INDEX, self._grown() if self.plan.info.n_links else self._merged())

    def _chunks(self, pieces: list[range]) -> Iterator[Any]:
        return prepared_chunks(self.source, pieces, self.plan.n_chunk_rows, self.transform, self.plan.info.metric)

    def _pieces(self) -> list[range]:
        n_vectors, n_rows = self.source.shape[0], self.plan.n_piece_rows
        return [range(start, min(start + n_rows, n_vectors)) for start in range(0, n_vectors, n_rows)]

    def _piece_path(self, piece: int, part: int) -> Path:
        return self.folder / f"piece-{piece:06d}-{part}"

    def _write_pieces(self) -> None:
        index = read_index(self.folder / TRAINED)
        filled, pieces = list(leaves(index)), self._pieces()
        done = [all(self._piece_path(i, part).exists() for part in range(len(filled))) for i in range(len(pieces))]
        if all(done):
            return
        number = done.index(False)
        at = pieces[number].start
        for chunk in self._chunks(pieces[number:]):
            index.add(chunk)
            at += len(chunk)
            if at == pieces[number].stop:
                for i, part in enumerate(filled):
                    with publish_aside(self._piece_path(number, i)) as sink:
                        _write_part(part, sink)
                index.reset()
                number += 1

    def _merged(self) -> Any:
        self._write_pieces()
        index, pieces = read_index(self.folder / TRAINED), self._pieces()
        for i, part in enumerate(leaves(index)):
            paths = [self._piece_path(piece, i) for piece in range(len(pieces))]
            if isinstance(part, faiss.IndexIVF):
                _merge_lists(part, paths, pieces)
            else:
                _merge_codes(part, paths, pieces)
        for part in parts(index):
            part.ntotal = self.source.shape[0]
        return index

    def _grown(self) -> Any:
        checkpoint, n_vectors = self.folder / CHECKPOINT, self.source.shape[0]
        index = read_index(checkpoint if checkpoint.exists() else self.folder / TRAINED)
        n_done = n_kept = int(index.ntotal)
        if n_done == n_vectors:
            return index
        levels = _levels(core(index).hnsw, n_vectors, self.plan.settings.seed)
        _reserve(core(index), levels)
        # The borders of an uninterrupted run: a graph depends on which vectors are added together.
        for chunk in self._chunks([range(n_done, n_vectors)]):
            n_done += len(chunk)
            faiss.copy_array_to_vector(levels[:n_done], core(index).hnsw.levels)
            index.add(chunk)
            # Each time that it has grown by a quarter: at most five times the bytes of the last one are written.
            if n_done < n_vectors and n_done - n_kept >= max(self.plan.n_piece_rows, n_kept // 4):
                write_index(checkpoint, index)
                n_kept = n_done
        return index


def extend(index: VectorIndex, source: Vectors, start: int, n_chunk_rows: int) -> None:
    """Add vectors of a source, from position `start` on, to an index in memory; what was learned stays."""
    for chunk in prepared_chunks(source, [range(start, source.shape[0])], n_chunk_rows, index.transform, index.metric):
        index.index.add(chunk)


def _seed(clustering: Any, seed: int) -> None:
    """Seed k-means, and keep it from warnings about small samples on stderr."""
    clustering.seed = (_FAISS_SEED + seed) % (1 << 31)
    clustering.min_points_per_centroid = 1


def _write_part(part: Any, sink: files.Sink) -> None:
    """Write the codes of a part of an index; of lists their sizes, and then the lists in the format of faiss."""
    if not isinstance(part, faiss.IndexIVF):
        if part.ntotal:
            sink.write(faiss.rev_swig_ptr(part.codes.data(), part.codes.size()))
        return
    lists = part.invlists
    if isinstance(part, faiss.IndexIVFPQFastScan):
        lists = part.orig_invlists = faiss.ArrayInvertedLists(part.nlist, part.code_size)
        part.reconstruct_orig_invlists()
        part.orig_invlists = None
        # Python gave them away with the assignment, and faiss does not free them.
        lists.this.own(True)
    sink.write(np.array([lists.list_size(i) for i in range(part.nlist)], dtype=np.int64).tobytes())
    faiss.write_InvertedLists(lists, faiss.PyCallbackIOWriter(sink.write))


def _merge_codes(part: Any, paths: list[Path], pieces: list[range]) -> None:
    n_bytes = part.code_size
    part.codes.resize(pieces[-1].stop * n_bytes)
    codes = faiss.rev_swig_ptr(part.codes.data(), part.codes.size())
    for path, piece in zip(paths, pieces, strict=True):
        with path.open("rb") as file:
            wanted = codes[piece.start * n_bytes : piece.stop * n_bytes]
            # Missing codes would be zeros in the index, without an error.
            if file.readinto(wanted) != len(wanted):
                raise RunError(f"{path}: is shorter than it was written; remove {path.parent}, and build again")


def _merge_lists(part: Any, paths: list[Path], pieces: list[range]) -> None:
    lists = faiss.ArrayInvertedLists(part.nlist, part.code_size)
    sizes = sum(np.fromfile(path, dtype=np.int64, count=part.nlist) for path in paths)
    for i, n_ids in enumerate(np.asarray(sizes).tolist()):
        # A list keeps its capacity; otherwise lists would grow by doubling, and be copied.
        lists.resize(i, n_ids)
        lists.resize(i, 0)
    for path, piece in zip(paths, pieces, strict=True):
        with path.open("rb") as file:
            file.seek(8 * part.nlist)
            some = faiss.read_InvertedLists(faiss.PyCallbackIOReader(file.read))
        # Python does not own these lists and would not free them; the index frees them when it gets the next ones.
        part.replace_invlists(some, True)
        lists.merge_from(some, piece.start)
    lists.this.disown()
    part.replace_invlists(_interleaved(part, lists) if isinstance(part, faiss.IndexIVFPQFastScan) else lists, True)


def _interleaved(part: Any, lists: Any) -> Any:
    """Return lists with the codes in blocks, as adding all vectors to a part gives them; `lists` is freed."""
    plain = faiss.IndexIVFPQ(part.quantizer, part.d, part.nlist, part.M, part.nbits, part.metric_type)
    plain.pq = part.pq
    plain.replace_invlists(lists, True)
    packed = faiss.IndexIVFPQFastScan(plain, part.bbs)
    packed.own_invlists = False
    return packed.invlists


def _levels(hnsw: Any, n_vectors: int, seed: int) -> Int32Array:
    """Draw the levels of a graph's vectors, int32 (n_vectors,), from 1: faiss would draw others in a resumed build."""
    odds = faiss.vector_to_array(hnsw.assign_probas)
    drawn = np.random.default_rng(seed).random(n_vectors, dtype=np.float32)
    levels = np.searchsorted(np.cumsum(odds), drawn, side="right")
    return (np.minimum(levels, len(odds) - 1) + 1).astype(np.int32)


def _reserve(graph: Any, levels: Int32Array) -> None:
    """Reserve memory for all vectors of a graph; otherwise links and codes would grow by doubling, and be copied."""
    hnsw, storage = graph.hnsw, codes_of(graph)
    counts = np.bincount(levels).tolist()
    n_links = sum(count * hnsw.cum_nb_neighbors(level) for level, count in enumerate(counts) if count)
    for numbers, n_wanted in ((hnsw.neighbors, n_links), (storage.codes, len(levels) * storage.code_size)):
        n_there = numbers.size()
        numbers.resize(n_wanted)
        numbers.resize(n_there)
