"""Read a store with DuckDB: SQL over the parts, vectors included."""

import sys

import duckdb

import bertfeat

folder = sys.argv[1] if len(sys.argv) > 1 else "demo-features"
bertfeat.extract("examples/data/peps.txt", folder)

# Vectors are float16 lists; as FLOAT[384] they take DuckDB's distance functions.
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
