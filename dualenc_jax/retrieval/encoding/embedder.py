"""Flax models over many texts on the mesh: towers, scorers, likelihoods.

Chunks of texts go over the data axis. Devices on the model axis share a chunk,
and their number does show in the last bits.
"""

from collections.abc import Callable, Iterator
import functools
from typing import Any, Self

from flax import linen as nn, traverse_util
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
import numpy as np

from dualenc_jax.data.text.ragged import lengths_to_offsets, Pool, Ragged
from dualenc_jax.models import DualEncoder, model_params, Seq2Seq
from dualenc_jax.models.seq2seq import token_losses
from dualenc_jax.parallel.partitioning import Partitioner
from dualenc_jax.retrieval.encoding import tower_digest, towers
from dualenc_jax.utils.memo import keep_by_value

# The logits of all target tokens are much larger than the output of an encoder,
# so a device has fewer rows at once.
_FEWER = 8


@keep_by_value
def _program(
    model: nn.Module, partitioner: Partitioner, tree: Any, leaves: tuple
) -> Callable[..., jax.Array]:
  """Runs a method of the model on a chunk for each device of the data axis.

  It is made once for equal models on equal shardings, `leaves` of a `tree`, so
  that another checkpoint of a model is read without compiling again.
  """
  # A chunk has no data axis.
  rules = [
      (name, None if axis == 'data' else axis)
      for name, axis in partitioner.logical_rules
  ]

  @functools.partial(
      jax.jit,
      static_argnums=0,
      in_shardings=(jax.tree.unflatten(tree, leaves), partitioner.rows),
      out_shardings=partitioner.replicated,
  )
  def encode(method, params, inputs):
    """Chunks for each device of the data axis: [n, R, ...] -> [n, R, ...]."""

    def encode_chunk(params, inputs):
      with nn.logical_axis_rules(rules):
        chunk = model.apply(
            {'params': params}, *(x[0] for x in inputs), method=method
        )
      return chunk[None]

    with partitioner.scope():
      return jax.shard_map(
          encode_chunk,
          mesh=partitioner.mesh.abstract_mesh,
          axis_names={'data'},
          in_specs=(PartitionSpec(), PartitionSpec('data')),
          out_specs=PartitionSpec('data'),
      )(params, inputs)

  return encode


class CompiledModel:
  """A model whose methods map tokens [R, L] to [R, ...], compiled.

  Attributes:
    shapes: of chunks; others may be set before the first call.
  """

  def __init__(
      self,
      model: nn.Module,
      partitioner: Partitioner,
      param_shardings: Any,
      batch_size: int,
  ):
    """Compiles when first called.

    Args:
      model: the model.
      partitioner: the mesh; chunks go over its data axis, over which no
        parameter stays sharded.
      param_shardings: shardings of the parameters, without those of the loss.
      batch_size: most rows of a chunk, rounded down to a power of two.
    """
    self.model = model
    self._partitioner = partitioner
    self._batch_size = batch_size
    platform = partitioner.mesh.devices.flat[0].platform
    self.shapes = towers.CPU if platform == 'cpu' else towers.ACCELERATOR
    leaves, tree = jax.tree.flatten(param_shardings)
    self._encode = _program(model, partitioner, tree, tuple(leaves))

  @classmethod
  def for_params(
      cls, model: Any, params: Any, partitioner: Partitioner,
      batch_size: int = 256, **options: Any,
  ) -> Self:
    """Makes one for parameters, maybe abstract, on the shardings of these."""
    shardings = jax.tree.map(lambda leaf: leaf.sharding, model_params(params))
    return cls(model, partitioner, shardings, batch_size, **options)

  def batches(
      self,
      method: str | Callable[..., Any],
      params: Any,
      tokens: Ragged,
      rows: np.ndarray | None = None,
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Runs any method or function of the model; see `towers.Towers.batches`."""
    program = functools.partial(self.run, method, params)
    return self.run_batches(program, tokens, rows)

  def run(
      self, method: str | Callable[..., Any], params: Any, *inputs: np.ndarray
  ) -> jax.Array:
    """Runs a method on a chunk for each device, [n, R, ...] -> [n, R, ...]."""
    chunks = tuple(
        jax.make_array_from_callback(
            x.shape, self._partitioner.rows, x.__getitem__
        )
        for x in inputs
    )
    return self._encode(method, params, chunks)

  def run_batches(
      self, program: Callable[[np.ndarray], Any], tokens: Ragged,
      rows: np.ndarray | None = None,
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Runs a program of chunks of tokens; see `towers.batches`."""
    return towers.batches(
        program,
        tokens,
        self._batch_size,
        self.shapes,
        rows,
        self._partitioner.mesh.shape['data'],
    )


class Embedder(CompiledModel, towers.Towers):
  """The two towers of a dual encoder."""

  model: DualEncoder

  @property
  def dim(self) -> int:
    return self.model.projection.features

  def digest(self, params: Any, tower: str) -> dict[str, str]:
    tensors = tower_digest.device_tensors(
        traverse_util.flatten_dict(params, sep='/')
    )
    return tower_digest.digest(tensors, self.model, tower)


class Scorer(CompiledModel):
  """A cross-encoder that scores joined texts of a query and a passage."""

  def scores(self, params: Any, tokens: Ragged) -> np.ndarray:
    """Logits of n texts, float32 [n]."""
    return towers.scatter(
        np.empty(len(tokens), np.float32),
        self.batches('__call__', params, tokens),
    )


class Likelihood(CompiledModel):
  """Log-likelihoods of targets given their sources."""

  model: Seq2Seq

  def __init__(
      self,
      model: Seq2Seq,
      partitioner: Partitioner,
      param_shardings: Any,
      batch_size: int,
      length: int,
  ):
    """Compiles when first called; `length` is the most tokens of a target."""
    rows = max(batch_size // _FEWER, 1)
    super().__init__(model, partitioner, param_shardings, rows)
    self._length = length

    def measure(module: Seq2Seq, tokens: jax.Array) -> jax.Array:
      """Sums for rows of a padded target and its source: [R, L] -> [R, 2]."""
      targets, sources = tokens[:, :length], tokens[:, length:]
      logits = module(sources, targets)
      correct = (jnp.argmax(logits, axis=-1) == targets).astype(jnp.float32)
      real = targets != 0
      both = jnp.stack([-token_losses(logits, targets), correct], axis=1)
      return jnp.sum(jnp.where(real[:, None], both, 0.0), axis=2)

    self._measure = measure

  def __call__(
      self,
      params: Any,
      targets: Ragged,
      sources: Ragged,
      pairs: np.ndarray,
  ) -> tuple[np.ndarray, np.ndarray]:
    """Computes log-likelihoods of pairs, int64 [n, 2], of target and source.

    Returns:
      float32 [n] each: natural log-probabilities, summed over the tokens of the
      target, and the number of these that are the most probable.
    """
    written, read = (Pool([(rows, {})]) for rows in (targets, sources))
    offsets = lengths_to_offsets(self._length + read.lengths(pairs[:, 1]))
    values = np.zeros(offsets[-1], np.int32)
    written.copy(pairs[:, 0], values, offsets[:-1])
    read.copy(pairs[:, 1], values, offsets[:-1] + self._length)
    found = towers.scatter(
        np.empty((len(pairs), 2), np.float32),
        self.batches(self._measure, params, Ragged(values, offsets)),
    )
    return found[:, 0], found[:, 1]
