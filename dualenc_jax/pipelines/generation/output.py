"""The files of `dualenc generate`: GPL's and BEIR's formats."""

from collections.abc import Iterator, Mapping, Sequence
import pathlib
from typing import Any

import numpy as np

from dualenc_jax.data.readers import rows
from dualenc_jax.data.readers.qrels import cell
from dualenc_jax.pipelines.generation.corpus import Passage
from dualenc_jax.pipelines.generation.generator import Query
from dualenc_jax.utils import files

CORPUS, FACTS = 'corpus.jsonl', 'generated.json'
# BEIR_PREFIX is 'qgen'.
QUERIES, QRELS = 'qgen-queries.jsonl', 'qgen-qrels/train.tsv'


def names(with_corpus: bool) -> list[str]:
  """Names of the files to train on."""
  return [QUERIES, QRELS, *[CORPUS] * with_corpus]


def write(
    folder: pathlib.Path,
    passages: Sequence[Passage],
    queries: Sequence[Query],
    counts: Mapping[str, int],
    facts: Mapping[str, Any],
    with_corpus: bool = True,
) -> None:
  """Writes a folder that `tasks/beir.gin` reads, with BEIR_PREFIX.

  Args:
    folder: an existing one.
    passages: all that have generated queries.
    queries: the kept queries, in the order of their passages.
    counts: queries left out, by cause.
    facts: values that the files depend on.
    with_corpus: False where the folder's corpus is the one that was read.
  """
  if with_corpus:
    files.write_json_lines(folder / CORPUS, map(_row, passages))
  numbered = [(f'genQ{i}', query) for i, query in enumerate(queries, 1)]
  rows_of_queries = (
      {
          '_id': name,
          'text': query.text,
          'metadata': {'log_probability': query.log_probability},
      }
      for name, query in numbered
  )
  files.write_json_lines(folder / QUERIES, rows_of_queries)
  qrels = ''.join(
      f'{name}\t{cell(passages[query.passage].id)}\t1\n'
      for name, query in numbered
  )
  path = folder / QRELS
  files.make_folder(path.parent, 'another --output_dir')
  files.write(path, 'query-id\tcorpus-id\tscore\n' + qrels)
  files.write_json(folder / FACTS, {**facts, 'counts': dict(counts)})


def count_table(
    passages: Sequence[Passage],
    queries: Sequence[Query],
    counts: Mapping[str, int],
) -> Iterator[str]:
  """Lines of a table of counts and means."""
  yield '| | |'
  yield '|---|---|'
  with_some = {query.passage for query in queries}
  for what, count in {
      'passages': len(passages),
      'passages with a query': len(with_some),
      'queries': len(queries),
      **{f'left out: {cause}': count for cause, count in counts.items()},
  }.items():
    yield f'| {what} | {count:,} |'
  chances = [query.log_probability for query in queries]
  cut = np.mean([not query.ended for query in queries])
  yield f'| queries that were cut | {cut:.1%} |'
  yield f'| log-probability a token, median | {np.median(chances):.2f} |'


def _row(passage: Passage) -> dict[str, str]:
  """BEIR's row; its title apart where reading it joins the same text."""
  title, text = passage.title, passage.text.removeprefix(passage.title)
  if rows.titled(title, text.strip()) != passage.text:
    title, text = '', passage.text
  return {'_id': passage.id, 'title': title, 'text': text.strip()}
