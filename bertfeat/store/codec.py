"""Exact conversion of records to JSON and back, and a seal that shows whether a JSON file was damaged or edited."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Generic, TypeVar

import xxhash

from bertfeat.choices import Combine, Level, StoreDtype, VectorEncoding
from bertfeat.durable.decoding import decode
from bertfeat.errors import StoreError
from bertfeat.records import LevelSchema, PartInfo, Plan, Receipt
from bertfeat.storage import AnyPath

_T = TypeVar("_T")
_SEAL = "check"
# Characters: the plan of some 30,000 files, or the manifest of 20,000 shards.
_MOST_INDENTED = 10_000_000
# Canonical JSON is made in pieces: the containers of the first levels are cut; the slices of a plan's shard are on the
# fifth. One of more entries than the second number is cut into pieces of the third, another one entry by entry.
_CUT_LEVELS, _FEW_ENTRIES, _PIECE_ENTRIES = 5, 100, 10_000


def canonical_json(value: Any) -> str:
    """Return the canonical JSON text of a value: sorted keys, no spaces, ASCII; a record becomes an object.

    Raises:
        ValueError: A number is not finite.

    Examples:
        >>> canonical_json({"b": [1, 2], "a": None})
        '{"a":null,"b":[1,2]}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_fields)


def canonical_pieces(value: Any, n_levels: int = _CUT_LEVELS) -> Iterator[bytes]:
    """Yield the ASCII bytes of `canonical_json` in pieces.

    The encoder of `json` holds a text twice, and the plan of a million files has 300 MB.

    Raises:
        ValueError: A number is not finite.
    """
    if dataclasses.is_dataclass(value):
        value = _fields(value)
    if not n_levels or not value or not isinstance(value, dict | list | tuple):
        yield canonical_json(value).encode()
        return
    keys = sorted(value) if isinstance(value, dict) else None
    n_entries = 1 if len(value) <= _FEW_ENTRIES else _PIECE_ENTRIES
    yield b"[" if keys is None else b"{"
    for start in range(0, len(value), n_entries):
        piece = value[start : start + n_entries] if keys is None else keys[start : start + n_entries]
        yield b"," if start else b""
        if n_entries > 1:
            yield canonical_json(piece if keys is None else {key: value[key] for key in piece})[1:-1].encode()
        elif keys is None:
            yield from canonical_pieces(piece[0], n_levels - 1)
        else:
            yield canonical_json({piece[0]: 0})[1:-2].encode()
            yield from canonical_pieces(value[piece[0]], n_levels - 1)
    yield b"]" if keys is None else b"}"


def _fields(record: Any) -> dict[str, Any]:
    """Return the fields of a record, without the copies that `asdict` makes."""
    names: tuple[str, ...] | None = getattr(type(record), "__slots__", None)
    if names is None:
        raise TypeError(f"{type(record).__name__} is not a JSON value")
    return {name: getattr(record, name) for name in names}


def seal(content: Mapping[str, Any], *, compact: bool = False) -> bytes:
    """Return the bytes of a JSON file: the object, with the digest of its content under the key `check`.

    A compact file is the canonical JSON on one line, which takes a tenth of the time to write; a large one always is.
    """
    file = io.BytesIO()
    for piece in canonical_pieces(dict(content)):
        file.write(piece)
    check = xxhash.xxh3_128_hexdigest(file.getbuffer())
    if compact or file.tell() > _MOST_INDENTED:
        file.seek(-1, io.SEEK_CUR)
        file.write(_compact_end(check))
        return file.getvalue()
    sealed = {**content, _SEAL: check}
    return (json.dumps(sealed, indent=2, sort_keys=True, allow_nan=False, default=_fields) + "\n").encode()


def unseal(data: bytes) -> dict[str, Any]:
    """Return the object in a sealed JSON file.

    Raises:
        ValueError: The bytes are not a JSON object, or its content is not what was sealed.
    """
    try:
        content = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deep") from None
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    check = content.pop(_SEAL, None)
    if not _is_compact(data) and check != xxhash.xxh3_128_hexdigest(canonical_json(content).encode()):
        raise ValueError("damaged or edited: its content does not match its check value")
    return content


def _compact_end(check: str) -> bytes:
    return f',"{_SEAL}":"{check}"}}\n'.encode()


def _is_compact(data: bytes) -> bool:
    """Return whether the bytes are those of a whole compact file, whose canonical JSON need not be made again."""
    end = data.rfind(f',"{_SEAL}":'.encode())
    digest = xxhash.xxh3_128(memoryview(data)[:end])
    digest.update(b"}")
    return data[end:] == _compact_end(digest.hexdigest())


class LastFile(Generic[_T]):
    """The last file of a kind that was read or written, decoded.

    An append looks at plan and manifest several times, and those of a store with a thousand appends are large.
    """

    def __init__(self) -> None:
        self._last: tuple[AnyPath, str, _T] | None = None

    def of(self, path: AnyPath, data: bytes, read: Callable[[], _T]) -> _T:
        """Return the content of a file, whose bytes were just read; `read` decodes it if it is not the last one."""
        # The digest, because the bytes may be hundreds of megabytes.
        last, digest = self._last, xxhash.xxh3_128_hexdigest(data)
        if last is None or last[:2] != (path, digest):
            self._last = last = (path, digest, read())
        return last[2]

    def keep(self, path: AnyPath, data: bytes, content: _T) -> None:
        """Take a file that was written, with the content that reading it would give."""
        self._last = (path, xxhash.xxh3_128_hexdigest(data), content)


