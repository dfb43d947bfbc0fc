"""A task or mixture of seqio's registry as a dataset."""

import dataclasses
import functools
import types
from typing import Any

from dualenc_jax.data.dataset import Dataset
from dualenc_jax.utils.errors import SourceUnavailable


def _delegate(name: str) -> Any:
  return property(lambda self: getattr(self._inner, name))


@dataclasses.dataclass(frozen=True)
class SeqioTask(Dataset):
  """Retrieval examples of a task or mixture that seqio knows by name.

  A task has string features query and passage and may have others of
  `data.example`. One that was registered from a reader is read by this reader.

  Attributes:
    name: in seqio's registry.
    module: imported first; it registers the task.
  """

  name: str
  module: str | None = None

  splits = _delegate('splits')
  examples = _delegate('examples')
  check_split = _delegate('check_split')
  fingerprint = _delegate('fingerprint')
  corpus_split = _delegate('corpus_split')
  answer_text = _delegate('answer_text')
  self_hits = _delegate('self_hits')
  extra_columns = _delegate('extra_columns')
  evaluated = _delegate('evaluated')

  @property
  def task_name(self) -> str:
    return self.name

  def parts(self) -> list[tuple[Dataset, float | None]]:
    rates = _adapter().rates(self.name, self.module)
    if rates is None:
      return [(self, 1.0)]
    return [
        (dataclasses.replace(self, name=name), rate)
        for name, rate in rates.items()
    ]

  @functools.cached_property
  def _inner(self) -> Dataset:
    return _adapter().find_dataset(self.name, self.module)


def _adapter() -> types.ModuleType:
  """The module that imports seqio; raises SourceUnavailable without it."""
  try:
    from dualenc_jax.data import seqio_adapter
  except ImportError as error:
    raise SourceUnavailable(
        'A seqio task is read through seqio, which cannot be imported here'
        f' ({error}). Install dualenc-jax[data].'
    ) from error
  return seqio_adapter
