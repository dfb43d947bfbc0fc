"""`Writer`, a T5 that writes several texts of each source, on the mesh.

A device has B slots, each of a source and n targets, which share the keys and
values that cross-attention has of it: these are computed once. A program
decodes some steps of all targets; then the host takes out those that have
ended, and in their place begins the next target of the source, or the next
source, so that few targets wait for the longest. Sources of like length share
slots of one static length; where there are few, all share the longest, and no
more slots than a power of two that holds them.

The random numbers of a target are a function of the seed, its source's number,
its own, and the step; and all programs have as many rows on any number of
devices, each computed alone. So what is written does not depend on other texts,
their order, or the number of devices, except by rounding where there are few.

Shapes: B slots of a device, L source tokens, n targets of a slot, T most tokens
of a target.
"""

from collections.abc import Iterator
import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import numpy as np

from dualenc_jax.data.text.ragged import Ragged
from dualenc_jax.data.text.tokenizer import EOS
from dualenc_jax.models import Seq2Seq
from dualenc_jax.parallel.partitioning import Partitioner
from dualenc_jax.pipelines.generation.programs import Programs, State
from dualenc_jax.pipelines.generation.sampling import Sampling

# Static lengths of sources.
LENGTHS = 32, 64, 96, 128, 192, 256, 384, 512
# Targets that a device decodes at once.
_ON_CPU, _ON_ACCELERATOR = 64, 1024
# Tokens of sources whose keys and values a device holds.
_SOURCES = 2**16
# Times the slots that few sources fill at most.
_FEW = 2


class Text(NamedTuple):
  """A text that was written for a source.

  Attributes:
    source: number of the source in the call.
    number: number of the text among the source's, from 0.
    tokens: int32, without EOS.
    log_probability: sum over its tokens, EOS included, by the model.
    ended: whether it ends with EOS; else it was cut.
  """

  source: int
  number: int
  tokens: np.ndarray
  log_probability: float
  ended: bool


