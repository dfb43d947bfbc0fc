"""The evaluation of codecs on a model's embeddings."""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import importlib.util
import logging
import pathlib
import re
import statistics
import time
from typing import Any

import numpy as np

from dualenc_jax.evaluation import evaluation, metrics
from dualenc_jax.evaluation.results import tables
from dualenc_jax.evaluation.results.result_files import (
  CODECS,
  remove_codecs,
  TIME,
  write_result,
)
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.parallel.hosts import Host
from dualenc_jax.retrieval import compression
from dualenc_jax.retrieval.compression import Codec, Coded, Spec
from dualenc_jax.retrieval.search import shared
from dualenc_jax.retrieval.search.exact_search import make_search
from dualenc_jax.retrieval.search.hnsw import GraphSearch
from dualenc_jax.utils import table as table_lib
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.table import Table

# Passages that are encoded together.
_BLOCK = 2**14
# Queries whose search is timed, and those before.
_TIMED, _WARM_UP = 100, 5
_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Graph:
  """A row of the table that is no codec: the embeddings in faiss's HNSW.

  It has what is asked of a `Spec` before it is fitted. `links` is M.
  """

  name: str
  links: int
  parts = ()
  rescored = None

  def check(self, dim: int, count: int) -> None:
    """Any dim and number of passages suit it."""


def parse(name: str) -> Spec | Graph:
  """Parses the name of a codec, or 'hnsw:32', of a graph with 32 links.

  Raises:
    UserError: an unknown name, or a graph where faiss is not installed.
  """
  if name.partition(':')[0] != 'hnsw':
    return compression.spec(name)
  found = re.fullmatch('hnsw:([1-9][0-9]{0,3})', name)
  if not found or int(found[1]) < 2:
    raise UserError(
        f'--codecs: {name!r}; expected hnsw:M with M links, 2 or more, such as'
        ' hnsw:32.'
    )
  if importlib.util.find_spec('faiss') is None:
    raise UserError(
        f"--codecs={name} needs faiss: pip install 'dualenc-jax[faiss]'."
    )
  return Graph(name, int(found[1]))


def check(
    specs: Sequence[Spec | Graph], dim: int, ranked: RetrievalSet
) -> None:
  """Raises UserError for a codec that D dims or the set do not suit."""
  count = len(ranked.corpus)
  cuts = (metrics.parse(name).cut for name in ranked.more_metrics)
  needed = min(max([metrics.DEPTH, *cuts]), count)
  for spec in specs:
    spec.check(dim, count)
    if spec.rescored is not None and spec.rescored < needed:
      raise UserError(
          f'The codec {spec.name} scores only {spec.rescored} hits per query'
          f' again, but metrics need {needed}. Use binary:{needed} or more.'
      )
    if isinstance(spec, Graph) and ranked.documents is not None:
      raise UserError(
          f'--codecs={spec.name} ranks passages, not documents. Leave it or'
          ' --max_passage out.'
      )


def facts_of(codec: Codec) -> dict[str, int]:
  """Sizes of a codec that results have: of a passage, and of the first step."""
  facts = {'bytes_per_passage': codec.bytes_per_passage}
  if codec.rescored is not None:
    facts['candidates'] = codec.rescored
  return facts


def evaluate(
    specs: Sequence[Spec | Graph], queries: np.ndarray, passages: Any,
    ranked: RetrievalSet, folder: pathlib.Path, facts: Mapping[str, Any],
    k: int, depth: int, is_timed: bool = False, host: Host = Host(),
) -> Table | None:
  """Evaluates codecs, and writes a result folder for each, and a table.

  Queries are float32 [Q, D], passages [N, D], in memory or on disk. `folder`
  has the result of the embeddings without a codec, by the same facts; run files
  have k hits a query, and metrics are computed from `depth` of them. Searches
  are timed by `milliseconds` if `is_timed`. `host` is one of those that share
  the passages, all of which search their part; the first trains the codecs and
  writes, and the others return None.
  """
  if not host.index:
    remove_codecs(folder)
  size = passages.shape[1] * passages.dtype.itemsize
  for spec in specs:
    _LOG.info('Codec %s.', spec.name)
    how: dict[str, Any] = {'codec': spec.name}
    search: Any
    if isinstance(spec, Graph):
      if host.index:
        continue
      search = GraphSearch(passages, ranked.corpus.ids, spec.links)
      how['bytes_per_passage'] = search.bytes_per_passage
    else:
      train = functools.partial(spec.fit, passages)
      codec = shared.from_first(host, train) if host.count > 1 else train()
      search = make_search(_encode(codec, passages), ranked.corpus.ids)
      how |= facts_of(codec)
    how['times_smaller'] = size / how['bytes_per_passage']
    deep = min(depth, spec.rescored or depth)
    if is_timed:
      how[TIME] = milliseconds(search, queries, deep)
    found = evaluation.rank_by(search, queries, ranked, deep)
    if host.index:
      continue
    name = spec.name.replace(':', '-')
    write_result(folder / CODECS / name, ranked, found, k, {**facts, **how})
  if host.index:
    return None
  table = tables.codec_table(folder)
  assert table is not None
  table_lib.write(folder / CODECS, CODECS, [table])
  return table


def milliseconds(search: Any, queries: np.ndarray, k: int) -> float:
  """The median time of a search of k hits, of 100 queries one at a time.

  Queries are float32 [Q, D]; the first are searched untimed before.
  """
  times = []
  for number in range(-_WARM_UP, _TIMED):
    row = number % len(queries)
    start = time.perf_counter()
    search.top_k(queries[row : row + 1], k)
    if number >= 0:
      times.append(time.perf_counter() - start)
  return 1e3 * statistics.median(times)


def _encode(codec: Codec, vectors: Any) -> Coded:
  """Vectors [N, D], an array or a store of rows, as codes in memory.

  If hosts share the store, these are the codes of this host's part.
  """
  part = getattr(vectors, 'own_part', None)
  first, own = part() if part else (0, vectors)
  if own is not vectors:
    own = shared.OwnRows(first, _encode(codec, own).codes, len(vectors))
    return Coded(codec, own)
  codes = np.empty((len(vectors), codec.quantiser.width), codec.code_dtype)
  for start in range(0, len(vectors), _BLOCK):
    block = np.asarray(vectors[start : start + _BLOCK], np.float32)
    codes[start : start + len(block)] = codec.encode(block)
  return Coded(codec, codes)