def hash_fields(fields: Mapping[str, Any]) -> str:
    """Return the hash of a plan: the sha256 of its fields' canonical JSON, hex."""
    digest = hashlib.sha256()
    for piece in canonical_pieces({**fields}):
        digest.update(piece)
    return digest.hexdigest()


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Return a plan as records and JSON values; `plan_from_json` of their JSON is equal to it."""
    schemas = {str(level): schema_to_json(schema) for level, schema in plan.schemas.items()}
    values = {**_fields(plan), "schemas": schemas}
    # Without appends, the file is that of older versions.
    return values if plan.appends else {name: value for name, value in values.items() if name != "appends"}


def plan_from_json(content: Any) -> Plan:
    """Return a plan from what `plan_to_json` gave; raise ValueError if the content is not a plan."""
    values = decode(Mapping[str, Any], content)  # type: ignore[type-abstract]
    schemas = schemas_from_json(values.get("schemas"))
    levels = {level: {**schema_to_json(schema), "level": level} for level, schema in schemas.items()}
    plan = decode(Plan, {**values, "schemas": levels})
    if plan.fields.get("levels", [*schemas]) != [*schemas]:
        raise ValueError(f"its schemas are of the levels {', '.join(schemas)}, and its fields name other ones")
    return dataclasses.replace(plan, metadata=metadata_from_json(plan.metadata))


def schema_to_json(schema: LevelSchema) -> dict[str, Any]:
    """Return the columns of a level, without its name, as plain JSON values."""
    return {name: value for name, value in asdict(schema).items() if name != "level"}


def schemas_from_json(content: Any) -> dict[Level, LevelSchema]:
    """Return the schemas of levels from what `schema_to_json` gave; raise ValueError for other content.

    They are in the order of the enum: JSON objects are written with sorted keys.
    """
    found = decode(Mapping[Level, Mapping[str, Any]], content)  # type: ignore[type-abstract]
    return {level: _schema(level, found[level]) for level in Level if level in found}


def _schema(level: Level, content: Mapping[str, Any]) -> LevelSchema:
    schema = decode(LevelSchema, {**content, "level": level})
    if not schema.columns or schema.columns[0].name != "doc_id":
        raise ValueError(f"{level}: the first column is not doc_id")
    names = [*(column.name for column in schema.columns), *(feature.name for feature in schema.features)]
    if len(set(names)) < len(names):
        raise ValueError(f"{level}: two columns with the same name")
    for feature in schema.features:
        n_layers = len(feature.layers) if Combine(feature.combine) is Combine.CONCAT else 1
        if not feature.layers or not feature.dim or feature.dim % n_layers:
            raise ValueError(f"{level}.{feature.name}: {feature.dim} values of {len(feature.layers)} layers")
    return schema


class Metadata(dict[str, Any]):
    """A store's description of itself. A missing entry is an error in the store."""

    def __missing__(self, name: str) -> Any:
        raise StoreError(f"the store's metadata lack {name!r}; run bertfeat verify, then the command that made it")


def metadata_from_json(content: Mapping[str, Any]) -> Metadata:
    """Return a store's description of itself; raise ValueError if an entry has the wrong type."""
    for name, kind in _METADATA.items():
        if name in content:
            decode(kind, content[name], "metadata", name)
    return Metadata(content)


_METADATA: dict[str, Any] = {
    **dict.fromkeys(("model", "family", "weights_sha256", "tokenizer_sha256", "word_pooling", "pooling"), str),
    **dict.fromkeys(("compute_dtype", "device_kind", "attention", "on_overlong"), str),
    **dict.fromkeys(("n_layers", "hidden_size", "max_length", "stride"), int),
    **dict.fromkeys(("include_special_tokens", "document_context", "is_split_into_words"), bool),
    "revision": str | None,
    "layers": tuple[int, ...],
    "combine": tuple[str, ...],
    "store_dtype": StoreDtype,
    "vector_encoding": VectorEncoding,
    "versions": Mapping[str, str],
    "prompts": Mapping[str, str],
    "imported": tuple[Mapping[str, str], ...],
    **dict.fromkeys(("config_sha256", "prompt", "sentence_sha256", "sentence_model", "initialiser"), str),
    "random_weights": int,
}


def part_to_json(part: PartInfo) -> dict[str, Any]:
    """Return a part's entry as plain JSON values; without `runs` if it has none, as in older stores."""
    return {name: value for name, value in asdict(part).items() if value is not None}


def receipt_to_json(receipt: Receipt) -> dict[str, Any]:
    """Return a receipt as plain JSON values; `decode` of them is equal to it."""
    return {**asdict(receipt), "parts": [part_to_json(part) for part in receipt.parts]}
