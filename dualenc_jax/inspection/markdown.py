"""An inspection as Markdown that is as readable unrendered."""

from collections.abc import Iterator, Sequence

from dualenc_jax.figures import table
from dualenc_jax.figures.table import Cell, Row, Table
from dualenc_jax.inspection import summary
from dualenc_jax.inspection.findings import Finding, Level

_WIDTH = 300  # Characters of a sample's text.


def markdown(
    inspection: summary.Inspection, findings: Sequence[Finding]
) -> str:
  """The report, the verdict last."""
  return '\n'.join([
      *_head(inspection),
      *_counts(inspection.splits),
      *_lengths(inspection.splits),
      *_overlaps(inspection),
      *_samples(inspection.splits),
      *_verdict(findings),
  ])


def _head(inspection: summary.Inspection) -> Iterator[str]:
  yield f'# Data check: {inspection.task}'
  yield ''
  for task, options in inspection.options.items():
    told = ', '.join(f'{name}={value}' for name, value in options.items())
    yield f'- {task}: {told}'
  yield (
      f'- vocabulary: {inspection.vocabulary}, {inspection.vocabulary_size:,}'
      ' ids; lengths below are of it (--gin.VOCABULARY=... for another)'
  )
  yield (
      f'- limits: queries {inspection.query_length}, passages'
      f' {inspection.passage_length} tokens, EOS included'
      ' (--gin.QUERY_LENGTH, --gin.PASSAGE_LENGTH)'
  )
  limited = [split.name for split in inspection.splits if split.limited]
  if limited:
    yield (
        f'- only the first {inspection.limit:,} rows were read of'
        f' {", ".join(limited)}: all that follows is about these'
    )
  yield ''


def _counts(splits: Sequence[summary.Split]) -> Iterator[str]:
  rows = [
      ('rows', lambda s: s.rows),
      ('refused by the reader', lambda s: s.num_refused),
      ('pairs', lambda s: s.pairs),
      ('distinct pairs', lambda s: s.distinct_pairs),
      ('judged, not relevant', lambda s: s.judged_irrelevant),
      ('queries without a passage', lambda s: s.lone_queries),
      ('passages without a query', lambda s: s.lone_passages),
      ('query = passage', lambda s: s.equal_texts.count),
      ('passage among its negatives', lambda s: s.positive_negatives.count),
      (
          "negative is query's other passage",
          lambda s: s.other_positive_negatives.count,
      ),
      ('pairs without negatives', lambda s: s.without_negatives),
      (
          'negatives a pair, min / mean / max',
          lambda s: f'{s.fewest_negatives:,} /'
          f' {s.negatives.count / max(s.pairs, 1):.1f} /'
          f' {s.most_negatives:,}',
      ),
  ]
  yield '## Counts'
  yield ''
  yield _table(
      ['', *(split.name for split in splits)],
      [
          [name, *(_cell(value(split)) for split in splits)]
          for name, value in rows
      ],
  )
  yield _table(
      [
          'texts',
          'all',
          'distinct',
          'unique',
          'most repeated',
          'blank',
          'mojibake',
          'U+FFFD',
          'ids of 2+ texts',
          'texts of 2+ ids',
      ],
      [
          [
              f'{split.name} {what}',
              f'{texts.count:,}',
              f'{texts.distinct:,}',
              f'{texts.unique:.1%}',
              f'{texts.most_repeated:,}',
              f'{texts.blank.count:,}',
              f'{texts.mojibake.count:,}',
              f'{texts.replaced.count:,}',
              f'{texts.ids_of_several_texts.count:,}',
              f'{texts.texts_of_several_ids.count:,}',
          ]
          for split in splits
          for what, texts in split.kinds
      ],
  )


def _lengths(splits: Sequence[summary.Split]) -> Iterator[str]:
  if not any(split.kinds for split in splits):
    return
  percentiles = summary.PERCENTILES
  yield '## Lengths in tokens'
  yield ''
  yield _table(
      [
          'texts',
          'mean',
          *(f'{p}%' for p in percentiles),
          'max',
          'limit',
          'truncated',
          'unknown tokens',
      ],
      [
          [
              f'{split.name} {what}',
              f'{texts.lengths.mean:.1f}',
              *(f'{texts.lengths.percentiles[p]:,}' for p in percentiles),
              f'{texts.lengths.longest:,}',
              f'{texts.lengths.limit:,}',
              f'{texts.lengths.truncated:.2%}',
              f'{texts.lengths.unknown:.2%}',
          ]
          for split in splits
          for what, texts in split.kinds
      ],
  )


def _overlaps(inspection: summary.Inspection) -> Iterator[str]:
  if not (inspection.overlaps or inspection.missing):
    return
  yield '## Between splits'
  yield ''
  if inspection.overlaps:
    yield _table(
        ['distinct, in both', 'queries', 'passages', 'pairs'],
        [
            [
                f'{overlap.held_out} and {overlap.train}',
                f'{overlap.queries.count:,}',
                f'{overlap.passages.count:,}',
                f'{overlap.pairs.count:,}',
            ]
            for overlap in inspection.overlaps
        ],
    )
  for missing in inspection.missing:
    yield (
        f'Relevant passages of {missing.split} that are not in'
        f' {missing.corpus}: {missing.passages.count:,}.'
    )
    yield ''


def _samples(splits: Sequence[summary.Split]) -> Iterator[str]:
  if not any(split.samples for split in splits):
    return
  yield '## Rows 1, 10, 100, ... as the model sees them'
  yield ''
  for split in splits:
    for sample in split.samples:
      yield f'    {split.name}, {sample.place}'
      for what, text, kept, tokens in sample.texts:
        size = f'{kept} of {tokens}' if kept < tokens else f'{tokens}'
        yield f'      {what} ({size} tokens): {_shortened(text)}'
      yield ''


def _verdict(findings: Sequence[Finding]) -> Iterator[str]:
  yield '## Verdict'
  yield ''
  if all(finding.level is Level.NOTE for finding in findings):
    yield 'Nothing wrong or suspicious was found.'
    yield ''
  for level in Level:
    chosen = [finding for finding in findings if finding.level is level]
    if not chosen:
      continue
    yield f'{level.value.capitalize()}:'
    yield ''
    for finding in chosen:
      yield f'- {finding.where}: {finding.what}. {finding.advice}'
      if finding.places:
        yield f'  First: {"; ".join(finding.places)}'
    yield ''


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  """A table whose first column says what a row is about."""
  return table.markdown(
      Table(
          name='',
          title='',
          heads=tuple(header[:1]),
          columns=tuple(('', name) for name in header[1:]),
          rows=tuple(
              Row((head,), tuple(map(Cell, cells))) for head, *cells in rows
          ),
      )
  )


def _cell(value: int | str) -> str:
  return value if isinstance(value, str) else f'{value:,}'


def _shortened(text: str) -> str:
  """At most `_WIDTH` characters, the middle left out."""
  if len(text) <= _WIDTH:
    return text
  half = _WIDTH // 2
  return f'{text[:half]} [...] {text[-half:]}'
