"""A task of seqio's registry as a dataset."""

import dataclasses
import functools
from typing import Any

from dualenc_jax.data.dataset import Dataset
from dualenc_jax.utils.errors import SourceUnavailable


def _delegate(name: str) -> Any:
  return property(lambda self: getattr(self._registered, name))


@dataclasses.dataclass(frozen=True)
class SeqioTask(Dataset):
  """Retrieval examples of a task that seqio knows by name.

  The task has string features query and passage and may have others of
  `data.example`.

  Attributes:
    name: in seqio's registry.
    module: imported first; it registers the task.
  """

  name: str
  module: str | None = None

  splits = _delegate('splits')
  examples = _delegate('examples')
  fingerprint = _delegate('fingerprint')
  extra_columns = _delegate('extra_columns')

  @property
  def task_name(self) -> str:
    return self.name

  @functools.cached_property
  def _registered(self) -> Any:
    try:
      from dualenc_jax.data.seqio_adapter import RegisteredTask
    except ImportError as error:
      raise SourceUnavailable(
          'A seqio task is read through seqio, which cannot be imported here'
          f' ({error}). Install dualenc-jax[data].'
      ) from error
    return RegisteredTask(self.name, self.module)
