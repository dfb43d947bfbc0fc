"""A task or mixture of seqio's registry as a dataset."""

import dataclasses
import functools
import types
from typing import Any

from dualenc_jax.data.dataset import Dataset
from dualenc_jax.utils.errors import SourceUnavailable


class SeqioMissing(SourceUnavailable):
  """A task must be read through seqio, which cannot be imported here."""


def _of_inner(name: str) -> Any:
  return property(lambda self: getattr(self._inner, name))


@dataclasses.dataclass(frozen=True)
class SeqioTask(Dataset):
  """Retrieval examples of a task or mixture that seqio knows by name.

  A task has string features query and passage and, if it likes, others of
  `data.example`. One that was registered from a reader is read by this reader.

  Attributes:
    name: in seqio's registry.
    module: imported first; it registers the task.
  """

  name: str
  module: str | None = None

  splits = _of_inner('splits')
  examples = _of_inner('examples')
  check_split = _of_inner('check_split')
  fingerprint = _of_inner('fingerprint')
  corpus_split = _of_inner('corpus_split')
  answer_text = _of_inner('answer_text')
  self_hits = _of_inner('self_hits')
  extra_columns = _of_inner('extra_columns')
  evaluated = _of_inner('evaluated')

  @property
  def task_name(self) -> str:
    return self.name

  def parts(self) -> list[tuple[Dataset, float | None]]:
    rates = adapter().rates(self.name, self.module)
    if rates is None:
      return [(self, 1.0)]
    return [
        (dataclasses.replace(self, name=name), rate)
        for name, rate in rates.items()
    ]

  @functools.cached_property
  def _inner(self) -> Dataset:
    return adapter().dataset_of(self.name, self.module)


def adapter() -> types.ModuleType:
  """The module that imports seqio; raises SeqioMissing."""
  try:
    import dualenc_jax.data.seqio_adapter as found
  except ImportError as error:
    raise SeqioMissing(
        'A seqio task is read through seqio, which cannot be imported here'
        f' ({error}). Install dualenc-jax[data].'
    ) from error
  return found
