"""Type and encoding of a store's vectors in Parquet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bertfeat.choices import StoreDtype, VectorEncoding
from bertfeat.records import Plan

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class VectorLayout:
    """The type and encoding of a store's vectors in Parquet."""

    dtype: StoreDtype
    encoding: VectorEncoding

    @classmethod
    def of(cls, plan: Plan) -> VectorLayout:
        """Read the layout from a plan's fields `store_dtype` and `vector_encoding`; ValueError without them."""
        fields: Mapping[str, Any] = {"store_dtype": None, "vector_encoding": None, **plan.fields}
        return cls(StoreDtype(fields["store_dtype"]), VectorEncoding(fields["vector_encoding"]))

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy type of one value."""
        return np.dtype(str(self.dtype))

    def arrow(self, dim: int) -> pa.DataType:
        """Return the Arrow type of a vector of `dim` values."""
        import pyarrow as pa

        if self.encoding is VectorEncoding.BINARY:
            return pa.binary(dim * self.dtype.width)
        return pa.list_(pa.field("element", getattr(pa, self.dtype)(), nullable=False), dim)
