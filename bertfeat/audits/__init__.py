"""Audits: what is wrong with the labels, the splits and the texts of stores, told by their features."""
