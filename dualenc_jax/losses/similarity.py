"""Settings of scores, and `log_partitions`, the primitive of every loss.

One matrix of scores, all rows against all columns, gives the partition of each
row over its columns and that of each column over its rows. Two implementations
agree to rounding:

  dense  holds the matrices; XLA decides where they live.
  ring   holds a tile: the columns travel from device to device.

`auto` takes dense while all matrices of a loss together take less than
`DENSE_BYTES` a device. There dense is up to 1.7 times as fast, having no score
to compute twice, needs at most 64 MiB, two copies of the scores, and a ring of
many devices would wait for its messages. From there its memory grows with the
square of the batch and it takes the ring, whose memory does not.
benchmarks/RESULTS.md has the measurements.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import math
import numbers
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType

from dualenc_jax.losses import ring, score_matrix
from dualenc_jax.losses.score_matrix import Matrix, Partition, Tags
from dualenc_jax.parallel.accelerators import backend_in_scope
from dualenc_jax.utils.errors import expect, UserError

IMPLEMENTATIONS = ('auto', 'dense', 'ring')
DENSE_BYTES = 2**25
# Scores of a larger tile leave the cache of a CPU; a smaller one leaves an
# accelerator idle (not measured yet).
LARGEST_TILE = {'cpu': 2048, 'gpu': 4096, 'tpu': 4096}


def check_finite(name: str, value: float) -> None:
  is_finite = isinstance(value, numbers.Real) and math.isfinite(value)
  expect(is_finite, name, value, 'a finite number')


def check_positive(name: str, value: float) -> None:
  number = isinstance(value, numbers.Real) and not isinstance(value, bool)
  above = number and math.isfinite(value) and value > 0.0
  expect(above, name, value, 'a finite number above 0')


def check_bool(name: str, value: bool) -> None:
  expect(type(value) is bool, name, value, 'True or False')


def check_one_of(name: str, value: str, known: Sequence[str]) -> None:
  expect(value in known, name, value, f'one of {", ".join(map(repr, known))}')


@dataclasses.dataclass(frozen=True)
class LearnableTemperature:
  """A temperature learnt in log space and clamped.

  At a bound and beyond it the gradient is 0 where a step along it would lead
  further out, and that of the bound where it leads back. Adafactor's steps are
  proportional to the parameter: near temperature 1, whose log is 0, small.
  """

  initial: float = 0.05
  minimum: float = 0.005
  maximum: float = 1.0

  def __post_init__(self):
    for field in ('initial', 'minimum', 'maximum'):
      check_positive(f'LearnableTemperature.{field}', getattr(self, field))
    expect(
        self.minimum <= self.initial <= self.maximum,
        'LearnableTemperature.initial', self.initial,
        f'a value from minimum {self.minimum} to maximum {self.maximum}',
    )

  def init(self) -> dict[str, jax.Array]:
    """The parameter: {'log_temperature': float32 []}."""
    return {'log_temperature': jnp.asarray(math.log(self.initial), jnp.float32)}

  def __call__(self, params: Mapping[str, Any]) -> jax.Array:
    """The clamped temperature, float32 []."""
    low, high = math.log(self.minimum), math.log(self.maximum)
    return jnp.exp(_clamped(params['log_temperature'], low, high))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _clamped(x: jax.Array, low: float, high: float) -> jax.Array:
  """Clips x [] to the bounds; gradients that lead back to them pass."""
  return jnp.clip(x, low, high)


def _gradient_of_clamped(low, high, x, gradient):
  # A step is against the gradient.
  outwards = (x <= low) & (gradient > 0.0) | (x >= high) & (gradient < 0.0)
  return (jnp.where(outwards, 0.0, gradient),)


_clamped.defvjp(
    lambda x, low, high: (_clamped(x, low, high), x), _gradient_of_clamped
)


@dataclasses.dataclass(frozen=True)
class Similarity:
  """s(a, b) = cos(a, b) / temperature, and how a matrix of them is computed.

  The caller of a loss passes it, so that the same settings reach every loss, a
  user's own, too.

  Duplicates are known by the fingerprint of their tokens. With
  `mask_duplicates`, pair j is no negative for pair i, in either direction, if
  q_j = q_i, p_j = p_i, or p_j is another labelled passage of q_i (a positive,
  not a negative); a hard negative that is any passage of q_i is masked out; and
  a same-tower negative (SamToNe, PAIR) is masked out when it equals the anchor,
  or, among passages, when one of the two is labelled for the other's query.

  Attributes:
    temperature: a number above 0, as an array [] if it may be, or
      `LearnableTemperature`; a loss gets the number, or the temperature as
      trained so far, float32 [].
    implementation: 'dense' holds matrices of scores, B x B; 'ring' never does;
      'auto' chooses by their size. The value is the same to rounding. In code
      outside the library the mesh that the batch is sharded over must be set by
      `jax.set_mesh` or `Partitioner.scope`: without it the ring takes the batch
      to be on one device.
    tile: the most rows and columns that the ring scores at once; None for the
      default of `log_partitions`.
    false_negative_margin: a candidate whose cosine with the anchor is above
      that of the anchor's positive by more than this is taken for a positive
      that nobody has labelled, and masked out (Solatorio 2024; 0.1 in
      Qwen3-Embedding, 2025). None masks none.
    check_norms: `evaluate` also returns `norm_error`, the largest distance of
      an embedding's norm from one; a training run stops where it is above
      `loss.NORM_TOLERANCE`. It is meant for models of a user's own.
  """

  temperature: Any = 0.01
  implementation: str = 'auto'
  tile: int | None = None
  mask_duplicates: bool = True
  false_negative_margin: float | None = None
  check_norms: bool = False

  def __post_init__(self):
    temperature = self.temperature
    if isinstance(temperature, jax.Array):
      one = temperature.shape == ()
      expect(one, 'Similarity.temperature', temperature, 'one number')
      known = not isinstance(temperature, jax.core.Tracer)
      temperature = float(temperature) if known else 1.0
    if not isinstance(temperature, LearnableTemperature):
      check_positive('Similarity.temperature', temperature)
    for field in ('mask_duplicates', 'check_norms'):
      check_bool(f'Similarity.{field}', getattr(self, field))
    check_one_of(
        'Similarity.implementation', self.implementation, IMPLEMENTATIONS
    )
    if self.false_negative_margin is not None:
      check_finite(
          'Similarity.false_negative_margin', self.false_negative_margin
      )
    tile = self.tile
    expect(
        tile is None or type(tile) is int and tile > 0, 'Similarity.tile', tile,
        'a whole number above 0, or None',
    )

  def init(self) -> dict[str, jax.Array]:
    """The parameter of a learnt temperature; {} for a number."""
    if isinstance(self.temperature, LearnableTemperature):
      return self.temperature.init()
    return {}

  def at(self, params: Mapping[str, Any]) -> 'Similarity':
    """A copy with the temperature as learnt so far."""
    if isinstance(self.temperature, LearnableTemperature):
      return dataclasses.replace(self, temperature=self.temperature(params))
    return self


def log_partitions(
    matrices: Sequence[Matrix], vectors: Mapping[str, jax.Array],
    tags: Sequence[tuple[Tags, Tags]], temperature: jax.Array | float,
    totals: bool = False, implementation: str = 'auto', tile: int | None = None,
    precision: jax.lax.PrecisionLike = 'highest',
) -> list[tuple[Partition | None, Partition | None]]:
  """Log-partitions of the rows and of the columns of matrices of scores.

  Arrays are global. The devices of the ring are those of the mesh in scope
  (`jax.set_mesh` or, under `jit`, `jax.sharding.use_abstract_mesh`, which
  `Partitioner.scope` enters): rows and columns are sharded over its axis
  `data`, or over all its axes where these divide them. Without a mesh in scope
  the ring takes the arrays to be on one device, and scores them there tile by
  tile. It has gradients in reverse mode, of the first order.

  Vectors are [A, D]; `totals` asks for the sums of the scores, too. The ring
  scores at most `tile` rows and columns at once: by default a power of two up
  to `LARGEST_TILE`, such that a tile of scores takes no more memory than a
  device's shard of vectors. At temperature 0.01 a bfloat16 cosine is off by
  about 0.4 logit, hence the precision. Partitions that are not wanted are None;
  in a symmetric matrix the rows' are the columns'.
  """
  vectors = {name: x.astype(jnp.float32) for name, x in vectors.items()}
  temperature = jnp.asarray(temperature, jnp.float32)
  mesh = mesh_in_scope()
  if implementation == 'auto':
    scores = sum(
        vectors[m.rows].shape[0] * vectors[m.columns].shape[0] for m in matrices
    )
    # XLA shards the rows of a matrix over the data axis alone.
    limit = DENSE_BYTES * (mesh.shape.get('data', 1) if mesh else 1)
    implementation = 'ring' if 4 * scores >= limit else 'dense'
  if implementation == 'dense':
    return score_matrix.dense_log_partitions(
        matrices, totals, precision, vectors, tags, temperature
    )
  axes = _axes(mesh, [x.shape[0] for x in vectors.values()])
  shards = ring.num_devices(mesh, axes)
  smallest = min(x.size for x in vectors.values()) // shards
  return ring.log_partitions(
      ring.Ring(mesh, axes, tile or _tile(smallest), totals, precision),
      tuple(matrices), vectors, list(tags), temperature,
  )


def mesh_in_scope() -> AbstractMesh | None:
  """The mesh in scope, if there are several devices to share a matrix."""
  mesh = jax.sharding.get_abstract_mesh()
  # Under a `shard_map` of the caller's the arrays are those of one device.
  alone = mesh.size == 1 or AxisType.Manual in mesh.axis_types
  return None if mesh.empty or alone else mesh


def _tile(shard: int) -> int:
  """The side of the largest tile that a shard of so many numbers allows."""
  backend = backend_in_scope()
  side = 2 ** (math.isqrt(shard).bit_length() - 1)
  if backend == 'tpu' and 2 * side * side <= shard:
    side *= 2
  return min(side, LARGEST_TILE.get(backend, LARGEST_TILE['gpu']))


def _axes(mesh: AbstractMesh | None, sizes: Sequence[int]) -> tuple[str, ...]:
  """The mesh axes that the rows of all vectors are sharded over."""
  if mesh is None:
    return ()
  if all(size % mesh.size == 0 for size in sizes):
    return mesh.axis_names
  if 'data' not in mesh.axis_names:
    raise UserError(
        f"The mesh in scope has the axes {', '.join(mesh.axis_names)}, whose"
        f' {mesh.size} devices do not divide the {sizes} rows of the loss. Give'
        ' the axis that shards the rows the name data.'
    )
  for size in sizes:
    if size % mesh.shape['data']:
      raise UserError(
          f'The loss of {size} rows does not divide among the'
          f' {mesh.shape["data"]} devices on the data axis of the mesh. Make'
          ' the global batch a multiple of them.'
      )
  return ('data',)
