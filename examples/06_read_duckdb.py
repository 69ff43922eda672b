"""Lesson 6: read a store with DuckDB.

You learn to write SQL over the parts, and to compare vectors inside the query.

    python examples/06_read_duckdb.py
"""

import sys

import duckdb

import bertfeat

folder = sys.argv[1] if len(sys.argv) > 1 else "demo-features"
bertfeat.extract("examples/data/peps.txt", folder)

# Vectors are lists of float16; cast to FLOAT[384], they work with the distance functions of DuckDB.
query = f"""
    WITH tokens AS (
        SELECT doc_id, token, layer_06::FLOAT[384] AS vector
        FROM read_parquet('{folder}/token/*.parquet') WHERE NOT is_special
    ),
    probe AS (SELECT vector FROM tokens WHERE token = 'function' ORDER BY doc_id LIMIT 1)
    SELECT token, count(*) AS n, round(avg(array_cosine_similarity(tokens.vector, probe.vector)), 3) AS cosine
    FROM tokens, probe GROUP BY token HAVING n >= 5 ORDER BY cosine DESC, token LIMIT 6
"""
for token, n, cosine in duckdb.sql(query).fetchall():
    print(f"{token:<12} {n:>4} times, mean cosine {cosine}")
