"""Triples of query, positive and negative, as triples.train.small.tsv."""

from collections.abc import Iterator, Mapping
import logging
import pathlib
from typing import Any

from dualenc_jax.data.dataset import example
from dualenc_jax.errors import UserError
from dualenc_jax.readers import bad_rows, qrels_counts, rows

_COLUMNS = ('query', 'positive', 'negative')


def read(
    path: pathlib.Path,
    published: Mapping[str, int],
    tolerance: float,
    advice: str,
    strict: bool = True,
) -> Iterator[dict[str, Any]]:
  """Yields an example a row, each with one hard negative.

  Args:
    path: lines of three texts, separated by tabs; plain or .gz.
    published: {'triples': count}, or nothing to compare.
    tolerance: as of `qrels_counts.compare`.
    advice: the same.
    strict: as of `rows.parsed`, and whether a negative that is its positive is
      an error; else it is left out and the log says how many.

  Raises:
    UserError: a bad row, another count than the published one, or a damaged
      file.
  """
  count = dropped = 0
  collected = bad_rows.collected()
  for number, (query, positive, negative) in rows.parsed(
      path, _parse, strict
  ):
    count += 1
    same = positive.strip() == negative.strip()
    if same and collected is not None:
      collected.add('the negative is the positive', f'{path}:{number}')
    elif same and strict:
      raise UserError(
          f'{path}:{number}: the negative is the positive. Mend the row, or'
          f' leave out such negatives with {rows.LENIENT}.'
      )
    dropped += same
    yield example(
        query=query,
        passage=positive,
        negatives=[] if same else [negative],
        location=f'{path}:{number}',
    )
  qrels_counts.compare(
      str(path), {'triples': count}, published, tolerance, advice
  )
  if dropped:
    logging.getLogger(__name__).warning(
        '%s: dropped %d negatives that are their positives.', path, dropped
    )


def _parse(line: bytes) -> list[str]:
  cells = rows.tsv_cells(line, _COLUMNS)
  for name, text in zip(_COLUMNS, cells):
    rows.check_text(name, text)
  return cells
