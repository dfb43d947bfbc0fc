"""The compiled programs of generation: slots of sources and their targets.

Shapes: B slots of a device, L source tokens, n targets of a slot, T most tokens
of a target.
"""

from collections.abc import Callable, Sequence
import functools
from typing import NamedTuple

from flax import linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
import numpy as np

from dualenc_jax.data.text.tokenizer import EOS
from dualenc_jax.models import Seq2Seq
from dualenc_jax.models.t5_decoder import Cache
from dualenc_jax.parallel.partitioning import Partitioner
from dualenc_jax.pipelines.generation.sampling import Sampling

# Steps of a program. Half as many ended targets are wasted on average.
_STEPS = 8
# Slots are refilled once a quarter of them is free.
_FREE = 4


class State(NamedTuple):
  """The slots of all devices, leading axes over the data axis.

  Attributes:
    caches: keys and values of the layers, of B n and of B rows.
    source_mask: bool [B, 1, L], True at tokens.
    keys: uint32 [B, n, 2], random keys of the targets.
    tokens: int32 [B, n], the last token of each target.
    positions: int32 [B, n], its place; from 0, the start.
    written: int32 [B, n, T], all tokens.
    log_probability: float32 [B, n], their sum.
    active: bool [B, n], False once EOS or the T-th token is written.
  """

  caches: Sequence[Cache]
  source_mask: jax.Array
  keys: jax.Array
  tokens: jax.Array
  positions: jax.Array
  written: jax.Array
  log_probability: jax.Array
  active: jax.Array


class Programs:
  """Compiled programs for slots of one shape.

  Attributes:
    devices: size of the data axis.
    slots: B.
    entered: sources that a device takes in at once.
    source_length, targets, length: L, n and T.
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
    """The array over the data axis."""
    return jax.make_array_from_callback(
        array.shape, self._rows, lambda i: array[i]
    )
