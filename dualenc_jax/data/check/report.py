"""An inspection as Markdown that is as readable unrendered."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import itertools
import pathlib

from dualenc_jax.data.check import summary
from dualenc_jax.data.check.findings import Finding
from dualenc_jax.utils import table
from dualenc_jax.utils.table import Cell, Row, Table

_CODE = 'python_code'  # The task, and how its shipped vocabulary begins.
_WIDTH = 300  # Characters of a sample's text.
# Names of numbers, and how they are written.
_COUNTS = {
    'rows': '{.rows:,}',
    'refused by the reader': '{.num_refused:,}',
    'pairs': '{.pairs:,}',
    'distinct pairs': '{.distinct_pairs:,}',
    'judged, not relevant': '{.judged_irrelevant:,}',
    'queries without a passage': '{.lone_queries:,}',
    'passages without a query': '{.lone_passages:,}',
    'query = passage': '{.found[equal_texts].count:,}',
    'passage among its negatives': '{.found[positive_negatives].count:,}',
    'pairs without negatives': '{.without_negatives:,}',
    'negatives a pair, min / mean / max': (
        '{0.fewest_negatives:,} / {0.mean_negatives:.1f} / {0.most_negatives:,}'
    ),
}
_TEXTS = {
    'all': '{.count:,}',
    'distinct': '{.distinct:,}',
    'unique': '{.unique:.1%}',
    'most repeated': '{.most_repeated:,}',
    'blank': '{.found[blank].count:,}',
    'garbled': '{.found[garbled].count:,}',
    'ids of 2+ texts': '{.found[ids_of_several_texts].count:,}',
    'texts of 2+ ids': '{.found[texts_of_several_ids].count:,}',
}
_LENGTHS = {
    'mean': '{.mean:.1f}',
    **{f'{p}%': f'{{.percentiles[{p}]:,}}' for p in summary.PERCENTILES},
    'max': '{.longest:,}',
    'limit': '{.limit:,}',
    'truncated': '{.truncated:.2%}',
    'unknown tokens': '{.unknown:.2%}',
}


def markdown(
    inspection: summary.Inspection, findings: Sequence[Finding]
) -> str:
  """The report, the verdict last."""
  splits = inspection.splits
  counts = [[name, *map(text.format, splits)] for name, text in _COUNTS.items()]
  texts = _of_texts(splits, _TEXTS, lambda texts: texts)
  lengths = _of_texts(splits, _LENGTHS, lambda texts: texts.lengths)
  sections = {
      f'# Data check: {inspection.task}': _head(inspection),
      '## Counts': [_table(['', *(s.name for s in splits)], counts), texts],
      '## Lengths in tokens': [lengths] * any(s.kinds for s in splits),
      '## Between splits': _overlaps(inspection),
      '## Rows 1, 10, 100, ... as the model sees them': _samples(splits),
      '## Verdict': _verdict(findings),
  }
  return '\n'.join(
      line
      for title, content in sections.items()
      if (lines := list(content))
      for line in (title, '', *lines)
  )


def _head(inspection: summary.Inspection) -> Iterator[str]:
  name = pathlib.PurePath(inspection.vocabulary).name
  if name.startswith(_CODE) and not inspection.task.startswith(_CODE):
    yield (
        f'- **Lengths are counted by the vocabulary of code, {name}**, which'
        ' cuts prose into more tokens: give --gin.VOCABULARY=spiece.model.'
    )
  for task, options in inspection.options.items():
    yield f'- {task}: {", ".join(f"{k}={v}" for k, v in options.items())}'
  yield (
      f'- vocabulary: {inspection.vocabulary}, {inspection.vocabulary_size:,}'
      ' ids (--gin.VOCABULARY=... for another)'
  )
  yield (
      f'- limits: queries {inspection.query_length}, passages'
      f' {inspection.passage_length} tokens, EOS included'
      ' (--gin.QUERY_LENGTH, --gin.PASSAGE_LENGTH)'
  )
  yield ''


def _of_texts(
    splits: Sequence[summary.Split],
    columns: Mapping[str, str],
    part: Callable[[summary.Texts], object],
) -> str:
  """A row for each kind of text of each split."""
  rows = [
      [f'{split.name} {what}', *(n.format(part(t)) for n in columns.values())]
      for split in splits
      for what, t in split.kinds
  ]
  return _table(['texts', *columns], rows)


def _overlaps(inspection: summary.Inspection) -> Iterator[str]:
  if inspection.overlaps:
    parts = ('queries', 'passages', 'pairs')
    rows = [
        [f'{o.held_out} and {o.train}',
         *(f'{getattr(o, part).count:,}' for part in parts)]
        for o in inspection.overlaps
    ]
    yield _table(['distinct, in both', *parts], rows)


def _samples(splits: Sequence[summary.Split]) -> Iterator[str]:
  for split in splits:
    for sample in split.samples:
      yield f'    {split.name}, {sample.place}'
      for what, text, kept, tokens in sample.texts:
        size = f'{kept} of {tokens}' if kept < tokens else f'{tokens}'
        if len(text) > _WIDTH:
          text = f'{text[:_WIDTH // 2]} [...] {text[-_WIDTH // 2:]}'
        yield f'      {what} ({size} tokens): {text}'
      yield ''


def _verdict(findings: Sequence[Finding]) -> Iterator[str]:
  if not findings:
    yield 'Nothing wrong or suspicious was found.\n'
  by_level = itertools.groupby(findings, lambda finding: finding.level)
  for level, group in by_level:
    yield f'{level.value.capitalize()}:\n'
    for finding in group:
      yield f'- {finding.where}: {finding.what}. {finding.advice}'
      if finding.places:
        yield f'  First: {"; ".join(finding.places)}'
    yield ''


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  """A table whose first column says what a row is about."""
  lines = tuple(Row((head,), tuple(map(Cell, cells))) for head, *cells in rows)
  columns = tuple(('', name) for name in header[1:])
  return table.markdown(Table('', '', (header[0],), columns, lines))
