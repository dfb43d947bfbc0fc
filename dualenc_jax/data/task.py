"""A retrieval task by name: one of tasks/, or any that seqio knows."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
import contextlib
import dataclasses
import hashlib
import importlib
import importlib.util
import inspect
import os
import pathlib
import pkgutil
import sys
import types
from typing import Any

import dualenc_jax
from dualenc_jax.data.columns import STANDARD
from dualenc_jax.data.reader import example, Reader
from dualenc_jax.errors import SourceUnavailable, UserError
from dualenc_jax.suggest import did_you_mean

_REQUIRED = ('query', 'passage')
# Options of these names are files of these splits.
_SPLITS = ('train', 'validation', 'test')
_RANKS = {c.name: c.rank for c in STANDARD if c.dtype == 'text'}


class SeqioMissing(SourceUnavailable):
  """A task must be read, and seqio cannot be imported here."""


@dataclasses.dataclass(frozen=True)
class Task:
  """Retrieval examples of a seqio task or mixture.

  The reader of a task of tasks/ is read directly: the same examples as through
  seqio, sooner and without TensorFlow.

  Attributes:
    name: a file of tasks/ ('python_code', 'pairs'), or a task or mixture that
      is in seqio's registry once `module` is imported. Such a task has string
      features query and passage and, if it likes, others of `reader.example`.
    options: what the reader of a task of tasks/ is made with, by parameter.
    module: a module to import first, which registers the user's own tasks.
  """

  name: str
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  module: str | None = None

  def splits(self) -> tuple[str, ...]:
    if self._is_own:
      return tuple(self._reader().splits())
    task = self._seqio_task()
    if hasattr(task, 'tasks'):
      # A mixture is for training; its tasks are evaluated one by one.
      return tuple(split for split in task.splits if split == 'train')
    return tuple(task.splits)

  def parts(self) -> list[tuple['Task', float]]:
    """(task, rate) of a mixture, rates adding up to 1; of a task, itself."""
    if self._is_own:
      return [(self, 1.0)]
    mixture = self._seqio_task()
    tasks = getattr(mixture, 'tasks', None)
    if tasks is None:
      return [(self, 1.0)]
    # seqio keeps them in a set, whose order differs from process to process.
    tasks = sorted(tasks, key=lambda task: task.name)
    rates = [float(mixture.get_rate(task)) for task in tasks]
    return [
        (dataclasses.replace(self, name=task.name), rate / sum(rates))
        for task, rate in zip(tasks, rates)
    ]

  def for_split(self, split: str) -> 'Task':
    """The one task that a split is of: itself."""
    del split
    return self

  def examples(self, split: str) -> Iterator[dict[str, Any]]:
    """Yields examples in the task's own order, as `reader.example` makes them.

    Raises:
      SeqioMissing: seqio cannot be imported.
      UserError: an unknown split, a missing feature, bad data, or a mixture,
        whose parts are read one by one.
    """
    reader = self._any_reader()
    if reader is not None:
      reader.check_split(split)
      yield from reader.examples(split)
      return
    self._check_split(split)
    task = self._seqio_task()
    if hasattr(task, 'tasks'):
      raise UserError(
          f'{self.name!r} is a mixture; expected one of its tasks here:'
          f' {", ".join(part.name for part in task.tasks)}.'
      )
    dataset = task.get_dataset(
        sequence_length=None, split=split, shuffle=False, num_epochs=1
    )
    self._check_features(dataset.element_spec)
    for row in dataset.as_numpy_iterator():
      yield _from_features(row)
    error = getattr(task.source, 'error', None)
    if error is not None:
      raise error

  def corpus_split(self, split: str) -> str | None:
    """The split whose passages the queries of `split` are ranked over.

    None if these are the passages of the split itself.
    """
    reader = self._any_reader()
    return None if reader is None else reader.corpus_split(split)

  def answer_text(self) -> Callable[[str, str], str]:
    """Finds by its text and name the part of a passage that may answer.

    All of it, unless the reader has a method `answer_text` of its own.
    """
    reader = self._any_reader()
    return getattr(reader, 'answer_text', lambda passage, name: passage)

  def self_hits(self) -> bool:
    """Whether a passage of a query's own id must not be ranked for it."""
    return getattr(self._any_reader(), 'self_hits', False)

  @property
  def label(self) -> str:
    """The name, and that of its data set, or folder, if there are several."""
    dataset = self.options.get('dataset')
    if dataset is None and self.options.get('folder'):
      folder = pathlib.Path(self.options['folder']).expanduser()
      dataset = f'folder-{folder.resolve().name}'
    return self.name if dataset is None else f'{self.name}-{dataset}'

  def of_datasets(self, name: str | None = None) -> list['Task']:
    """The task of each data set of the benchmark, or of the one called `name`.

    One whose figures are means over several sets stands for all of these. A
    task that has no data sets, or a folder of the user's own in their place, is
    itself.

    Raises:
      UserError: there is no such data set.
    """
    datasets = None
    if self._is_own:
      datasets = getattr(self._own_module().reader, 'datasets', None)
    is_folder = self.options.get('folder') is not None
    if name is None and (datasets is None or is_folder):
      return [self]
    if datasets is None:
      raise UserError(
          f'Task {self.name!r} has no data sets to choose {name!r} from.'
      )
    # The saved config of a model may name a folder, in place of a set.
    options = self.options | ({'folder': None} if is_folder else {})
    return [
        dataclasses.replace(self, options=options | {'dataset': dataset})
        for dataset in datasets(name)
    ]

  def judging_documents(self) -> 'Task':
    """The task with judgements of documents, not of passages.

    Itself where its reader knows no documents: judgements are as they are.
    """
    if not self._is_own or 'judged_ids' not in self._known_options():
      return self
    options = {**self.options, 'judged_ids': 'documents'}
    return dataclasses.replace(self, options=options)

  def measured_split(self) -> str:
    """The split that figures are of: the benchmark's, else test if there is."""
    measured = getattr(self._any_reader(), 'evaluated', None)
    if measured is None:
      measured = 'test' if 'test' in self.splits() else 'validation'
    return measured

  def check_split(self, split: str) -> None:
    """Raises UserError where a split or its file is missing; reads nothing."""
    reader = self._any_reader()
    if reader is None:
      self._check_split(split)
    else:
      reader.check_split(split)

  def identity(self, split: str) -> dict[str, Any]:
    """The options that decide what a split's examples are.

    Those that only say where files are do not: of a file its name counts, of
    its folder nothing, so that a token cache is found on another machine.
    """
    reader = self._own_module().reader if self._is_own else None
    files = getattr(reader, 'FILES', ())
    ignored = {'root', 'data_root', *(s for s in _SPLITS if s != split)}
    if split == 'corpus':
      ignored |= {*getattr(reader, 'NOT_OF_CORPUS', ())}
    return {
        name: _file_names(value) if name in files else value
        for name, value in self.options.items()
        if name not in ignored
    }

  def fingerprint(self, split: str) -> str:
    """Hash of the source of a split; equal for equal data.

    Of a reader it is the reader's own; of other seqio tasks it is of the names
    and sizes of the source's files.
    """
    reader = self._any_reader()
    if reader is not None:
      reader.check_split(split)
      return reader.fingerprint(split)
    self._check_split(split)
    task = self._seqio_task()
    digest = hashlib.sha256()
    if hasattr(task.source, 'fingerprint'):
      digest.update(task.source.fingerprint(split).encode())
      return digest.hexdigest()
    for shard in task.source.list_shards(split):
      size = os.path.getsize(shard) if os.path.isfile(shard) else ''
      digest.update(f'{task.name}\0{shard}\0{size}\0'.encode())
    return digest.hexdigest()

  @property
  def _is_own(self) -> bool:
    return self.module is None and self.name in _own_names()

  def _own_module(self) -> types.ModuleType:
    return importlib.import_module(f'{_tasks_package().__name__}.{self.name}')

  def _any_reader(self) -> Reader | None:
    """The reader of a task of tasks/, or of one made with its `register`."""
    if self._is_own:
      return self._reader()
    task = self._seqio_task()
    if getattr(task, 'preprocessors', None):
      return None
    return getattr(getattr(task, 'source', None), 'reader', None)

  def _reader(self) -> Reader:
    known = self._known_options()
    for option in self.options:
      if option not in known:
        raise UserError(
            f'Task {self.name!r} has no option {option!r}.'
            + did_you_mean(option, known)
            + f' Options: {", ".join(known)}.'
        )
    return self._own_module().reader(**self.options)

  def _known_options(self) -> Collection[str]:
    return inspect.signature(self._own_module().reader).parameters

  def _seqio_task(self):
    if not (self.module or sys.modules.get('seqio')):
      # Nothing can have registered it: say so without the wait for TensorFlow.
      raise self._unknown([])
    seqio = _import_seqio()
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
    known = sorted({*_own_names(), *registered})
    return UserError(
        f'Unknown task {self.name!r}.{did_you_mean(self.name, known)} Known:'
        f' {", ".join(known)}. Other seqio tasks are found once Task.module'
        ' names the module that registers them.'
    )

  def _check_split(self, split: str) -> None:
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
    for name, rank in _RANKS.items():
      if name not in spec:
        continue
      feature = spec[name]
      if feature.dtype.name != 'string' or feature.shape.rank != rank:
        raise UserError(
            f'Task {self.name!r}, feature {name!r}: expected untokenised'
            f' strings of rank {rank}, found {feature.dtype.name} of shape'
            f' {feature.shape}.'
        )


def _file_names(value: Any) -> Any:
  """Paths without their folders: of a path, or of the values of a mapping."""
  if isinstance(value, Mapping):
    return {name: _file_names(path) for name, path in value.items()}
  return value if value is None else pathlib.PurePath(value).name


def _from_features(row: Mapping[str, Any]) -> dict[str, Any]:
  """An example from a row of a seqio task, NumPy values."""
  values = {}
  for name, rank in _RANKS.items():
    if name in row and rank:
      values[name] = [text.decode('utf-8') for text in row[name].tolist()]
    elif name in row:
      values[name] = row[name].decode('utf-8')
  if 'relevance' in row:
    values['relevance'] = int(row['relevance'])
  return example(**values)


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
