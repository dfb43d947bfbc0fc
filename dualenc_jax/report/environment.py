"""The sections that say what numbers depend on: environment and config."""

from collections.abc import Mapping
from typing import Any

from dualenc_jax.report import gin_text
from dualenc_jax.report.markup import folded, Html, section, tag
from dualenc_jax.report.material import Material


def render(material: Material) -> Html:
  """Tables of what files tell, the checkpoint first, each set after it."""
  tables = []
  if material.checkpoint:
    tables.append(_table('Training', material.checkpoint.meta))
  for evaluation in material.evaluations:
    result = evaluation.result
    facts = {'label': result.key.label, **result.provenance}
    tables.append(_table(f'Evaluation {evaluation.name}', facts))
  for analysis in material.analyses:
    tables.append(_table(f'Analysis {analysis.folder.name}', analysis.facts))
  if not tables:
    return Html('')
  return section('environment', 'Environment', *tables)


def config(material: Material) -> Html:
  """The whole config, folded."""
  count = material.config.count('\n')
  return section(
      'config',
      'Config',
      folded(
          f'config.gin, {count} lines',
          tag('pre', gin_text.highlighted(material.config)),
      ),
  )


def _table(title: str, facts: Mapping[str, Any]) -> Html:
  rows = [
      tag('tr', tag('th', name, scope='row'), tag('td', value))
      for name, value in flat(facts)
  ]
  return folded(title, tag('table', *rows, class_='pairs'))


def flat(facts: Mapping[str, Any], prefix: str = '') -> list[tuple[str, str]]:
  """Names and values, those of objects inside with a dot; nothing is null."""
  rows = []
  for name, value in facts.items():
    name = f'{prefix}{name}'.replace('_', ' ')
    if isinstance(value, dict):
      rows += flat(value, f'{name}.')
    elif isinstance(value, list):
      rows.append((name, ', '.join(map(str, value))))
    elif value is not None:
      rows.append((name, str(value) or '(empty)'))
  return rows
