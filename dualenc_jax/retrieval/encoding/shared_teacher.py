"""A teacher on several hosts: the first asks, and all score a part."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np

from dualenc_jax.parallel import host_arrays, hosts
from dualenc_jax.parallel.hosts import Host
from dualenc_jax.retrieval.encoding.teacher import Calibration, PairScorer


@dataclasses.dataclass(frozen=True, eq=False)
class SharedTeacher(PairScorer):
  """A teacher that all hosts have loaded.

  The first host calls `blocks` any number of times, then `release`. The others
  call `help`, with the same texts.
  """

  own: PairScorer
  host: Host

  @property
  def provenance(self) -> Mapping[str, Any]:  # type: ignore[override]
    return self.own.provenance

  @property
  def calibration(self) -> Calibration | None:  # type: ignore[override]
    return self.own.calibration

  def blocks(
      self, queries: Sequence[str], passages: Sequence[str], pairs: np.ndarray,
      size: int = 2**14,
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """As of `PairScorer`, but of up to `size` pairs for each host."""
    if len(pairs):
      host_arrays.gather(np.array([len(pairs), size], np.int32))
      yield from self._blocks(queries, passages, pairs.astype(np.int32), size)

  def help(self, queries: Sequence[str], passages: Sequence[str]) -> None:
    """Scores parts of what the first host asks for, until it calls `release`.
    """
    while True:
      count, size = host_arrays.gather(np.zeros(2, np.int32))[0].tolist()
      if not count:
        return
      pairs = np.zeros((count, 2), np.int32)
      for _ in self._blocks(queries, passages, pairs, size):
        pass

  def release(self) -> None:
    """Ends the `help` of the others."""
    host_arrays.gather(np.zeros(2, np.int32))

  def _blocks(
      self, queries: Sequence[str], passages: Sequence[str], pairs: np.ndarray,
      size: int,
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields blocks of the first host's pairs, int32 [n, 2].

    Each host scores `size` pairs of a block at most.
    """
    pairs = host_arrays.from_first(pairs).astype(np.int64)
    first, step = self.host.index * size, self.host.count * size
    starts = range(0, len(pairs), step)
    parts = [pairs[start + first : start + first + size] for start in starts]
    found = self.own.blocks(queries, passages, np.concatenate(parts), size)
    for start, part in zip(starts, parts, strict=True):
      scores = np.zeros(size, np.float32)
      if len(part):
        scores[: len(part)] = next(found)[1]
      block = pairs[start : start + step]
      yield block, host_arrays.gather(scores).reshape(-1)[: len(block)]


def share(teacher: Any, host: Host) -> Any:
  """The teacher of all hosts; a file of scores, None and one host stay.

  Raises UserError where hosts have loaded different ones.
  """
  if host.count == 1 or not isinstance(teacher, PairScorer):
    return teacher
  hosts.agree('teachers', hosts.lines(teacher.provenance))
  return SharedTeacher(teacher, host)
