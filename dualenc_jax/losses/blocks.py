"""Blocks of negatives, and their log-partitions: the primitive of every loss.

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

from collections.abc import Iterable, Mapping, Sequence
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh

from dualenc_jax.losses import ring, score_matrix
from dualenc_jax.losses.loss import Embeddings, positive_similarity, Similarity
from dualenc_jax.losses.score_matrix import (
  Hardness,
  Matrix,
  NegativeMask,
  Partition,
)
from dualenc_jax.parallel.accelerators import current_backend, shared_mesh
from dualenc_jax.utils.errors import UserError

DENSE_BYTES = 2**25
# Scores of a larger tile leave the cache of a CPU; a smaller one leaves an
# accelerator idle (not measured yet).
LARGEST_TILE = {'cpu': 2048, 'gpu': 4096, 'tpu': 4096}


class Block(NamedTuple):
  """The negatives of one tower's anchors among one tower's candidates.

  `anchors` is 'query' or 'passage'; `candidates` may also be 'negatives', the
  hard negatives.
  """

  anchors: str
  candidates: str

  def size(self, batch_size: int, num_negatives: int) -> int:
    """Returns the number of an anchor's negatives before any is masked."""
    if self.candidates == 'negatives':
      return batch_size * num_negatives
    return batch_size - 1


QUERY_PASSAGES = Block('query', 'passage')
QUERY_QUERIES = Block('query', 'query')
QUERY_HARD = Block('query', 'negatives')
PASSAGE_QUERIES = Block('passage', 'query')
PASSAGE_PASSAGES = Block('passage', 'passage')
PASSAGE_HARD = Block('passage', 'negatives')

# The rows of a matrix stay where they are and its columns travel, so the hard
# negatives, of which there are most, come first.
_ORDER = ('negatives', 'query', 'passage')


def partitions(
    batch: Embeddings, blocks: Iterable[Block], similarity: Similarity,
    totals: bool = False, hardness: Mapping[Block, Hardness] | None = None,
    teacher_temperature: float | None = None,
) -> Mapping[Block, Partition]:
  """Computes the log-partitions [B] of blocks.

  `totals` asks for the sums of the scores, too; `hardness` are weights of hard
  candidates, by block, none of it within a tower. `teacher_temperature` asks
  for what compares scores with those of `batch.teacher`, which it divides;
  candidates without a vector are masked out then, and no others by the teacher.
  The devices of the ring are
  those of the mesh in scope (`jax.set_mesh` or, under `jit`,
  `jax.sharding.use_abstract_mesh`, which `Partitioner.scope` enters): rows and
  columns are sharded over its axis `data`, or over all its axes where these
  divide them. Without a mesh in scope the ring takes the arrays to be on one
  device, and scores them there tile by tile. It has gradients in reverse mode,
  of the first order.
  """
  if not batch.num_negatives:
    blocks = [b for b in blocks if b.candidates != 'negatives']
  blocks, hardness = set(blocks), hardness or {}
  # Both directions of a matrix share its scores. In this order fewer gradients
  # wait for the next matrix.
  pairs: list[Any] = sorted(
      {tuple(sorted(block, key=_ORDER.index)) for block in blocks},
      key=lambda pair: [_ORDER.index(tower) for tower in pair], reverse=True,
  )
  matrices = [
      Matrix(
          pair[0], pair[1], aligned='negatives' not in pair,
          of_rows=pair in blocks,
          of_columns=pair[::-1] in blocks and pair[0] != pair[1],
          row_hardness=hardness.get(pair),
          column_hardness=hardness.get(pair[::-1]),
      ) for pair in pairs
  ]
  vectors = {
      name: getattr(batch, name).reshape(-1, batch.query.shape[-1])
      for pair in pairs for name in pair
  }
  vectors = {name: x.astype(jnp.float32) for name, x in vectors.items()}
  distils = teacher_temperature is not None
  masks = [
      _masks(batch, matrix, similarity, teacher_temperature)
      for matrix in matrices
  ]
  temperature = jnp.asarray(similarity.temperature, jnp.float32)
  mesh = shared_mesh()
  has_teacher = any(rows.teacher is not None for rows, _ in masks)
  scored = matrices * (2 if has_teacher else 1)
  if _is_dense(similarity.implementation, scored, vectors, mesh):
    both = score_matrix.dense_log_partitions(
        matrices, totals, distils, vectors, masks, temperature
    )
  else:
    axes = _axes(mesh, [x.shape[0] for x in vectors.values()])
    shards = ring.num_devices(mesh, axes)
    tile = similarity.tile or _largest_tile(
        min(x.size for x in vectors.values()) // shards
    )
    both = ring.log_partitions(
        ring.Ring(mesh, axes, tile, totals, distils), tuple(matrices),
        vectors, masks, temperature,
    )
  result: dict[Block, Any] = {}
  for pair, (of_rows, of_columns) in zip(pairs, both, strict=True):
    result[Block(*pair[::-1])] = of_columns
    result[Block(*pair)] = of_rows
  return {block: result[block] for block in blocks}


def _is_dense(
    implementation: str, matrices: Sequence[Matrix],
    vectors: Mapping[str, jax.Array], mesh: AbstractMesh | None,
) -> bool:
  if implementation != 'auto':
    return implementation == 'dense'
  scores = sum(
      vectors[m.rows].shape[0] * vectors[m.columns].shape[0] for m in matrices
  )
  # XLA shards the rows of a matrix over the data axis alone.
  devices = mesh.shape.get('data', 1) if mesh else 1
  return 4 * scores < DENSE_BYTES * devices


