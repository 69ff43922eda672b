"""Figures of layers: one entry for each, with its title and the sentence that explains it."""

from __future__ import annotations

from typing import NamedTuple


class LayerFigure(NamedTuple):
    """A figure of the attribute `name` of `LayerRow` or `LayerComparison`, and what it means, with its source."""

    name: str
    title: str
    meaning: str


# Against the layers.
LINES = (
    LayerFigure(
        "anisotropy",
        "Anisotropy",
        "The mean cosine of two random rows (Ethayarajh 2019): near 0, vectors point in all directions; near 1, all "
        "point the same way, and the cosine of a pair says little before this value is subtracted.",
    ),
    LayerFigure(
        "anisotropy_centred",
        "Anisotropy, centred",
        "The same after the mean of all rows is subtracted: what stays above 0 is more than one common direction.",
    ),
    LayerFigure(
        "top3_anisotropy",
        "Anisotropy from three dimensions",
        "How much of the anisotropy comes from the three dimensions that add most to it (Timkey & van Schijndel 2021).",
    ),
    LayerFigure(
        "self_similarity",
        "Self-similarity of words",
        "The mean cosine of two occurrences of one word (Ethayarajh 2019): 1 means that context changes nothing; "
        "compare it with the anisotropy of the same layer.",
    ),
    LayerFigure(
        "within_sentence",
        "Similarity within a document",
        "The mean cosine of the rows of a document with their mean (Ethayarajh 2019): the higher it is above that of "
        "other layers and their anisotropy, the more the words of a text grow alike.",
    ),
    LayerFigure(
        "norm_mean",
        "Mean norm",
        "The mean length of the vectors: where layers differ much, the longest decides their sum or concatenation.",
    ),
    LayerFigure("norm_sd", "Deviation of the norm", "The standard deviation of the lengths of the vectors."),
    LayerFigure(
        "top3_share",
        "Share of the three largest dimensions",
        "The part of the squared length that three dimensions hold: a large share means that they alone decide "
        "distances.",
    ),
    LayerFigure(
        "effective_rank",
        "Effective rank",
        "How many directions the variance fills, as if it were spread evenly: the exponential of the entropy of the "
        "covariance's eigenvalues (Roy & Vetterli 2007).",
    ),
    LayerFigure(
        "intrinsic_dimension",
        "Intrinsic dimension",
        "The dimension of the surface that rows lie on, curved or not, from the distances to the two nearest "
        "neighbours (Facco et al. 2017).",
    ),
    LayerFigure(
        "cka_other",
        "CKA with the same layer of the other store",
        "1 means the same geometry up to rotation and scale, 0 no linear relation (Kornblith et al. 2019).",
    ),
    LayerFigure(
        "rsa_other",
        "RSA with the same layer of the other store",
        "The rank correlation (Spearman) of the cosines of all pairs of sampled rows, in the one and in the other "
        "store (Kriegeskorte et al. 2008).",
    ),
)
# Of all pairs of layers.
MATRICES = (
    LayerFigure(
        "cka",
        "CKA of all pairs of layers",
        "Linear CKA (Kornblith et al. 2019): 1 means that two layers are the same up to rotation and scale. It is too "
        "high where rows are few: without any relation it is about the number of dimensions over the number of rows.",
    ),
    LayerFigure(
        "cka_debiased",
        "CKA of all pairs of layers, debiased",
        "The same from unbiased estimates (Song et al. 2012; Nguyen et al. 2021): about 0 where two layers have no "
        "linear relation, also with few rows.",
    ),
    LayerFigure(
        "neighbour_overlap",
        "Common nearest neighbours of all pairs of layers",
        "The share of the nearest neighbours of a sampled row, by cosine, that are its neighbours in both layers (Huh "
        "et al. 2024).",
    ),
)
