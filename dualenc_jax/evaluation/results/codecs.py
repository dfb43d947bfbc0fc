"""The evaluation of codecs on a model's embeddings."""

from collections.abc import Mapping, Sequence
import logging
import pathlib
from typing import Any

import numpy as np

from dualenc_jax.evaluation import evaluation, metrics
from dualenc_jax.evaluation.results import tables
from dualenc_jax.evaluation.results.result_files import (
  CODECS,
  remove_codecs,
  write_result,
)
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.retrieval.compression import Codec, Coded, Spec
from dualenc_jax.utils import table as table_lib
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.table import Table

# Passages that are encoded together.
_BLOCK = 2**14
_LOG = logging.getLogger(__name__)


def check(
    specs: Sequence[Spec], dim: int, count: int, names: Sequence[str] = ()
) -> None:
  """Raises UserError for a codec that D dims or N passages do not suit.

  `names` are metrics beside the standard ones.
  """
  cuts = (metrics.parse(name).cut or 0 for name in names)
  needed = min(max(metrics.DEPTH, 0, *cuts), count)
  for spec in specs:
    spec.check(dim, count)
    if spec.rescored is not None and spec.rescored < needed:
      raise UserError(
          f'The codec {spec.name} scores only {spec.rescored} hits per query'
          f' again, but metrics need {needed}. Use binary:{needed} or more.'
      )


def facts_of(codec: Codec) -> dict[str, int]:
  """Sizes of a codec that results have: of a passage, and of the first step."""
  facts = {'bytes_per_passage': codec.bytes_per_passage}
  if codec.rescored is not None:
    facts['candidates'] = codec.rescored
  return facts


def evaluate(
    specs: Sequence[Spec], queries: np.ndarray, passages: Any,
    ranked: RetrievalSet, folder: pathlib.Path, facts: Mapping[str, Any],
    k: int, depth: int,
) -> Table:
  """Evaluates codecs, and writes a result folder for each, and a table.

  Queries are float32 [Q, D], passages [N, D], in memory or on disk. `folder`
  has the result of the embeddings without a codec, by the same facts; run files
  have k hits a query, and metrics are computed from `depth` of them.
  """
  remove_codecs(folder)
  size = passages.shape[1] * passages.dtype.itemsize
  for spec in specs:
    _LOG.info('Codec %s.', spec.name)
    codec = spec.fit(passages)
    coded = _encode(codec, passages)
    deep = min(depth, codec.rescored or depth)
    how = {
        'codec': spec.name,
        **facts_of(codec),
        'times_smaller': size / codec.bytes_per_passage,
    }
    write_result(
        folder / CODECS / spec.name.replace(':', '-'), ranked,
        evaluation.rank(queries, coded, ranked, deep), k, {**facts, **how},
    )
  table = tables.codec_table(folder)
  assert table is not None
  table_lib.write(folder / CODECS, CODECS, [table])
  return table


def _encode(codec: Codec, vectors: Any) -> Coded:
  """Vectors [N, D], an array or a store of rows, as codes in memory."""
  codes = np.empty((len(vectors), codec.quantiser.width), codec.code_dtype)
  for start in range(0, len(vectors), _BLOCK):
    block = np.asarray(vectors[start : start + _BLOCK], np.float32)
    codes[start : start + len(block)] = codec.encode(block)
  return Coded(codec, codes)
