"""The comparison of codecs on a result: sizes, quality and time."""

from collections.abc import Mapping, Sequence
import dataclasses
import logging
import pathlib
import shutil
import time
from typing import Any

import numpy as np

from dualenc_jax.evaluation import evaluation
from dualenc_jax.evaluation.evaluation import Evaluation
from dualenc_jax.evaluation.metrics import DEPTH
from dualenc_jax.evaluation.results.result_writer import (
  values_by_query,
  write_result,
)
from dualenc_jax.evaluation.results.significance import paired
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.retrieval import compression
from dualenc_jax.retrieval.compression import Codec, Coded, Spec
from dualenc_jax.retrieval.search.exact_search import search_of
from dualenc_jax.utils import figure as figure_lib, table as table_lib
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.table import Cell, MISSING, Row, Table

FOLDER = 'codecs'
_PREFERRED = 'nDCG@10', 'MRR', 'P@1'
_DEEP = 'Recall@1000', 'Recall@100', 'top-100'
# Passages that are encoded together.
_BLOCK = 2**14
_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class _Measured:
  """A codec on a retrieval set.

  `bytes_once` are of the codec; p of the paired randomization test against the
  embeddings as they are, None for these; milliseconds a query's, of all at
  once; seconds of training and encoding.
  """

  name: str
  bytes_per_passage: float
  bytes_once: int
  metrics: Mapping[str, float]
  p: float | None
  milliseconds: float
  seconds: float


def check(specs: Sequence[Spec], dim: int, count: int) -> None:
  """Raises UserError for a codec of D, N that `evaluate` would fail with."""
  needed = min(DEPTH, count)
  for spec in specs:
    spec.check(dim, count)
    if spec.rescored is not None and spec.rescored < needed:
      raise UserError(
          f'The codec {spec.name} scores only {spec.rescored} hits per query'
          f' again, but metrics need {needed}. Use binary:{needed} or more.'
      )


def evaluate(
    specs: Sequence[Spec], first: Evaluation, queries: np.ndarray,
    passages: Any, ranked: RetrievalSet, folder: pathlib.Path,
    facts: Mapping[str, Any], k: int, depth: int,
) -> Table:
  """Evaluates codecs, and writes a result folder for each, and a table.

  Args:
    specs: of the codecs.
    first: of the embeddings as they are.
    queries: float32 [Q, D].
    passages: [N, D], in memory or on disk.
    ranked: what they are of.
    folder: of all of them; made anew.
    facts: what the numbers depend on.
    k: hits a query in the run files.
    depth: hits a query that metrics are of.
  """
  remove(folder)
  _, values = values_by_query(ranked, first)
  metric = next((m for m in _PREFERRED if m in values), next(iter(values)))
  size = passages.shape[1] * passages.dtype.itemsize
  whole = _Measured(
      compression.FLOATS[str(passages.dtype)], size, 0, first.metrics, None,
      _milliseconds(passages, queries, ranked, depth), 0.0,
  )
  found = [whole]
  # Documents of several passages, and queries that are passages, are ranked
  # deeper.
  plain = ranked.documents is None and ranked.self_hits is None
  for spec in specs:
    start = time.perf_counter()
    _LOG.info('Codec %s.', spec.name)
    codec = spec.fit(passages)
    coded = encoded(codec, passages)
    seconds = time.perf_counter() - start
    deep = min(depth, codec.rescored or depth)
    result = evaluation.rank(queries, coded, ranked, deep)
    _, own = values_by_query(ranked, result)
    p = paired(values[metric], own[metric]).p
    milliseconds = _milliseconds(coded, queries, ranked, deep, plain)
    size = coded.codes.nbytes / len(coded)
    found.append(_Measured(
        spec.name, size, codec.bytes_once, result.metrics, p, milliseconds,
        seconds,
    ))
    how = {'codec': spec.name, 'bytes_per_passage': codec.bytes_per_passage}
    output = folder / spec.name.replace(':', '-')
    write_result(output, ranked, result, k, {**facts, **how})
  table = _table(found, metric, ranked, facts)
  table_lib.write(folder, 'codecs', [table])
  figure_lib.write_csv(folder / 'codecs.csv', _columns(found))
  return table


