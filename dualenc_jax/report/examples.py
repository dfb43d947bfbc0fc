"""The section of examples: queries with their top hits, right and wrong."""

from collections.abc import Mapping, Sequence
import re
from typing import Any

from dualenc_jax.report.contents import Contents
from dualenc_jax.report.markup import folded, Html, section, tag

# Of each kind, for each set: a page should load on a phone.
_SHOWN = 12
# Of characters; longer texts are folded.
_LONG = 240

Example = Mapping[str, Any]


def render(contents: Contents) -> Html:
  """The section; nothing of it without examples."""
  found = [e for e in contents.evaluations if e.examples]
  parts = []
  for evaluation in found:
    examples = evaluation.examples
    right = [e for e in examples if e['rank'] == 1]
    wrong = [e for e in examples if e['rank'] != 1]
    blocks = [
        _block('Right', 'a relevant passage comes first', right),
        _block('Wrong', 'something else does', wrong),
    ]
    title = f'{evaluation.name}: {len(examples)} queries'
    parts += blocks if len(found) == 1 else [folded(title, *blocks)]
  if found:
    names = ', '.join(evaluation.name for evaluation in found)
    note = f'Of {names}. Open a query to see its best hits.'
    parts.insert(0, tag('p', note, class_='note'))
  return section('examples', 'Examples', *parts)


def _block(title: str, meaning: str, examples: Sequence[Example]) -> Html:
  shown = examples[:_SHOWN]
  count = f'{len(examples)} of the sample'
  if len(shown) < len(examples):
    count += f', {len(shown)} shown'
  return tag(
      'div',
      tag('h3', f'{title} ', tag('small', f'{meaning}: {count}')),
      *map(_example, shown),
  )


def _example(example: Example) -> Html:
  rank = example['rank']
  label = 'not found' if rank is None else f'rank {rank:,}'
  kind = 'right' if rank == 1 else 'wrong'
  hits = [
      _passage(
          f'{hit["rank"]}', hit, _grade(hit['grade']), f'{hit["score"]:.3f}'
      )
      for hit in example['hits']
  ]
  relevant = example.get('relevant')
  shown = {hit.get('id') for hit in example['hits']}
  if relevant and relevant.get('id') not in shown:
    where = 'not ranked' if rank is None else f'{rank:,}'
    hits.append(_passage(where, relevant, _grade(1)))
  return tag(
      'details',
      tag(
          'summary',
          tag('span', example['query'], class_='query'),
          ' ',
          tag('span', label, class_=kind),
      ),
      *hits,
      class_='example',
  )


def _grade(grade: int | None) -> tuple[str, str]:
  """A class and words for a judgement: shapes too, not colours alone."""
  if grade is None:
    return 'open', '○ not judged'
  if grade > 0:
    return 'right', '✓ relevant' + (f', grade {grade}' if grade > 1 else '')
  return 'wrong', '✕ not relevant'


def _passage(
    rank: str,
    passage: Mapping[str, Any],
    grade: tuple[str, str],
    score: str = '',
) -> Html:
  kind, words = grade
  name = passage.get('name') or passage.get('id') or ''
  text = passage['text']
  # Laid out by hand, as code is: keep its lines and columns.
  style = 'text code' if re.search(r'\n[ \t]+\S', text) else 'text'
  is_long = len(text) > _LONG or text.count('\n') >= 4
  shown = tag('details', tag('summary', text)) if is_long else text
  about = [tag('b', rank), score, tag('span', words, class_=kind), name]
  return tag(
      'div',
      tag('p', *(part for a in about if a for part in (a, ' '))),
      tag('div', shown, class_=f'{style} long' if is_long else style),
      class_='hit',
  )
