"""From texts to hits: encoding, indexes on disk, codecs and search.

  encoding     texts through towers and cross-encoders; towers as programs.
  index        embeddings on disk, made by a model, read on demand.
  search       exact search on the mesh, BM25, hybrid search.
  compression  codecs: embeddings in fewer bytes.

`dualenc_jax.Retriever` is all of it in one class. Models are in `models`,
metrics of rankings in `evaluation`.
"""
