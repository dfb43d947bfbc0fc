"""The command that makes a result again, from what files tell of it."""

from collections.abc import Iterator, Mapping
import re
import shlex

from dualenc_jax.report import overview
from dualenc_jax.report.material import Material
from dualenc_jax.results.folder import Key, Result

_MIXTURE = 'data.Mixture'


def of(result: Result, material: Material) -> str:
  """`dualenc evaluate` with the flags that give this result of the model."""
  flags = ' '.join(_flags(result, material))
  return f'dualenc evaluate {flags}'


def _flags(result: Result, material: Material) -> Iterator[str]:
  key = result.key
  yield f'--model_dir={shlex.quote(material.command_path)}'
  if not _is_default(key, material):
    name = '/'.join(filter(None, (key.task, key.dataset)))
    yield f'--tasks={shlex.quote(name)}'
  yield f'--split={shlex.quote(key.split)}'
  separator = result.provenance.get('document_separator')
  if separator is not None:
    yield f'--max_passage --document_separator={shlex.quote(separator)}'


def _is_default(key: Key, material: Material) -> bool:
  """Whether it is the task that a command means which is given none."""
  bindings = material.bindings
  task = bindings.get('TASK', '')
  if task.startswith(f'@{_MIXTURE}'):
    # Of a mixture it is the one task that has its validation split.
    if key.split != 'validation':
      return False
    task = bindings.get(f'{_MIXTURE}.validation', '')
  scope = task.lstrip('@').partition('/')[0]
  name = _string(bindings.get(f'{scope}/data.Task.name', ''), bindings)
  options = bindings.get(f'{scope}/data.Task.options', '')
  dataset = re.search(r"'dataset': *([^,}]*)", options)
  return key.task in (name or scope, overview.task(material)) and (
      key.dataset == (_string(dataset[1], bindings) if dataset else None)
  )


def _string(value: str, bindings: Mapping[str, str]) -> str | None:
  """The string that a value or its macro is; None if it is none."""
  if value.startswith('%'):
    value = bindings.get(value[1:], '')
  found = re.fullmatch(r'(["\'])(.*)\1', value.strip())
  return found and found[2]
