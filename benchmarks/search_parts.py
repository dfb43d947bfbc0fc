"""Exact search of passages in memory, part by part; see benchmarks/README.md.

What `ExactSearch.top_k` does, and below it pieces of the program that searches
one block; then PyTorch, and faiss where it is installed, in the same process. A
line is printed after each, so that a run that is ended has those before.
"""

import argparse
from collections.abc import Callable
import importlib.util
import json
import statistics
import sys
import tempfile
import time
from typing import Any

import harness
import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import search_sides

from dualenc_jax.retrieval.search import exact_search, ranking, search_programs

_TURNS = 5
_PEERS = {'torch_resident': 'torch', 'faiss': 'faiss'}
_TOP = jax.jit(lax.top_k, static_argnums=1)


def main() -> None:
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  add = parser.add_argument
  add('--passages', type=int, default=1_000_000, help='N')
  add('--queries', type=int, default=1000, help='Q')
  add('--dim', type=int, default=768, help='D')
  add('--hits', type=int, nargs='+', default=[100, 1000], help='each k')
  add('--seconds', type=float, default=1e9, help='no piece begins after these')
  args = parser.parse_args()
  end = time.monotonic() + args.seconds
  args.dtype = 'float32'
  with tempfile.TemporaryDirectory() as args.folder:
    search_sides.write(args)
    result = compare(args, end)
  print(harness.table('hits | part | ms | core ms | first, s', [
      f'{k} | {name} | {1e3 * f["seconds"]:.2f} | {1e3 * f["core_seconds"]:.1f}'
      f' | {f["first_seconds"]:.2f}'
      for k, found in result.items()
      for name, f in found.items()
  ]))
  print(json.dumps({'flags': vars(args), 'hits': result}))


def compare(args: argparse.Namespace, end: float) -> dict[int, Any]:
  """Figures of all parts, then of the peers, by hits; see `_Parts`."""
  ours = _side(args, 'memory')
  found = {k: _Parts(f'{k} hits') for k in args.hits}
  for k, part in found.items():
    _host_view(ours.searcher, ours.queries, k, part)
  for name in _PEERS:
    if importlib.util.find_spec(_PEERS[name]):
      side = _side(args, name)
      for k, part in found.items():
        args.k = k
        part(name, side.search)
        theirs, same = side.search()[1], ours.searcher.top_k(ours.queries, k)
        pairs = zip(same.indices, theirs)
        equal = [set(a.tolist()) == set(b.tolist()) for a, b in pairs]
        part.figures[name]['same_sets'] = statistics.mean(equal)
  for k, part in found.items():
    _device_view(ours.searcher, ours.queries, k, part, end)
  return {k: part.figures for k, part in found.items()}


def _side(args: argparse.Namespace, name: str) -> search_sides.Searcher:
  args.side = name
  side = search_sides.make(args)
  side.open()
  return side


class _Parts:
  """Times parts.

  first_seconds are of a first call, with compilation if this process or the
  compilation cache does not have the program; the others medians of those that
  follow.
  """

  def __init__(self, what: str):
    self.figures: dict[str, harness.Figures] = {}
    self._what = what

  def __call__(self, name: str, run: Callable[[], Any]) -> Any:
    result: list[Any] = []

    def once():
      result[:] = [jax.block_until_ready(run())]

    first = harness.seconds(once)
    turns = [harness.turn(once) for _ in range(_TURNS)]
    found = {'first_seconds': first, **harness.medians(turns)}
    self.figures[name] = found
    line = f'{self._what}: {name}: {1e3 * found["seconds"]:.2f} ms, first'
    print(f'{line} {first:.2f} s', file=sys.stderr, flush=True)
    return result[0]


def _host_view(search: Any, queries: np.ndarray, k: int, part: Any) -> None:
  """The search as a host sees it, and the three parts of it."""
  passages = search._passages
  count = min(len(passages), k + k // 4 + 32)
  part('top_k', lambda: search.top_k(queries, k))
  values, rows, _, longest = part(
      'top_k: blocks, on the device, and their transfer',
      lambda: search._search(queries, count),
  )
  limits = values[:, k - 1] - 2 * longest * exact_search.error_bounds(queries)
  candidates = np.where(values >= limits[:, None], rows, -1)
  scores = part(
      'top_k: scores in float64, on the host',
      lambda: ranking.score_candidates(queries, passages, candidates),
  )
  part(
      'top_k: order',
      lambda: ranking.rank_candidates(scores, candidates, search._ids, k),
  )
  part(
      'host: candidates gathered, one core',
      lambda: [passages[row[row >= 0]][:1] for row in candidates],
  )


def _device_view(
    search: Any, queries: np.ndarray, k: int, part: Any, end: float
) -> None:
  """All blocks, then one, then pieces of its program."""
  run, blocks = search._programs, list(search._blocks)
  count = min(len(search._passages), k + k // 4 + 32)
  size = len(queries)
  given = part(
      'queries put', lambda: jax.device_put(queries, run.replicated)
  )
  state = part('state before', lambda: run.start(size, count).above)
  part('norms', lambda: [run.longest(block) for block, _, _ in blocks])

  def over(some):
    state = run.start(size, count)
    for block, first, valid in some:
      state = run.update(state, block, given, None, first, valid)
      if run.on_host:
        run.wait(state)
    return state

  part('all blocks', lambda: over(blocks))
  part('first block, with its state', lambda: over(blocks[:1]))
  if not run.on_host:
    state = over(blocks)
    part('merge and transfer', lambda: run.finish(state))
  block = blocks[0][0]

  scores = part('a block: product', lambda: _product(block, given))
  maxima = part('a block: maxima of groups', lambda: _maxima(scores)).T
  groups = min(count, maxima.shape[1])
  few = min(count // 8 + 16, groups)
  pieces = {
      'top_k of maxima, few groups': (maxima, few),
      'top_k of maxima, all groups': (maxima, groups),
      'top_k of members of few groups': (scores[: 32 * few].T, count),
      'top_k of two lists': (scores[: 2 * count].T, count),
      'top_k of all scores': (scores.T, count),
  }
  for name, (x, best) in pieces.items():
    if time.monotonic() > end:
      break
    best = min(best, x.shape[1])
    part(f'a block: {name}, {best} of {x.shape[1]}', lambda: _TOP(x, best))


@jax.jit
def _product(block: jax.Array, queries: jax.Array) -> jax.Array:
  return jnp.einsum('md,qd->mq', block, queries, precision='highest')


@jax.jit
def _maxima(scores: jax.Array) -> jax.Array:
  return search_programs.group_maxima(scores, axis=0)


if __name__ == '__main__':
  main()