class Writer:
  """A model, compiled for slots of a few lengths.

  Attributes:
    model: the encoder-decoder.
    targets: number of targets that a device decodes at once.
  """

  def __init__(
      self,
      model: Seq2Seq,
      partitioner: Partitioner,
      batch_size: int | None = None,
  ):
    """Compiles when first called; slots go over the mesh's data axis.

    `batch_size` is the number of targets that a device decodes at once; None
    for 64 on a CPU, 1,024 elsewhere.
    """
    self.model = model
    self._partitioner = partitioner
    platform = partitioner.mesh.devices.flat[0].platform
    usual = _ON_CPU if platform == 'cpu' else _ON_ACCELERATOR
    self.targets = batch_size or usual

  def write(
      self,
      params: Any,
      sources: Ragged,
      numbers: np.ndarray,
      count: int,
      sampling: Sampling,
      length: int = 64,
      seed: int = 0,
  ) -> Iterator[Text]:
    """Yields `count` texts of each source, as they are done.

    Args:
      params: the model's parameters.
      sources: tokens of the sources, each with EOS, `LENGTHS[-1]` at most.
      numbers: uint64 [N], of the sources: with `seed` they determine the random
        numbers, so that a source of the same number has the same texts.
      count: texts of each.
      sampling: how tokens are drawn.
      length: T, most tokens of a text, EOS included.
      seed: 0 or more.
    """
    bucket = np.searchsorted(LENGTHS, sources.lengths)
    targets = min(count, self.targets)
    few = 1 << (len(bucket) - 1).bit_length()
    longest = bucket.max(initial=0)
    if few <= _FEW * self._most_slots(LENGTHS[longest], targets):
      bucket[:] = longest
    else:
      few = self.targets
    for i in np.unique(bucket).tolist():
      slots = min(self._most_slots(LENGTHS[i], targets), few)
      programs = self._programs(slots, LENGTHS[i], targets, length, sampling)
      yield from _Slots(programs, params, count, seed).run(
          sources, np.flatnonzero(bucket == i), numbers
      )

  def _most_slots(self, source_length: int, targets: int) -> int:
    return max(min(self.targets // targets, _SOURCES // source_length), 1)

  @functools.cache
  def _programs(
      self, slots: int, source_length: int, targets: int, *args: Any
  ) -> Programs:
    return Programs(
        self.model, self._partitioner, slots, source_length, targets, *args
    )


@dataclasses.dataclass
class _Slots:
  """The host's bookkeeping: the targets in the slots, and the next sources."""

  programs: Programs
  params: Any
  count: int
  seed: int

  def run(
      self, sources: Ragged, rows: np.ndarray, numbers: np.ndarray
  ) -> Iterator[Text]:
    p = self.programs
    everywhere = p.devices * p.slots
    # By slot: its source, -1 for none, and the number of its next target. By
    # target: its number among those of its source, -1 for none.
    held = np.full(everywhere, -1)
    following = np.zeros(everywhere, np.int64)
    target = np.full((everywhere, p.targets), -1)
    waiting = 0
    state = p.empty(self.params)
    while True:
      free = np.flatnonzero(held < 0)
      enough = len(free) >= min(p.devices * p.entered, len(rows) - waiting)
      if waiting < len(rows) and enough:
        state, taken = self._enter(state, free, sources, rows[waiting:])
        held[taken] = rows[waiting : waiting + len(taken)]
        following[taken] = 0
        waiting += len(taken)
        if len(taken) < len(free) and waiting < len(rows):
          continue
      begun = np.zeros_like(target, bool)
      for slot in np.flatnonzero(held >= 0).tolist():
        idle = np.flatnonzero(target[slot] < 0)
        idle = idle[: self.count - following[slot]]
        begun[slot, idle] = True
        target[slot, idle] = following[slot] + np.arange(len(idle))
        following[slot] += len(idle)
      if begun.any():
        own = np.maximum(held, 0)
        keys = _keys(self.seed, numbers[own], np.maximum(target, 0))
        state = p.begin(state, p.put(begun), p.put(keys))
      if (target < 0).all():
        return
      state = p.decode(self.params, state)
      fetched = state.active, state.written, state.positions
      active, written, positions = map(np.asarray, fetched)
      chances = np.asarray(state.log_probability)
      for slot, i in zip(*np.nonzero(~active & (target >= 0))):
        tokens = written[slot, i, : positions[slot, i]]
        ended = tokens[-1] == EOS
        yield Text(
            int(held[slot]),
            int(target[slot, i]),
            (tokens[:-1] if ended else tokens).copy(),
            float(chances[slot, i]),
            bool(ended),
        )
        target[slot, i] = -1
      held[(target < 0).all(axis=1) & (following >= self.count)] = -1

  def _enter(
      self,
      state: State,
      free: np.ndarray,
      sources: Ragged,
      rows: np.ndarray,
  ) -> tuple[State, np.ndarray]:
    """Puts the next sources into free slots, which it returns."""
    p = self.programs
    tokens = np.zeros((p.devices, p.entered, p.source_length), np.int32)
    places = np.full((p.devices, p.entered), p.slots, np.int32)
    taken: list[int] = []
    # The last sources are divided among all devices.
    share = min(p.entered, -(-len(rows) // p.devices))
    for device in range(p.devices):
      own = free[free // p.slots == device][:share]
      own = own[: max(len(rows) - len(taken), 0)]
      some = rows[len(taken) : len(taken) + len(own)]
      tokens[device, : len(own)] = sources.padded(some, p.source_length)
      places[device, : len(own)] = own % p.slots
      taken += own.tolist()
    state = p.enter(
        self.params,
        state,
        p.put(tokens.reshape(-1, p.source_length)),
        p.put(places.reshape(-1)),
    )
    return state, np.array(taken)


def _keys(
    seed: int, numbers: np.ndarray, targets: np.ndarray
) -> np.ndarray:
  """Keys uint32 [B, n, 2] of targets [B, n] of sources numbered uint64 [B]."""
  halves = np.stack([numbers & 0xFFFFFFFF, numbers >> 32]).astype(np.uint32)
  return np.asarray(
      _folded(np.uint32(seed), halves, targets.astype(np.uint32))
  )


@jax.jit
def _folded(seed, halves, targets):
  """See `_keys`; `halves` of the numbers, uint32 [2, B]."""
  fold = jax.random.fold_in

  def of_source(low, high, targets):
    key = fold(fold(jax.random.key(seed), low), high)
    return jax.vmap(lambda target: fold(key, target))(targets)

  return jax.random.key_data(jax.vmap(of_source)(*halves, targets))
