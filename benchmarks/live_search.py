"""JPQ's search at every step, beside a faiss index that is made at every step.

  python live_search.py --passages=35000 --queries=32

The centroids change at every step, the codes do not. Ours searches by the
centroids that there are. The other side does what the authors' code does: takes
the centroids from the device, makes an index of them and the codes, searches,
and brings rows and codes of the hits back. Both sides in turns; random codes.
"""

import argparse
import json
import time

import faiss
import jax
import jax.numpy as jnp
import numpy as np

from dualenc_jax.commands import runtime
from dualenc_jax.losses import code_search
from dualenc_jax.losses.code_search import Codes


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  add = parser.add_argument
  add('--passages', type=int, default=35_000)
  add('--queries', type=int, default=32)
  add('--dim', type=int, default=768)
  add('--parts', type=int, default=96)
  add('--depth', type=int, default=200)
  add('--steps', type=int, default=10)
  add('--threads', type=int, default=2)
  args = parser.parse_args()
  runtime.keep_freed_memory()
  faiss.omp_set_num_threads(args.threads)
  rng = np.random.default_rng(0)
  codes = rng.integers(0, 256, (args.passages, args.parts), np.uint8)
  width = args.dim // args.parts
  books = rng.normal(size=(args.parts, 256, width)).astype(np.float32)
  query = rng.normal(size=(args.queries, args.dim)).astype(np.float32)
  placed = Codes(jnp.asarray(codes), jnp.ones(len(codes), bool))
  targets = jnp.zeros((args.queries, 1), jnp.int32)
  search = jax.jit(
      lambda q, score: code_search.search(
          placed, q, score, targets, args.depth
      )
  )

  def ours(score, query):
    return np.asarray(jax.block_until_ready(search(query, score)).rows)

  def theirs(score, query):
    index = faiss.IndexPQ(args.dim, args.parts, 8, faiss.METRIC_INNER_PRODUCT)
    faiss.copy_array_to_vector(
        np.asarray(score).ravel(), index.pq.centroids
    )
    index.is_trained = True
    index.add_sa_codes(codes)
    _, rows = index.search(np.asarray(query), args.depth)
    jax.block_until_ready(jnp.asarray(codes[rows]))
    return rows

  times, hits = {'ours': [], 'theirs': []}, {}
  for step in range(args.steps + 1):
    score = jnp.asarray(books * (1 + step / 100))
    for name, side in (('ours', ours), ('theirs', theirs)):
      start = time.perf_counter()
      hits[name] = side(score, jnp.asarray(query))
      times[name].append(time.perf_counter() - start)
  row = {
      f'{name} ms': round(1000 * float(np.median(own[1:])), 1)
      for name, own in times.items()
  }
  both = zip(hits['ours'].tolist(), hits['theirs'].tolist())
  same = [len({*a} & {*b}) / args.depth for a, b in both]
  print(json.dumps({**row, 'same hits': round(float(np.mean(same)), 4)}))


if __name__ == '__main__':
  main()
