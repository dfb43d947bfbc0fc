"""Seconds of the parts of an exact search of passages in memory.

What `ExactSearch.top_k` does, part by part, and below it pieces of the program
that searches one block.
"""

from collections.abc import Callable
import statistics
import time
from typing import Any

import harness
import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from dualenc_jax.retrieval.search import exact_search, ranking, search_programs

_TURNS = 5
# After so many seconds no further part is begun.
_SECONDS = 45
_TOP = jax.jit(lax.top_k, static_argnums=1)


def measure(
    search: Any, queries: np.ndarray, k: int
) -> dict[str, harness.Figures]:
  """Figures of the parts by name.

  first_seconds are of a first call, with compilation if this process or the
  compilation cache does not have the program; seconds the median of those
  that follow. Pieces that come after 45 s are left out.
  """
  end = time.monotonic() + _SECONDS
  found: dict[str, harness.Figures] = {}

  def part(name: str, run: Callable[[], Any]) -> Any:
    result: list[Any] = []

    def once():
      result[:] = [jax.block_until_ready(run())]

    first = harness.seconds(once)
    turns = [harness.turn(once) for _ in range(_TURNS)]
    found[name] = {'first_seconds': first} | {
        key: statistics.median(t[key] for t in turns)
        for key in ('seconds', 'core_seconds')
    }
    return result[0]

  _host_view(search, queries, k, part)
  _device_view(search, queries, k, part, end)
  return found


def _host_view(search: Any, queries: np.ndarray, k: int, part: Any) -> None:
  """The search as a host sees it; the three parts of it follow."""
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

  def product(block):
    return lax.dot_general(
        block.astype(jnp.float32), given, (((1,), (1,)), ((), ())),
        precision=lax.Precision.HIGHEST,
    )

  program = jax.jit(product)
  scores = part('a block: product', lambda: program(block))
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
def _maxima(scores: jax.Array) -> jax.Array:
  return search_programs.group_maxima(scores, axis=0)
