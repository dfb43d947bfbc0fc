"""A T5 that writes several texts of each source, on the mesh.

A device has B slots, each of a source and n targets, which share the keys and
values that cross-attention has of it: these are computed once. A program
decodes some steps of all targets; then the host takes out those that have
ended, and in their place begins the next target of the source, or the next
source, so that few targets wait for the longest. Sources of like length share
slots of one static length.

The random numbers of a target are a function of the seed, its source's number,
its own, and the step; and all programs have as many rows on any number of
devices, each computed alone. So what is written does not depend on other texts,
their order, or the number of devices.

Shapes: B slots of a device, L source tokens, n targets of a slot, T most tokens
of a target.
"""

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import functools
from typing import Any, NamedTuple

from flax import linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
import numpy as np

from dualenc_jax.generation.sampling import Sampling
from dualenc_jax.models import Seq2Seq
from dualenc_jax.models.t5_decoder import Cache
from dualenc_jax.parallel.partitioning import Partitioner
from dualenc_jax.text.ragged import Ragged
from dualenc_jax.text.tokenizer import EOS

# Static lengths of sources.
LENGTHS = 32, 64, 96, 128, 192, 256, 384, 512
# Steps of a program. Of ended targets half as many are wasted on average.
_STEPS = 8
# Targets that a device decodes at once.
_ON_CPU, _ON_ACCELERATOR = 64, 1024
# Slots are filled when so large a share of them is free.
_FREE = 4


class Text(NamedTuple):
  """What was written of a source.

  Attributes:
    source: its number among those of the call.
    number: of the target among the source's, from 0.
    tokens: int32, without EOS.
    log_probability: of all tokens, EOS included, by the model.
    ended: whether EOS ends it; else it was cut.
  """

  source: int
  number: int
  tokens: np.ndarray
  log_probability: float
  ended: bool


class State(NamedTuple):
  """The slots of all devices, leading axes over the data axis.

  Attributes:
    caches: of the layers, of B n rows and B rows.
    source_mask: bool [B, 1, L], where there is a token.
    keys: uint32 [B, n, 2], random keys of the targets.
    tokens: int32 [B, n], the last of each.
    positions: int32 [B, n], its place; from 0, the start.
    written: int32 [B, n, T], all of them.
    log_probability: float32 [B, n], of them.
    active: bool [B, n], False once EOS or the T-th is written.
  """

  caches: Sequence[Cache]
  source_mask: jax.Array
  keys: jax.Array
  tokens: jax.Array
  positions: jax.Array
  written: jax.Array
  log_probability: jax.Array
  active: jax.Array


