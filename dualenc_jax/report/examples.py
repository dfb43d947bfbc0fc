"""The section of examples: queries with their top hits, right and wrong."""

from collections.abc import Mapping, Sequence
import re
from typing import Any

from dualenc_jax.report.markup import folded, Html, join, section, tag
from dualenc_jax.report.material import Evaluation, Material

# Of each kind, for each set: a page should load on a phone.
_SHOWN = 12
# Of characters; longer texts are cut to a few lines until they are clicked.
_LONG = 240

Example = Mapping[str, Any]


def render(material: Material) -> Html:
  """The section; nothing of it without examples."""
  found = [e for e in material.evaluations if e.examples]
  if not found:
    return Html('')
  names = ', '.join(evaluation.name for evaluation in found)
  parts = [
      tag(
          'p',
          f'Of {names}. Open a query to see its best hits, and a text that is'
          ' cut to see all of it.',
          class_='note',
      )
  ]
  for evaluation in found:
    blocks = _blocks(evaluation)
    if len(found) == 1:
      parts += blocks
    else:
      count = len(evaluation.examples)
      title = f'{evaluation.name}: {count} queries'
      parts.append(folded(title, *blocks, class_='set'))
  return section('examples', 'Examples', *parts)


def _blocks(evaluation: Evaluation) -> list[Html]:
  right = [e for e in evaluation.examples if e['rank'] == 1]
  wrong = [e for e in evaluation.examples if e['rank'] != 1]
  return [
      _block('Right', 'a relevant passage comes first', right),
      _block('Wrong', 'something else does', wrong),
  ]


def _block(title: str, meaning: str, examples: Sequence[Example]) -> Html:
  shown = examples[:_SHOWN]
  count = f'{len(examples)} of the sample'
  if len(shown) < len(examples):
    count += f', {len(shown)} shown'
  return tag(
      'div',
      tag('h3', f'{title} ', tag('small', f'{meaning}: {count}')),
      *map(_example, shown),
      class_='examples',
  )


def _example(example: Example) -> Html:
  rank = example['rank']
  label = 'not found' if rank is None else f'rank {rank:,}'
  kind = 'right' if rank == 1 else 'wrong'
  relevant = example.get('relevant')
  hits = [_hit(hit) for hit in example['hits']]
  shown = {hit.get('id') for hit in example['hits']}
  if relevant and relevant.get('id') not in shown:
    where = 'not ranked' if rank is None else f'{rank:,}'
    hits.append(
        tag(
            'li',
            _line(where, None, ('yes', '✓ relevant'), relevant),
            class_='hit wanted',
        )
    )
  return tag(
      'details',
      tag(
          'summary',
          tag('span', example['query'], class_='query'),
          tag('span', label, class_=f'rank {kind}'),
      ),
      tag('ol', *hits),
      class_='example',
  )


def _hit(hit: Mapping[str, Any]) -> Html:
  return tag(
      'li',
      _line(f'{hit["rank"]}', hit['score'], _grade(hit['grade']), hit),
      class_='hit',
  )


def _grade(grade: int | None) -> tuple[str, str]:
  """A class and words for a judgement: shapes too, not colours alone."""
  if grade is None:
    return 'open', '○ not judged'
  if grade > 0:
    return 'yes', '✓ relevant' + (f', grade {grade}' if grade > 1 else '')
  return 'no', '✕ not relevant'


def _line(
    rank: str,
    score: float | None,
    grade: tuple[str, str],
    passage: Mapping[str, Any],
) -> Html:
  kind, words = grade
  name = passage.get('name') or passage.get('id') or ''
  return join(
      tag(
          'p',
          tag('b', rank),
          *([] if score is None else [tag('span', f'{score:.3f}')]),
          tag('span', words, class_=kind),
          tag('span', str(name), class_='whose'),
          class_='about',
      ),
      _text(passage['text']),
  )


def _text(text: str) -> Html:
  # Laid out by hand, as code is: keep its lines and columns.
  kind = 'text code' if re.search(r'\n[ \t]+\S', text) else 'text'
  if len(text) <= _LONG and text.count('\n') < 4:
    return tag('div', text, class_=kind)
  return tag('details', tag('summary', text), class_=f'{kind} long')
