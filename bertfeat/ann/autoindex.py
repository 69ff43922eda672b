"""Which index suits so many vectors, so much memory and such a recall.

How thoroughly it must be searched is measured (`tuning.py`); how it keeps vectors is decided here beforehand:

- Few vectors are compared one by one: `Flat` needs no training, answers exactly, and takes a few milliseconds.
- More vectors lie in inverted lists. SQ8 keeps them in a quarter of the bytes, can find 99 % of the ten closest of
  token vectors of MiniLM, and answers no slower. A higher recall takes SQfp16, or Flat; a smaller memory SQ6 or RaBitQ.
- A graph (HNSW) is not chosen, except to find lists among very many. Of 120,000 token vectors of MiniLM (384
  dimensions, 2 cores), HNSW32 took 1,800 bytes a vector and 22 s to fill, and answered 6,800 queries a second at recall
  0.98; IVF1024,SQ8 took 400 bytes and 2 s, and answered 16,000 at 0.965. A graph also goes on from further back when a
  build was broken off, and a filter makes it lose its way.
"""

from __future__ import annotations

from bertfeat.ann.budget import MemoryPlan, Shape, check_memory, ladder, list_prefix, plan_memory, size
from bertfeat.ann.buildsettings import AUTO, BuildSettings
from bertfeat.errors import UserError

# 40,000 vectors of 384 numbers: a comparison with all of them reads 64 MB.
_MAX_NUMBERS_COMPARED = 1 << 24
# What is found of the ten closest when all lists are searched, from the fewest bytes on.
_TYPICAL_RECALL = {"SQ8": 0.985, "SQfp16": 0.998, "Flat": 1.0}


def candidates(shape: Shape, settings: BuildSettings) -> list[MemoryPlan]:
    """Return the indexes to build, in turn, until one reaches the recall; all of them fit into the memory.

    Raises:
        UserError: The index that is asked for does not fit, or none does, or it does not suit the vectors.
    """
    if settings.index != AUTO:
        plan = plan_memory(settings.index, shape, settings)
        check_memory(plan)
        return [plan]
    dim = settings.transform.out_dim(shape.dim)
    lists = list_prefix(shape.n_vectors)
    texts = ["Flat"]
    if shape.n_vectors * dim > _MAX_NUMBERS_COMPARED and lists:
        texts = [f"{lists}{storage}" for storage, recall in _TYPICAL_RECALL.items() if recall >= settings.recall]
    fitting = _fitting(texts, shape, settings) or _smaller(shape, settings)
    if not fitting:
        least = min(
            (plan_memory(text, shape, settings) for text in ladder(shape.n_vectors, dim, settings.metric)),
            key=lambda plan: plan.peak_bytes,
        )
        raise UserError(
            f"max_memory {size(settings.max_memory_bytes)}: too little for any index of {shape.n_vectors} vectors of "
            f"{dim} dimensions; {least.info.text} takes {size(least.peak_bytes)}"
        )
    return fitting


def _fitting(texts: list[str], shape: Shape, settings: BuildSettings) -> list[MemoryPlan]:
    return [plan for text in texts if (plan := plan_memory(text, shape, settings)).fits]


def _smaller(shape: Shape, settings: BuildSettings) -> list[MemoryPlan]:
    """Return the index of lists that keeps vectors best of those that fit, and then those without lists.

    An id beside each vector and the centroids take memory too: without lists a better storage may fit, if a slow one.
    """
    dim = settings.transform.out_dim(shape.dim)
    texts = list(ladder(shape.n_vectors, dim, settings.metric))
    best = _fitting([text for text in texts if text.startswith("IVF")], shape, settings)[:1]
    whole = _fitting(["Flat", "SQfp16", "SQ8", "SQ6"], shape, settings)
    most = best[0].info.code_bytes if best else 0
    return best + [plan for plan in reversed(whole) if plan.info.code_bytes > most]