class Writer:
  """A model, compiled for slots of a few lengths.

  Attributes:
    model: the encoder-decoder.
  """

  model: Seq2Seq

  def __init__(
      self,
      model: Seq2Seq,
      partitioner: Partitioner,
      batch_size: int | None = None,
  ):
    """Plans; compiles when first called.

    Args:
      model: the encoder-decoder.
      partitioner: the mesh; slots go over its data axis.
      batch_size: targets that a device decodes at once; None for 64 on a CPU,
        1,024 elsewhere.
    """
    self.model = model
    self._partitioner = partitioner
    platform = partitioner.mesh.devices.flat[0].platform
    usual = _ON_CPU if platform == 'cpu' else _ON_ACCELERATOR
    self._targets = batch_size or usual

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
    """Writes texts of each source.

    Args:
      params: the model's parameters.
      sources: tokens of the sources, each with EOS, `LENGTHS[-1]` at most.
      numbers: uint64 [N], of the sources: with `seed` they decide what is
        drawn, so that a source of the same number has the same texts.
      count: texts of each.
      sampling: how tokens are drawn.
      length: T, most tokens of a text, EOS included.
      seed: 0 or more.

    Yields:
      All texts, as they are done.
    """
    lengths = sources.lengths
    bucket = np.searchsorted(LENGTHS, lengths)
    for i, source_length in enumerate(LENGTHS):
      rows = np.flatnonzero(bucket == i)
      if not len(rows):
        continue
      targets = min(count, self._targets)
      programs = self._programs(source_length, targets, length, sampling)
      yield from _Slots(programs, params, count, seed).run(
          sources, rows, numbers
      )

  @functools.cache
  def _programs(
      self, source_length: int, targets: int, length: int, sampling: Sampling
  ) -> 'Programs':
    return Programs(
        self.model,
        self._partitioner,
        max(self._targets // targets, 1),
        source_length,
        targets,
        length,
        sampling,
    )


class Programs:
  """What runs on the devices, for slots of one shape.

  Attributes:
    devices: of the data axis.
    slots: B, of a device.
    entered: sources that a device takes in at once.
    source_length: L.
    targets: n.
    length: T.
  """

  def __init__(
      self,
      model: Seq2Seq,
      partitioner: Partitioner,
      slots: int,
      source_length: int,
      targets: int,
      length: int,
      sampling: Sampling,
  ):
    """For the arguments see `Writer` and the attributes."""
    self.devices = partitioner.mesh.shape['data']
    self.slots, self.targets, self.length = slots, targets, length
    self.source_length = source_length
    self.entered = max(slots // _FREE, 1)
    self._rows = partitioner.rows
    rules = [
        (name, None if axis == 'data' else axis)
        for name, axis in partitioner.logical_rules
    ]

    def apply(params, *args, method):
      with nn.logical_axis_rules(rules):
        return model.apply({'params': params}, *args, method=method)

    def empty(params):
      sources = jnp.zeros((slots, source_length), jnp.int32)
      caches = jax.eval_shape(
          lambda: apply(params, sources, length, targets, method='start')
      )
      caches = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), caches)
      ints = jnp.zeros((slots, targets), jnp.int32)
      return State(
          caches,
          jnp.zeros((slots, 1, source_length), bool),
          jnp.zeros((slots, targets, 2), jnp.uint32),
          ints,
          ints,
          jnp.zeros((slots, targets, length), jnp.int32),
          jnp.zeros((slots, targets), jnp.float32),
          jnp.zeros((slots, targets), bool),
      )

    def enter(params, state, sources, places):
      """Puts sources [m, L] into slots `places` [m]; those of B are none."""
      new = apply(params, sources, 1, 1, method='start')

      def put(old, own):
        return old.at[places].set(own, mode='drop')

      caches = [
          old._replace(
              source_keys=put(old.source_keys, own.source_keys),
              source_values=put(old.source_values, own.source_values),
          )
          for old, own in zip(state.caches, new, strict=True)
      ]
      mask = put(state.source_mask, (sources != 0)[:, None])
      return state._replace(caches=caches, source_mask=mask)

    def begin(state, begun, keys):
      """Begins targets [B, n] with random keys [B, n, 2]."""
      none = jnp.zeros_like(state.tokens)
      return state._replace(
          keys=jnp.where(begun[:, :, None], keys, state.keys),
          tokens=jnp.where(begun, none, state.tokens),
          positions=jnp.where(begun, none, state.positions),
          log_probability=jnp.where(begun, 0.0, state.log_probability),
          active=state.active | begun,
      )

    def decode(params, state):
      """Some steps of all targets, fewer where all have ended."""
      biases = apply(params, length, method='biases')
      place = jnp.arange(length, dtype=jnp.int32)[None, None]

      def step(carry):
        count, state = carry
        logits, caches = apply(
            params,
            state.tokens,
            state.caches,
            state.positions,
            biases,
            state.source_mask,
            method='step',
        )
        keys = jax.random.wrap_key_data(state.keys.reshape(-1, 2))
        keys = jax.vmap(jax.random.fold_in)(keys, state.positions.reshape(-1))
        drawn = sampling.draw(keys, logits.reshape(-1, logits.shape[-1]))
        tokens, chances = (x.reshape(slots, targets) for x in drawn)
        active, at = state.active, state.positions
        here = (place == at[:, :, None]) & active[:, :, None]
        state = state._replace(
            caches=caches,
            tokens=jnp.where(active, tokens, state.tokens),
            positions=at + active,
            written=jnp.where(here, tokens[:, :, None], state.written),
            log_probability=state.log_probability
            + jnp.where(active, chances, 0.0),
            active=active & (tokens != EOS) & (at + 1 < length),
        )
        return count + 1, state

      def goes_on(carry):
        return (carry[0] < _STEPS) & jnp.any(carry[1].active)

      return jax.lax.while_loop(goes_on, step, (jnp.int32(0), state))[1]

    def on_mesh(function: Callable[..., State], with_params: bool, arrays: int):
      own = PartitionSpec('data')
      params = [PartitionSpec()] if with_params else []
      specs = params + [own] * arrays

      @functools.partial(
          jax.jit,
          out_shardings=partitioner.rows,
          donate_argnums=len(params) if arrays else (),
      )
      def program(*args):
        with partitioner.scope():
          return jax.shard_map(
              function,
              mesh=partitioner.mesh.abstract_mesh,
              axis_names={'data'},
              in_specs=tuple(specs),
              out_specs=own,
          )(*args)

      return program

    self.empty = on_mesh(empty, True, 0)
    self.enter = on_mesh(enter, True, 3)
    self.begin = on_mesh(begin, False, 3)
    self.decode = on_mesh(decode, True, 1)

  def put(self, array: np.ndarray) -> jax.Array:
    """An array over the data axis."""
    return jax.make_array_from_callback(
        array.shape, self._rows, lambda i: array[i]
    )


@dataclasses.dataclass
class _Slots:
  """The host's part: which target is where, and what comes next.

  Attributes:
    programs: for these slots.
    params: of the model.
    count: texts of each source.
    seed: of what is drawn.
  """

  programs: Programs
  params: Any
  count: int
  seed: int

  def run(
      self, sources: Ragged, rows: np.ndarray, numbers: np.ndarray
  ) -> Iterator[Text]:
    """Writes texts of some sources; see `Writer.write`."""
    p = self.programs
    everywhere = p.devices * p.slots
    # Of each slot its source, -1 for none, and the next of its targets; of each
    # target which one it is, -1 for none.
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
      active, written, positions, chances = map(
          np.asarray,
          (
              state.active,
              state.written,
              state.positions,
              state.log_probability,
          ),
      )
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
    """Puts the next sources into free slots; returns which have one now."""
    p = self.programs
    tokens = np.zeros((p.devices, p.entered, p.source_length), np.int32)
    places = np.full((p.devices, p.entered), p.slots, np.int32)
    taken = []
    for device in range(p.devices):
      own = free[free // p.slots == device][: p.entered]
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
  """Random keys of targets [B, n] of sources with numbers uint64 [B].

  Returns:
    uint32 [B, n, 2].
  """
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
