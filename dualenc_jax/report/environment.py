"""The sections that say what numbers depend on: environment and config."""

from collections.abc import Mapping
from typing import Any

from dualenc_jax.report.contents import CONFIG, Contents
from dualenc_jax.report.markup import folded, Html, section, tag

# What hooks remember is told at the top; digests are of each tensor.
_LEFT_OUT = ('notes', 'digests')


def render(contents: Contents) -> Html:
  """Tables of what files say, the checkpoint first, each set after it."""
  facts = {}
  if contents.checkpoint:
    meta = contents.checkpoint.meta
    facts['Training'] = {n: meta[n] for n in meta if n not in _LEFT_OUT}
  for evaluation in contents.evaluations:
    result = evaluation.result
    facts[f'Evaluation {evaluation.name}'] = {
        'label': result.key.label,
        **result.provenance,
    }
  for analysis in contents.analyses:
    facts[f'Analysis {analysis.folder.name}'] = analysis.facts
  return section(
      'environment', 'Environment', *(_table(*item) for item in facts.items())
  )


def config(contents: Contents) -> Html:
  """The whole config, folded."""
  title = f'{CONFIG}, {contents.config.count(chr(10))} lines'
  return section(
      'config', 'Config', folded(title, tag('pre', contents.config))
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
