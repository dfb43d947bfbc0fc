"""A retrieval task by name: one of tasks/, or any that seqio knows."""

from collections.abc import Iterable, Iterator, Mapping
import contextlib
import dataclasses
import hashlib
import importlib
import importlib.util
import inspect
import json
import os
import pathlib
import pkgutil
import sys
import types
from typing import Any

import dualenc_jax
from dualenc_jax.errors import SourceUnavailable
from dualenc_jax.errors import UserError
from dualenc_jax.suggest import did_you_mean

_REQUIRED = ('query', 'passage')
# Of the names under which tasks of tasks/ are registered, one a set of options.
_OWN_PREFIX = 'dualenc.'
_OPTIONAL = ('query_id', 'passage_id', 'name', 'location')


class SeqioMissing(SourceUnavailable):
  """A task must be read, and seqio cannot be imported here."""


@dataclasses.dataclass(frozen=True)
class Task:
  """Retrieval examples of a seqio task or mixture.

  Attributes:
    name: a file of tasks/ ('python_code', 'pairs'), or a task or mixture that
      is in seqio's registry once `module` is imported. Such a task has string
      features query and passage and, if it likes, negatives (one axis),
      query_id, passage_id, name and location.
    options: what the reader of a task of tasks/ is made with, by parameter.
    module: a module to import first, which registers the user's own tasks.
  """

  name: str
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  module: str | None = None

  def splits(self) -> tuple[str, ...]:
    if self._is_own:
      return tuple(self._reader().splits())
    return tuple(self._seqio_task().splits)

  def examples(self, split: str) -> Iterator[dict]:
    """Yields examples in the task's own order.

    Each is a dict of strings query, passage, query_id, passage_id, name and
    location ('' where the task has none), and negatives, a list of strings.

    Raises:
      SeqioMissing: seqio cannot be imported.
      UserError: an unknown split, a missing feature, or bad data.
    """
    self._check_split(split)
    task = self._seqio_task()
    dataset = task.get_dataset(
        sequence_length=None, split=split, shuffle=False, num_epochs=1
    )
    self._check_features(dataset.element_spec)
    for row in dataset.as_numpy_iterator():
      example = {
          name: row[name].decode('utf-8') if name in row else ''
          for name in (*_REQUIRED, *_OPTIONAL)
      }
      negatives = row['negatives'].tolist() if 'negatives' in row else []
      example['negatives'] = [text.decode('utf-8') for text in negatives]
      yield example
    for part in _parts(task):
      error = getattr(part.source, 'error', None)
      if error is not None:
        raise error

  def fingerprint(self, split: str) -> str:
    """Hash of the source of a split; equal for equal data.

    Of a task of tasks/ it is the reader's, and needs no seqio. Of others it is
    of the names and sizes of the source's files.
    """
    self._check_split(split)
    if self._is_own:
      return self._reader().fingerprint(split)
    task = self._seqio_task()
    digest = hashlib.sha256()
    for part in _parts(task):
      if hasattr(part.source, 'fingerprint'):
        digest.update(part.source.fingerprint(split).encode())
        continue
      for shard in part.source.list_shards(split):
        size = os.path.getsize(shard) if os.path.isfile(shard) else ''
        digest.update(f'{part.name}\0{shard}\0{size}\0'.encode())
    return digest.hexdigest()

  @property
  def _is_own(self) -> bool:
    return self.module is None and self.name in _own_names()

  def _own_module(self) -> types.ModuleType:
    return importlib.import_module(f'{_tasks_package().__name__}.{self.name}')

  def _reader(self):
    module = self._own_module()
    known = inspect.signature(module.reader).parameters
    for option in self.options:
      if option not in known:
        raise UserError(
            f'Task {self.name!r} has no option {option!r}.'
            + did_you_mean(option, known)
            + f' Options: {", ".join(known)}.'
        )
    return module.reader(**self.options)

  def _seqio_task(self):
    if not (self._is_own or self.module or sys.modules.get('seqio')):
      # Nothing can have registered it: say so without the wait for TensorFlow.
      raise self._unknown([])
    seqio = _import_seqio()
    if self._is_own:
      key = json.dumps(dict(self.options), sort_keys=True, default=str)
      digest = hashlib.sha256(key.encode()).hexdigest()
      name = f'{_OWN_PREFIX}{self.name}.{digest[:16]}'
      if name not in seqio.TaskRegistry.names():
        self._own_module().register(name, **self.options)
      return seqio.TaskRegistry.get(name)
    if self.module is not None:
      _import_user_module(self.module)
    try:
      return seqio.get_mixture_or_task(self.name)
    except ValueError:
      raise self._unknown([
          *seqio.TaskRegistry.names(),
          *seqio.MixtureRegistry.names(),
      ]) from None

  def _unknown(self, registered: Iterable[str]) -> UserError:
    users = {name for name in registered if not name.startswith(_OWN_PREFIX)}
    known = sorted({*_own_names(), *users})
    return UserError(
        f'Unknown task {self.name!r}.{did_you_mean(self.name, known)} Known:'
        f' {", ".join(known)}. Other seqio tasks are found once Task.module'
        ' names the module that registers them.'
    )

  def _check_split(self, split: str) -> None:
    if self._is_own:
      self._reader().check_split(split)
      return
    splits = self.splits()
    if split not in splits:
      raise UserError(
          f'Task {self.name!r} has no split {split!r}.'
          f'{did_you_mean(split, splits)} Splits: {", ".join(splits)}.'
      )

  def _check_features(self, spec: Mapping) -> None:
    for name in _REQUIRED:
      if name not in spec:
        raise UserError(
            f'Task {self.name!r} has no feature {name!r}; expected strings'
            f' query and passage. Features: {", ".join(sorted(spec))}.'
        )
    for name in (*_REQUIRED, *_OPTIONAL, 'negatives'):
      rank = 1 if name == 'negatives' else 0
      if name not in spec:
        continue
      feature = spec[name]
      if feature.dtype.name != 'string' or feature.shape.rank != rank:
        raise UserError(
            f'Task {self.name!r}, feature {name!r}: expected untokenised'
            f' strings of rank {rank}, found {feature.dtype.name} of shape'
            f' {feature.shape}.'
        )


