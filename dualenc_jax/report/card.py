"""The section that a model card has: what a model is for, data, limits."""

from collections.abc import Iterator
import re

from dualenc_jax.report.contents import ABOUT, Contents
from dualenc_jax.report.markup import Html, section, tag
from dualenc_jax.results import seen
from dualenc_jax.results.folder import Result

# Parameters of readers that say which data it is.
_SOURCES = (
    'train',
    'path',
    'queries',
    'dataset',
    'folder',
    'files',
    'hard_negatives',
)
_USES = {
    'Ranking': 'Orders the passages that a retriever has found for a query, by'
    ' a score for each pair. It searches nothing itself.',
    'Generation': 'Writes queries that a passage may answer, as training data'
    ' for a retriever. What it writes is not checked for truth.',
    '': 'Finds the passages that answer a query: both are embedded as vectors'
    ' of norm one, and the inner product of two says how near they are. Scores'
    ' order passages; they are no probabilities.',
}


def render(contents: Contents) -> Html:
  """The section."""
  rows = [
      tag('tr', tag('th', name, scope='row'), tag('td', text))
      for name, text in (*_use(contents), *_data(contents), *_limits(contents))
  ]
  return section(
      'card',
      'Data and use',
      *([tag('p', contents.about, class_='about')] if contents.about else []),
      tag('table', *rows, class_='pairs'),
  )


def set_name(result: Result) -> str:
  """'pairs (held_out.jsonl), test': what was measured, by its files too."""
  names = _joined(result.provenance.get('files'))
  label = result.key.label
  if names and not label.endswith(names):
    label += f' ({names})'
  return f'{label}, {result.key.split}'


def _use(contents: Contents) -> Iterator[tuple[str, str]]:
  kind = contents.settings.get('OBJECTIVE', '')
  yield 'Intended use', next(text for k, text in _USES.items() if k in kind)
  yield 'Input', ', '.join(
      f'{text} of {length} tokens at most'
      for text, name in (('queries', 'QUERY'), ('passages', 'PASSAGE'))
      if (length := contents.settings.get(f'{name}_LENGTH'))
  ) + '; the rest of longer ones is cut off.'


def _data(contents: Contents) -> Iterator[tuple[str, str]]:
  settings = contents.settings
  trained = [contents.task, *_sources(contents)]
  meta = contents.checkpoint.meta.get('data', {}) if contents.checkpoint else {}
  if isinstance(examples := meta.get('examples'), int):
    trained.append(f'{examples:,} examples')
    batch = meta.get('global_batch')
    if isinstance(batch, int) and examples:
      seen_times = contents.checkpoint.step * batch / examples
      trained.append(f'each seen {seen_times:.3g} times')
  yield 'Trained on', ', '.join(filter(None, trained))
  start = settings.get('INITIAL_CHECKPOINT_PATH', 'None').strip('\'"')
  yield 'Started from', 'random values' if start == 'None' else start
  for evaluation in contents.evaluations:
    result = evaluation.result
    counts = [
        f'{result.provenance[name]:,} {name}'
        for name in ('queries', 'passages')
        if result.provenance.get(name) is not None
    ]
    yield 'Measured on', ': '.join(
        filter(None, [set_name(result), ', '.join(counts)])
    )
    if found := result.provenance.get(seen.FACT):
      yield '', seen.describe(found)


def _limits(contents: Contents) -> Iterator[tuple[str, str]]:
  text = (
      'Only what is listed here was measured. Texts of another subject,'
      ' language or length may be found less well: an evaluation on some of'
      ' them tells. What training data prefers, a model prefers.'
  )
  if not contents.about:
    text += (
        ' Nobody has written of licence, languages and known faults yet: do so'
        f' in {ABOUT} of the model_dir, which is shown here.'
    )
  yield 'Limits', text


def _sources(contents: Contents) -> Iterator[str]:
  """Files and names of data sets that the config binds to the task's reader."""
  reader = re.escape(contents.settings.get('TASK', '').strip('@()'))
  pattern = rf'^{reader}\.({"|".join(_SOURCES)}) = (?:\\\n\s*)?(.*)$'
  for _, value in re.findall(pattern, contents.config, re.MULTILINE):
    value = contents.settings.get(value[1:], value) if value else value
    if value != 'None':
      yield value.strip('\'"')


def _joined(files: object) -> str:
  """Names of files as evaluations have them, by parameter."""
  if isinstance(files, dict):
    files = [*files.values()]
  if isinstance(files, list):
    return ', '.join(filter(None, map(_joined, files)))
  return str(files or '')
