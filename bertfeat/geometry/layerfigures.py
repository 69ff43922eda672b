"""Figures of layers: one entry for each, with its title and the sentence that explains it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerFigure:
    """A figure.

    Attributes:
        name: The attribute of `LayerRow` or `LayerComparison` that it shows.
        title: Its title.
        meaning: A sentence that explains it.
        source: Where the measure comes from.
    """

    name: str
    title: str
    meaning: str
    source: str = ""


# Against the layers.
LINES = (
    LayerFigure(
        "anisotropy",
        "Anisotropy",
        "The mean cosine of two random rows: near 0, vectors point in all directions; near 1, all point the same way, "
        "and cosines of a pair say little before this value is subtracted.",
        "Ethayarajh 2019",
    ),
    LayerFigure(
        "anisotropy_centred",
        "Anisotropy, centred",
        "The same after the mean of all rows is subtracted: what stays above 0 is more than one common direction.",
        "Ethayarajh 2019",
    ),
    LayerFigure(
        "self_similarity",
        "Self-similarity of words",
        "The mean cosine of two occurrences of one word: 1 means that context changes nothing; compare it with the "
        "anisotropy of the same layer.",
        "Ethayarajh 2019",
    ),
    LayerFigure(
        "within_sentence",
        "Similarity within a document",
        "The mean cosine of two rows of one document: above the anisotropy, neighbours in a text grow alike.",
        "after Ethayarajh 2019",
    ),
    LayerFigure(
        "norm_mean",
        "Mean norm",
        "The mean length of the vectors: where layers differ much, a mix or a concatenation follows the longest.",
    ),
    LayerFigure("norm_sd", "Deviation of the norm", "The standard deviation of the lengths of the vectors."),
    LayerFigure(
        "top3_share",
        "Share of the three largest dimensions",
        "How much of the squared length three dimensions hold: a large share means that they alone decide cosines.",
        "after Timkey & van Schijndel 2021",
    ),
    LayerFigure(
        "effective_rank",
        "Effective rank",
        "How many directions the variance fills, as if it were spread evenly: the exponential of the entropy of the "
        "covariance's eigenvalues.",
        "Roy & Vetterli 2007",
    ),
    LayerFigure(
        "intrinsic_dimension",
        "Intrinsic dimension",
        "The dimension of the surface that rows lie on, curved or not, from the distances to the two nearest "
        "neighbours.",
        "Facco et al. 2017",
    ),
    LayerFigure(
        "cka_other",
        "CKA with the same layer of the other store",
        "1 means the same geometry up to rotation and scale, 0 no linear relation.",
        "Kornblith et al. 2019",
    ),
    LayerFigure(
        "rsa_other",
        "RSA with the same layer of the other store",
        "The rank correlation of the cosines of all pairs of sampled rows, in the one and in the other.",
        "Kriegeskorte et al. 2008",
    ),
)
# Of all pairs of layers.
MATRICES = (
    LayerFigure(
        "cka",
        "CKA of all pairs of layers",
        "1 means that two layers are the same up to rotation and scale, 0 that they have no linear relation; with few "
        "more rows than dimensions, it is too high.",
        "Kornblith et al. 2019",
    ),
    LayerFigure(
        "neighbour_overlap",
        "Common nearest neighbours of all pairs of layers",
        "The share of the nearest neighbours of a sampled row, by cosine, that are its neighbours in both layers.",
        "Huh et al. 2024",
    ),
)
