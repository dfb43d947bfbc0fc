"""Search through codes beside faiss: milliseconds a query, memory, same hits.

  python compressed_search.py --passages=1000000 --queries=1000 --dim=768

Both sides search the same codes in one process, in turns: PQ by tables, int8
per dimension, and bits by Hamming distance (the first step of two, and both).
Codes are random, as their values are nothing to the time. Memory is what a
search adds at its peak, in a process of its own, to that of the codes.
"""

import argparse
import json
import multiprocessing
import resource
import time

import jax
import numpy as np

from dualenc_jax.commands import runtime
from dualenc_jax.compression import Codec, Coded
from dualenc_jax.compression.product import Product
from dualenc_jax.compression.quantisers import Int8, Signs
from dualenc_jax.search.two_steps import search_of


class Ids:
  """The rows' numbers as strings."""

  def __init__(self, count):
    self._count = count

  def __len__(self):
    return self._count

  def __getitem__(self, row):
    return str(row)


def coded(kind, args):
  rng = np.random.default_rng(0)
  dim, size = args.dim, args.passages
  match kind:
    case 'pq':
      books = rng.normal(size=(args.parts, 256, dim // args.parts))
      books = (books / np.sqrt(dim)).astype(np.float32)
      quantiser = Product(books, books)
    case 'int8':
      quantiser = Int8.of_ranges(
          np.full(dim, -0.2, np.float32), np.full(dim, 0.2, np.float32)
      )
    case _:
      quantiser = Signs(dim)
  rescored = args.rescored if kind == 'two steps' else None
  codec = Codec(kind, dim, (), quantiser, rescored)
  codes = rng.integers(0, 256, (size, quantiser.width), np.uint8)
  store = Coded(codec, codes)
  return store.two_steps() if kind == 'hamming' else store


def ours(kind, args):
  store = coded(kind, args)
  search = search_of(store, Ids(len(store)))
  return lambda queries: search.top_k(queries, args.k).indices


def theirs(kind, args):
  import faiss

  faiss.omp_set_num_threads(args.threads)
  store = coded(kind, args)
  dim, quantiser = args.dim, store.codec.quantiser
  if kind == 'pq':
    index = faiss.IndexPQ(
        dim, args.parts, 8, faiss.METRIC_INNER_PRODUCT
    )
    faiss.copy_array_to_vector(quantiser.score.ravel(), index.pq.centroids)
    index.is_trained = True
    index.add_sa_codes(store.codes)
  elif kind == 'int8':
    index = faiss.IndexScalarQuantizer(
        dim, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
    )
    trained = np.concatenate([quantiser.low, 255 * quantiser.step])
    faiss.copy_array_to_vector(trained, index.sq.trained)
    index.is_trained = True
    index.add_sa_codes(store.codes)
  else:
    index = faiss.IndexBinaryFlat(dim)
    index.add(store.codes)
  count = args.rescored if kind == 'two steps' else args.k

  def search(queries):
    if kind in ('pq', 'int8'):
      return index.search(queries, count)[1]
    _, rows = index.search(np.packbits(queries >= 0, axis=1), count)
    if kind == 'hamming':
      return rows
    # As BPR's own code does it.
    best = np.empty((len(queries), args.k), np.int64)
    for i, own in enumerate(rows):
      scores = store[own] @ queries[i]
      best[i] = own[np.argsort(-scores)[: args.k]]
    return best

  return search


def queries_of(args):
  rng = np.random.default_rng(1)
  found = rng.normal(size=(args.queries, args.dim)).astype(np.float32)
  return found / np.linalg.norm(found, axis=1, keepdims=True)


def peak(kind, side, args, out):
  runtime.keep_freed_memory()
  queries = queries_of(args)
  search = side(kind, args)
  search(queries[:8])
  before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  search(queries)
  after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  out.put(((after - before) / 1024, after / 1024))


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  add = parser.add_argument
  add('--passages', type=int, default=1_000_000)
  add('--queries', type=int, default=1000)
  add('--dim', type=int, default=768)
  add('--parts', type=int, default=96)
  add('--k', type=int, default=100)
  add('--rescored', type=int, default=1000)
  add('--threads', type=int, default=2)
  add('--rounds', type=int, default=2)
  add('--kinds', default='pq,int8,hamming,two steps')
  add('--memory', action='store_true')
  args = parser.parse_args()
  print(jax.devices()[0].device_kind, jax.__version__, flush=True)
  queries = queries_of(args)
  for kind in args.kinds.split(','):
    row = {'kind': kind}
    if args.memory:
      context = multiprocessing.get_context('spawn')
      for side in (ours, theirs):
        out = context.Queue()
        process = context.Process(target=peak, args=(kind, side, args, out))
        process.start()
        row[f'{side.__name__} MiB more, all'] = [round(x) for x in out.get()]
        process.join()
      print(json.dumps(row), flush=True)
      continue
    sides = {side.__name__: side(kind, args) for side in (ours, theirs)}
    times, hits = {name: [] for name in sides}, {}
    # Ours compiles for the number of queries.
    sides['ours'](queries)
    sides['theirs'](queries[:8])
    for _ in range(args.rounds):
      for name, search in sides.items():
        start = time.perf_counter()
        hits[name] = search(queries)
        times[name].append(time.perf_counter() - start)
    for name, own in times.items():
      row[f'{name} ms'] = round(1000 * min(own) / args.queries, 3)
    both = zip(*(rows.tolist() for rows in hits.values()))
    same = [len({*a} & {*b}) for a, b in both]
    row['same hits'] = round(float(np.mean(same)) / args.k, 4)
    print(json.dumps(row), flush=True)


if __name__ == '__main__':
  main()
