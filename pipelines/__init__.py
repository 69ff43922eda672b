"""Recipes: one file each, a corpus in, one result out. `python -m bertfeat.pipelines` lists them."""
