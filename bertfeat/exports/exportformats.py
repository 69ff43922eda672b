"""Formats of an export by name: one class each."""

from __future__ import annotations

from bertfeat.exports.hdf5outputs import NeuroxHdf5, StructuralProbesHdf5
from bertfeat.exports.outputs import GoogleJson, Npy, Output, Projector, Word2vec

FORMATS: tuple[type[Output], ...] = (GoogleJson, NeuroxHdf5, StructuralProbesHdf5, Npy, Word2vec, Projector)
FORMAT_OF = {output.name: output for output in FORMATS}