def remove(folder: pathlib.Path) -> None:
  """Removes what `evaluate` wrote, if anything."""
  if (folder / 'codecs.csv').exists() or (folder / 'codecs.md').exists():
    shutil.rmtree(folder)


def encoded(codec: Codec, vectors: Any) -> Coded:
  """Vectors [N, D], an array or a store of rows, as codes in memory."""
  width = codec.quantiser.width
  codes = np.empty((len(vectors), width), codec.code_dtype)
  for start in range(0, len(vectors), _BLOCK):
    block = np.asarray(vectors[start : start + _BLOCK], np.float32)
    codes[start : start + len(block)] = codec.encode(block)
  return Coded(codec, codes)


def _milliseconds(
    passages: Any, queries: np.ndarray, ranked: RetrievalSet, depth: int,
    compiled: bool = False,
) -> float:
  """A query's, of all at once, without what is compiled if they are not yet."""
  search = search_of(passages, ranked.corpus.ids)
  times = []
  for _ in range(1 if compiled else 2):
    start = time.perf_counter()
    search.top_k(queries, min(depth, len(passages)))
    times.append(time.perf_counter() - start)
  return 1000 * min(times) / len(queries)


def _smaller(found: Sequence[_Measured]) -> list[float]:
  first = found[0].bytes_per_passage
  return [first / one.bytes_per_passage for one in found]


def _columns(found: Sequence[_Measured]) -> dict[str, list[Any]]:
  metrics = dict.fromkeys(name for one in found for name in one.metrics)
  return {
      'codec': [one.name for one in found],
      'bytes_per_passage': [one.bytes_per_passage for one in found],
      'bytes_once': [one.bytes_once for one in found],
      'compression': _smaller(found),
      **{m: [one.metrics.get(m, '') for one in found] for m in metrics},
      'p': ['' if one.p is None else one.p for one in found],
      'ms_a_query': [one.milliseconds for one in found],
      'seconds_to_make': [one.seconds for one in found],
  }


def _table(
    found: Sequence[_Measured], metric: str, ranked: RetrievalSet,
    facts: Mapping[str, Any],
) -> Table:
  metrics = [metric, *[m for m in _DEEP if m in found[0].metrics][:1]]
  columns = ['bytes', 'times smaller', 'MB', *metrics, 'p', 'ms', 's to make']
  passages = len(ranked.corpus)
  rows = []
  for one, smaller in zip(found, _smaller(found)):
    size = one.bytes_per_passage * passages + one.bytes_once
    values = [one.metrics.get(name) for name in metrics]
    cells = (
        Cell(f'{one.bytes_per_passage:g}'),
        Cell(f'{smaller:.3g}'),
        Cell(f'{size / 1e6:.3g}', exact=repr(size)),
        *map(_share, values),
        Cell(MISSING if one.p is None else f'{one.p:.4f}'),
        Cell(f'{one.milliseconds:.3g}'),
        Cell(f'{one.seconds:.1f}' if one.seconds else MISSING),
    )
    rows.append(Row((one.name,), cells))
  return Table(
      name='codecs',
      title=f'Codecs on {facts["label"]} {facts["split"]}, {passages:,}'
      ' passages',
      heads=('Codec',),
      columns=tuple(('', column) for column in columns),
      rows=tuple(rows),
      notes=(
          'Bytes are of a passage on disk; MB of all and of the codec. p: of'
          f' {metric} against {found[0].name}, paired randomization test. ms: a'
          f' query, all {len(ranked.query_ids):,} at once.',
      ),
  )


def _share(value: float | None) -> Cell:
  if value is None:
    return Cell(MISSING)
  return Cell(f'{100 * value:.2f}', exact=repr(value))