def _masks(
    batch: Embeddings, matrix: Matrix, similarity: Similarity,
    teacher_temperature: float | None,
) -> tuple[NegativeMask, NegativeMask]:
  """Returns the masks of rows and columns of the matrix of two towers."""
  pair = matrix.rows, matrix.columns
  # Masked out: another pair that shares the query or the passage; in the
  # anchor's own tower the same text; a hard negative that is the passage.
  if pair == ('query', 'passage'):
    ids: Any = pair, pair
  elif 'negatives' in pair:
    ids = ('negative',), ('passage',)
  else:
    ids = pair[:1], pair[:1]
  valid, texts, positives, limits, teacher, guards = {}, {}, {}, {}, {}, {}
  if batch.negative_valid is not None:
    valid['negatives'] = batch.negative_valid.reshape(-1)
  masked = similarity.mask_duplicates
  if masked and batch.positive_ids is not None:
    several = batch.positive_ids[..., 0], batch.positive_ids[..., 1]
    positives = {'query': several, 'passage': several}
    texts = {
        tower: _ids(batch, name)
        for tower, name in (('passage', 'passage'), ('negatives', 'negative'))
        if tower in pair
    }
  if similarity.false_negative_margin is not None:
    cosines = jax.lax.stop_gradient(positive_similarity(batch))
    limit = cosines + similarity.false_negative_margin
    limit /= jax.lax.stop_gradient(similarity.temperature)
    limits = {'query': limit, 'passage': limit}
  if teacher_temperature is not None or similarity.guard_margin is not None:
    vectors = batch.check_teacher()
    teacher = {x: vectors[x].reshape(-1, vectors[x].shape[-1]) for x in pair}
  if teacher_temperature is not None:
    for tower, x in teacher.items():
      known = jnp.any(x != 0.0, axis=1)
      valid[tower] = known & valid.get(tower, jnp.ones_like(known))
  elif similarity.guard_margin is not None:
    guard = _guard(batch, similarity)
    guards = {'query': guard, 'passage': guard}
  rows, columns = (
      NegativeMask(
          tuple(_ids(batch, name) for name in names if masked),
          valid.get(tower), texts.get(tower), positives.get(tower),
          limits.get(tower),
          _pair_numbers(batch, tower) if matrix.needs_pairs else None,
          teacher.get(tower), guards.get(tower),
      )
      for tower, names in zip(pair, ids, strict=True)
  )
  if teacher_temperature is not None:
    assert rows.teacher is not None
    rows = rows._replace(teacher=rows.teacher / teacher_temperature)
  return rows, columns


def _guard(batch: Embeddings, similarity: Similarity) -> jax.Array:
  """Returns the teacher's greatest score of a negative of each pair, [B]."""
  query, passage = batch.teacher['query'], batch.teacher['passage']
  positive = jnp.sum(query * passage, axis=1)
  margin: Any = similarity.guard_margin
  if similarity.guard_strategy == 'relative':
    margin *= jnp.abs(positive)
  known = jnp.any(query != 0.0, axis=1) & jnp.any(passage != 0.0, axis=1)
  return jnp.where(known, positive - margin, jnp.inf)


def _pair_numbers(batch: Embeddings, tower: str) -> jax.Array:
  """Returns the number of the pair of each row of a tower, uint32 [A]."""
  numbers = jnp.arange(batch.query.shape[0], dtype=jnp.uint32)
  if tower == 'negatives':
    numbers = jnp.repeat(numbers, batch.num_negatives)
  return numbers


def _ids(batch: Embeddings, text: str) -> tuple[jax.Array, jax.Array]:
  ids = getattr(batch, f'{text}_ids')
  if ids is None:
    raise UserError(
        f'mask_duplicates is on but the batch has no {text}_ids. Give the'
        ' fingerprints of the tokens, or set mask_duplicates = False.'
    )
  # Word by word: XLA on the CPU compares those eight times as fast.
  return ids[..., 0].reshape(-1), ids[..., 1].reshape(-1)


def _largest_tile(shard: int) -> int:
  """Returns the side of the largest tile for a shard of so many numbers.

  It is a power of two up to `LARGEST_TILE`; a tile of scores takes no more
  memory than the shard.
  """
  backend = current_backend()
  side = 2 ** (math.isqrt(shard).bit_length() - 1)
  if backend == 'tpu' and 2 * side * side <= shard:
    side *= 2
  return min(side, LARGEST_TILE.get(backend, LARGEST_TILE['gpu']))


def _axes(mesh: AbstractMesh | None, sizes: Sequence[int]) -> tuple[str, ...]:
  """Returns the mesh axes that the rows of all vectors are sharded over."""
  if mesh is None:
    return ()
  if all(size % mesh.size == 0 for size in sizes):
    return mesh.axis_names
  devices = mesh.shape.get('data', mesh.size)
  for size in sizes:
    if size % devices:
      raise UserError(
          f'The loss of {size} rows does not divide among the {devices} devices'
          ' on the data axis of the mesh. Make the global batch a multiple of'
          ' them.'
      )
  return ('data',)
