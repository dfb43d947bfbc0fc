"""Search through codes beside faiss: milliseconds a query, and the same hits.

  python compressed_search.py --passages=1000000 --queries=1000 --dim=768

Both sides search the same codes in one process, in turns: PQ by tables, int8
per dimension, and bits by Hamming distance (the first step of two, and both).
Codes are random, as their values are nothing to the time.
"""

import argparse
from collections.abc import Callable
import json

import faiss
import harness
import numpy as np
import ours  # noqa: F401  Which sets JAX up.
from search_sides import Ids

from dualenc_jax.retrieval.compression import Codec, Coded
from dualenc_jax.retrieval.compression.product import Product
from dualenc_jax.retrieval.compression.quantisers import Int8, Signs
from dualenc_jax.retrieval.search.exact_search import make_search

KINDS = 'pq', 'int8', 'hamming', 'two steps'


def main() -> None:
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  add = parser.add_argument
  add('--passages', type=int, default=1_000_000)
  add('--queries', type=int, default=1000)
  add('--dim', type=int, default=768)
  add('--parts', type=int, default=96)
  add('--k', type=int, default=100)
  add('--rescored', type=int, default=1000)
  add('--threads', type=int, default=2)
  add('--rounds', type=int, default=2)
  add('--kinds', nargs='+', choices=KINDS, default=KINDS)
  args = parser.parse_args()
  faiss.omp_set_num_threads(args.threads)
  queries = np.random.default_rng(1).normal(size=(args.queries, args.dim))
  queries /= np.linalg.norm(queries, axis=1, keepdims=True)
  queries = queries.astype(np.float32)
  for kind in args.kinds:
    figures = compare(kind, args, queries)
    print(json.dumps({'kind': kind, **figures}), flush=True)


def compare(
    kind: str, args: argparse.Namespace, queries: np.ndarray
) -> harness.Figures:
  """The best of the rounds of both sides, and the share of same hits."""
  store = coded(kind, args)
  search = make_search(store, Ids(len(store)))
  sides = {
      'ours': lambda: search.top_k(queries, args.k).indices,
      'faiss': by_faiss(kind, store, args, queries),
  }
  sides['ours']()  # Compiles for the number of queries.
  hits, best = {}, dict.fromkeys(sides, float('inf'))
  for _ in range(args.rounds):
    for name, run in sides.items():
      seconds = harness.seconds(lambda: hits.update({name: run()}))
      best[name] = min(best[name], seconds)
  both = zip(*(rows.tolist() for rows in hits.values()))
  same = np.mean([len({*a} & {*b}) for a, b in both])
  milliseconds = {
      f'{name} ms': round(1000 * seconds / args.queries, 3)
      for name, seconds in best.items()
  }
  return milliseconds | {'same hits': round(float(same) / args.k, 4)}


def coded(kind: str, args: argparse.Namespace) -> Coded:
  """Random codes of a kind."""
  rng, dim = np.random.default_rng(0), args.dim
  if kind == 'pq':
    books = rng.normal(size=(args.parts, 256, dim // args.parts))
    books = (books / np.sqrt(dim)).astype(np.float32)
    quantiser = Product(books, books)
  elif kind == 'int8':
    edge = np.full(dim, 0.2, np.float32)
    quantiser = Int8.from_ranges(-edge, edge)
  else:
    quantiser = Signs(dim)
  rescored = args.rescored if kind == 'two steps' else None
  codec = Codec(kind, dim, (), quantiser, rescored)
  codes = rng.integers(0, 256, (args.passages, quantiser.width), np.uint8)
  store = Coded(codec, codes)
  return store.first_step() if kind == 'hamming' else store


def by_faiss(
    kind: str, store: Coded, args: argparse.Namespace, queries: np.ndarray
) -> Callable[[], np.ndarray]:
  """What searches the same codes by faiss."""
  quantiser, product = store.codec.quantiser, faiss.METRIC_INNER_PRODUCT
  if kind in ('pq', 'int8'):
    if kind == 'pq':
      index = faiss.IndexPQ(args.dim, args.parts, 8, product)
      faiss.copy_array_to_vector(quantiser.score.ravel(), index.pq.centroids)
    else:
      eight = faiss.ScalarQuantizer.QT_8bit
      index = faiss.IndexScalarQuantizer(args.dim, eight, product)
      trained = np.concatenate([quantiser.low, 255 * quantiser.step])
      faiss.copy_array_to_vector(trained, index.sq.trained)
    index.is_trained = True
    index.add_sa_codes(store.codes)
    return lambda: index.search(queries, args.k)[1]
  index = faiss.IndexBinaryFlat(args.dim)
  index.add(store.codes)

  def nearest(count):
    return index.search(np.packbits(queries >= 0, axis=1), count)[1]

  def rescored():  # As BPR's own code does it.
    best = np.empty((len(queries), args.k), np.int64)
    for i, own in enumerate(nearest(args.rescored)):
      scores = store[own] @ queries[i]
      best[i] = own[np.argsort(-scores)[: args.k]]
    return best

  return rescored if kind == 'two steps' else lambda: nearest(args.k)


if __name__ == '__main__':
  main()
