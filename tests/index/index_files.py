"""Indexes of random rows, written as `encode` writes them."""

import numpy as np

from dualenc_jax.retrieval.index import Header, IndexBuild, Passage

D, SHARD = 6, 4


def passages_from(start, count):
  return [
      Passage(f'id{i}', f'naïve_{i}', f'mod.py:{i}', 'line\n"two"\t' * (i % 4))
      for i in range(start, start + count)
  ]


def embeddings_for(count, seed=0):
  return np.random.default_rng(seed).normal(size=(count, D)).astype(np.float32)


def header(count=10, **fields):
  fields = {'dim': D, 'tower': 'passage', 'tokens': 256} | fields
  return Header(passages=count, **{'shard_size': SHARD} | fields)


def write_shards(build, shards, embeddings, passages):
  """Makes those of some shards that are missing; returns which."""
  made = [shard for shard in build.missing() if shard in shards]
  for shard in made:
    rows = build.header.shard_rows(shard)
    part = slice(rows.start, rows.stop)
    block = embeddings[part].astype(build.header.dtype)
    build.write(shard, block, passages[part])
  return made


def make(build, shards, seed=0):
  count = build.header.passages
  return write_shards(
      build, shards, embeddings_for(count, seed), passages_from(0, count)
  )


def write(folder, count=10, seed=0, replace=False, **fields):
  """A complete index of `count` rows."""
  build = IndexBuild(folder, header(count, **fields), replace)
  build.start()
  make(build, range(build.header.shards), seed)
  assert build.finish()
