"""The comparison of codecs on a result: sizes, quality and time."""

from collections.abc import Mapping, Sequence
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
from dualenc_jax.retrieval.search.exact_search import make_search
from dualenc_jax.utils import figure as figure_lib, table as table_lib
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.table import Cell, MISSING, Row, Table

FOLDER = 'codecs'
# The first that a result has is tested, and the first deep one shown with it.
_PREFERRED = 'nDCG@10', 'MRR', 'P@1'
_DEEP = 'Recall@1000', 'Recall@100', 'top-100'
# Passages that are encoded together.
_BLOCK = 2**14
_LOG = logging.getLogger(__name__)


def check(specs: Sequence[Spec], dim: int, count: int) -> None:
  """Raises UserError for a codec that D dims or N passages do not suit."""
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
    specs: the codecs.
    first: the result of the embeddings without a codec.
    queries: float32 [Q, D].
    passages: [N, D], in memory or on disk.
    ranked: the retrieval set.
    folder: the folder of all results, which is made anew.
    facts: the facts that the numbers depend on.
    k: hits a query in the run files.
    depth: hits a query that metrics are computed from.
  """
  remove(folder)
  _, values = values_by_query(ranked, first)
  metric = next((m for m in _PREFERRED if m in values), next(iter(values)))
  size = passages.shape[1] * passages.dtype.itemsize
  rows: list[dict[str, Any]] = [{
      'codec': compression.FLOATS[str(passages.dtype)],
      'bytes_per_passage': size,
      'compression': 1.0,
      **first.metrics,
      'p': '',
      'ms_a_query': _milliseconds(passages, queries, ranked, depth),
  }]
  for spec in specs:
    _LOG.info('Codec %s.', spec.name)
    codec = spec.fit(passages)
    coded = _encode(codec, passages)
    deep = min(depth, codec.rescored or depth)
    result = evaluation.rank(queries, coded, ranked, deep)
    _, own = values_by_query(ranked, result)
    bytes_per_passage = coded.codes.nbytes / len(coded)
    rows.append({
        'codec': spec.name,
        'bytes_per_passage': bytes_per_passage,
        'compression': size / bytes_per_passage,
        **{name: result.metrics.get(name, '') for name in first.metrics},
        'p': paired(values[metric], own[metric]).p,
        'ms_a_query': _milliseconds(coded, queries, ranked, deep),
    })
    how = {'codec': spec.name, 'bytes_per_passage': codec.bytes_per_passage}
    output = folder / spec.name.replace(':', '-')
    write_result(output, ranked, result, k, {**facts, **how})
  table = _make_table(rows, metric, ranked, facts)
  table_lib.write(folder, 'codecs', [table])
  columns = {name: [row[name] for row in rows] for name in rows[0]}
  figure_lib.write_csv(folder / 'codecs.csv', columns)
  return table


def remove(folder: pathlib.Path) -> None:
  """Removes the files of an earlier `evaluate`."""
  if (folder / 'codecs.csv').exists() or (folder / 'codecs.md').exists():
    shutil.rmtree(folder)


def _encode(codec: Codec, vectors: Any) -> Coded:
  """Vectors [N, D], an array or a store of rows, as codes in memory."""
  codes = np.empty((len(vectors), codec.quantiser.width), codec.code_dtype)
  for start in range(0, len(vectors), _BLOCK):
    block = np.asarray(vectors[start : start + _BLOCK], np.float32)
    codes[start : start + len(block)] = codec.encode(block)
  return Coded(codec, codes)


def _milliseconds(
    passages: Any, queries: np.ndarray, ranked: RetrievalSet, depth: int
) -> float:
  """Milliseconds a query, all at once, when the search is compiled."""
  search = make_search(passages, ranked.corpus.ids)
  times = []
  for _ in range(2):
    start = time.perf_counter()
    search.top_k(queries, min(depth, len(passages)))
    times.append(time.perf_counter() - start)
  return 1000 * min(times) / len(queries)


def _make_table(
    rows: Sequence[Mapping[str, Any]], metric: str, ranked: RetrievalSet,
    facts: Mapping[str, Any],
) -> Table:
  metrics = [metric, *[m for m in _DEEP if m in rows[0]][:1]]
  forms = {
      'bytes_per_passage': 'g', 'compression': '.3g',
      **dict.fromkeys(metrics, '.2%'), 'p': '.4f', 'ms_a_query': '.3g',
  }
  columns = ['bytes', 'times smaller', *metrics, 'p', 'ms']
  return Table(
      name='codecs',
      title=f'Codecs on {facts["label"]} {facts["split"]},'
      f' {len(ranked.corpus):,} passages',
      heads=('Codec',),
      columns=tuple(('', column) for column in columns),
      rows=tuple(
          Row((row['codec'],), tuple(
              Cell(
                  MISSING if row[n] == '' else format(row[n], form).rstrip('%'),
                  exact=repr(row[n]),
              )
              for n, form in forms.items()
          ))
          for row in rows
      ),
      notes=(
          'Bytes are of a passage on disk; metrics are in %. p: of'
          f' {metric} against {rows[0]["codec"]}, paired randomization test;'
          f' ms: a query, all {len(ranked.query_ids):,} at once.',
      ),
  )
