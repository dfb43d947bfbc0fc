"""A task or mixture of seqio's registry as a dataset."""

from collections.abc import Iterator, Mapping
import dataclasses
import functools
import types
from typing import Any

from dualenc_jax.data.columns import Column
from dualenc_jax.data.dataset import Dataset
from dualenc_jax.errors import SourceUnavailable


class SeqioMissing(SourceUnavailable):
  """A task must be read through seqio, which cannot be imported here."""


@dataclasses.dataclass(frozen=True)
class SeqioTask(Dataset):
  """Retrieval examples of a task or mixture that seqio knows by name.

  A task has string features query and passage and, if it likes, others of
  `data.example`. One that was registered from a reader is read by this reader.

  Attributes:
    name: of a task or mixture in seqio's registry once `module` is imported.
    module: a module to import first, which registers it.
  """

  name: str
  module: str | None = None

  @property
  def task_name(self) -> str:
    return self.name

  def splits(self) -> tuple[str, ...]:
    return self._inner.splits()

  def examples(self, split: str) -> Iterator[Mapping[str, Any]]:
    return self._inner.examples(split)

  def check_split(self, split: str) -> None:
    self._inner.check_split(split)

  def fingerprint(self, split: str) -> str:
    return self._inner.fingerprint(split)

  def corpus_split(self, split: str) -> str | None:
    return self._inner.corpus_split(split)

  def answer_text(self, passage: str, name: str) -> str:
    return self._inner.answer_text(passage, name)

  @property
  def self_hits(self) -> bool:
    return self._inner.self_hits

  @property
  def extra_columns(self) -> tuple[Column, ...]:
    return tuple(self._inner.extra_columns)

  @property
  def evaluated(self) -> str:
    return self._inner.evaluated

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
  """The module that imports seqio.

  Raises:
    SeqioMissing: seqio or TensorFlow cannot be imported.
  """
  try:
    import dualenc_jax.data.seqio_adapter as found
  except ImportError as error:
    raise SeqioMissing(
        'A seqio task is read through seqio, which cannot be imported here'
        f' ({error}). Install dualenc-jax[data].'
    ) from error
  return found