def _parts(task) -> list:
  """The tasks of a seqio mixture, or the task itself."""
  return list(getattr(task, 'tasks', [task]))


def _import_seqio() -> types.ModuleType:
  try:
    with _without_native_stderr():
      import seqio
      import tensorflow as tf

      # TensorFlow would else reserve the memory of GPUs that JAX computes on.
      # It refuses once it runs, in a process that uses it for more than this.
      with contextlib.suppress(RuntimeError):
        tf.config.set_visible_devices([], 'GPU')
  except ImportError as error:
    raise SeqioMissing(
        'Examples are read through seqio, which cannot be imported here'
        f' ({error}). Install dualenc-jax[data].'
    ) from error
  return seqio


@contextlib.contextmanager
def _without_native_stderr():
  """Drops what C++ code prints: TensorFlow's greeting, which no flag stops."""
  sys.stderr.flush()
  saved = os.dup(2)
  try:
    with open(os.devnull, 'wb') as devnull:
      os.dup2(devnull.fileno(), 2)
    yield
  finally:
    os.dup2(saved, 2)
    os.close(saved)


def _tasks_package() -> types.ModuleType:
  """dualenc_jax.tasks: installed, or the folder tasks/ of the clone."""
  name = 'dualenc_jax.tasks'
  if name not in sys.modules and importlib.util.find_spec(name) is None:
    folder = pathlib.Path(dualenc_jax.__file__).parents[1] / 'tasks'
    spec = importlib.util.spec_from_file_location(
        name, folder / '__init__.py', submodule_search_locations=[str(folder)]
    )
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
  return sys.modules.get(name) or importlib.import_module(name)


def _own_names() -> list[str]:
  return sorted(
      module.name for module in pkgutil.iter_modules(_tasks_package().__path__)
  )


def _import_user_module(module: str) -> None:
  try:
    importlib.import_module(module)
  except ModuleNotFoundError as error:
    raise UserError(
        f'Task.module: {module!r} cannot be imported: {error}. Expected a'
        ' module on the Python path that registers seqio tasks.'
    ) from error
