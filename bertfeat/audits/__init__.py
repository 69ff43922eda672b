"""Audits of stores by their features: what is wrong with labels, splits and texts."""
