"""Exact search on an absent slice: one block of the corpus."""

from typing import NamedTuple

from dualenc_jax.forecast import program
from dualenc_jax.forecast.program import Forecast
from dualenc_jax.forecast.slices import Slice
from dualenc_jax.retrieval.search import exact_search, search_programs
from dualenc_jax.retrieval.search.search_programs import BLOCK_ROWS

LESS = 'Use embeddings of fewer dimensions, or fewer hits.'


class Searched(NamedTuple):
  """The search of a block.

  Attributes:
    queries: queries at once.
    rows: passages of a device in a block.
    k: hits of a query.
    flops: operations of the products of a block, on all devices.
    resident: passages that stay on the devices.
    forecast: program of a block.
  """

  queries: int
  rows: int
  k: int
  flops: float
  resident: int
  forecast: Forecast


def forecast(dim: int, k: int, on: Slice) -> Searched:
  """Compiles the search of a block of float32 embeddings of `dim`."""
  rows, kept = BLOCK_ROWS, exact_search.kept(k)
  queries = exact_search.query_rows(rows)
  found = program.forecast(
      search_programs.Programs(tuple(on.devices)).lower_update_best(
          rows, queries, dim, kept
      ),
      f'Searching {rows:,} embeddings of {dim} components',
      {
          'block of the corpus': 4 * rows * dim,
          'queries, hits': 4 * queries * (dim + 2 * kept),
      },
      LESS,
  )
  memory = on.generation.memory * len(on.devices)
  return Searched(
      queries,
      rows,
      k,
      2.0 * queries * rows * len(on.devices) * dim,
      int(exact_search.RESIDENT * memory / (4 * dim)),
      found,
  )
