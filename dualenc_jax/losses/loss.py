"""The input and the protocol of a loss, and functions that serve any loss."""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec
import numpy as np

from dualenc_jax.data import columns as columns_lib
from dualenc_jax.losses.similarity import Similarity
from dualenc_jax.utils.errors import UserError

Params = Mapping[str, Any]
# The loss, float32 [], and metrics, each float32 [].
Result = tuple[jax.Array, dict[str, jax.Array]]

VECTORS = 'query', 'passage', 'negatives'
# An embedding whose norm is off by more is not normalised: rounding makes it
# off by 1e-7, by 4e-3 in bfloat16.
NORM_TOLERANCE = 1e-2


class Embeddings(NamedTuple):
  """A global batch, embedded: row i of query and passage is pair i.

  B pairs, K hard negatives a query, D embedding dim. Ids are 64-bit
  fingerprints of the tokens as two uint32; None where they are unknown.

  Attributes:
    query: float32 [B, D], rows of norm one; so are passage [B, D] and negatives
      [B, K, D].
    query_ids: uint32 [B, 2]; of passages likewise, negative_ids [B, K, 2].
    negative_valid: bool [B, K], False where a query has fewer than K hard
      negatives; None if all are real.
    positive_ids: uint32 [B, P, 2], all labelled passages of a query but its
      own, which is repeated where there are fewer.
    columns: the other columns of the batch by name, see `data.columns`: [B] of
      pairs, [B, 1 + K] of passages and their hard negatives.
    step: optimizer steps taken so far, int32 []; None outside a train step.
  """

  query: jax.Array
  passage: jax.Array
  negatives: jax.Array | None = None
  query_ids: jax.Array | None = None
  passage_ids: jax.Array | None = None
  negative_ids: jax.Array | None = None
  negative_valid: jax.Array | None = None
  positive_ids: jax.Array | None = None
  columns: Mapping[str, jax.Array] = {}
  step: jax.Array | None = None

  @classmethod
  def of_batch(
      cls, batch: Mapping[str, Any], query: jax.Array, passages: jax.Array
  ) -> 'Embeddings':
    """Joins embeddings [B, D] and [B, 1 + K, D] to the rest of their batch."""
    known = columns_lib.arrays(1, 1, (), 1)
    own = (*known, columns_lib.STEP)
    found = {n: batch[n] for n in cls._fields if n in own and n in batch}
    found['columns'] = {
        name: values
        for name, values in batch.items()
        if name not in (*own, *columns_lib.ROWS)
    }
    if passages.shape[1] > 1:
      found['negatives'] = passages[:, 1:]
    return cls(query, passages[:, 0], **found)

  @property
  def weights(self) -> jax.Array | None:
    """Weights [B] of anchors in means, None if equal; candidates have none."""
    return self.columns.get('weights')

  def column(self, name: str) -> jax.Array:
    """A column of the batch; raises UserError if it is missing."""
    if name not in self.columns:
      raise UserError(
          f'The loss reads the column {name!r}, which the batch lacks; it has'
          f' {", ".join(self.columns) or "none"}. Train on a dataset with this'
          ' column among its extra_columns.'
      )
    return self.columns[name]

  @property
  def num_negatives(self) -> int:
    """K; 0 without hard negatives."""
    return 0 if self.negatives is None else self.negatives.shape[1]

  def vectors(self) -> dict[str, Any]:
    """Embeddings by name: query, passage and, if any, negatives."""
    return {n: x for n in VECTORS if (x := getattr(self, n)) is not None}

  def mapped(self, function: Callable[[jax.Array], Any]) -> 'Embeddings':
    """A copy with function(x) in place of each array x of embeddings."""
    found: dict[str, Any] = {n: function(x) for n, x in self.vectors().items()}
    return self._replace(**found)

  def in_float32(self) -> 'Embeddings':
    return self.mapped(lambda x: x.astype(jnp.float32))

  def check(self) -> None:
    """Raises UserError for arrays whose shapes do not agree."""
    size, dim = self.query.shape
    k = None if self.negatives is None else self.negatives.shape[1]
    several = self.positive_ids
    p = 0 if several is None or several.ndim != 3 else several.shape[1]
    known = columns_lib.arrays(size, k, (), p or 1)
    expected: dict[str, list[Any]] = {
        'passage': [(size, dim)],
        'negatives': [(size, k, dim)],
        **{name: [shape] for name, (shape, _) in known.items()},
        'weights': [(size,)],
    }
    arrays = {**self._asdict(), **self.columns}
    del arrays['query'], arrays['columns'], arrays['step']
    for name, array in arrays.items():
      shapes = expected.get(name, [(size,), (size, 1 + self.num_negatives)])
      if array is not None and array.shape not in shapes:
        raise UserError(
            f'Embeddings.{name} has the shape {array.shape}; expected'
            f' {" or ".join(map(str, shapes))}, since Embeddings.query has'
            f' {self.query.shape}.'
        )


class Loss(Protocol):
  """A loss over a batch; no base class is needed.

  It may also have `query_blocks()`, for the count of a query's negatives at the
  start of a run, `chance(batch_size, num_negatives)`, `trained_dims(dim)`, and
  `check_columns(columns)`, see below.
  """

  def init(self) -> Params:
    """Fresh parameters by name; {} for most losses."""

  def __call__(
      self, params: Params, batch: Embeddings, similarity: Similarity
  ) -> Result:
    """The loss of B pairs, float32, and metrics; all are float32 []."""


class Around:
  """A loss around another one, which its attribute named `of` holds."""

  of = 'loss'

  def init(self) -> Params:
    return getattr(self, self.of).init()

  def check_columns(self, columns: Mapping[str, np.ndarray]) -> None:
    ask(getattr(self, self.of), columns)

  def query_blocks(self) -> tuple[Any, ...]:
    return getattr(getattr(self, self.of), 'query_blocks', tuple)()


def trained_dims(loss: Loss, dim: int) -> tuple[int, ...]:
  """Numbers of first components that a loss trains; () for whole ones alone."""
  return getattr(loss, 'trained_dims', lambda dim: ())(dim)


def ask(loss: Loss, columns: Mapping[str, np.ndarray]) -> None:
  """Calls `check_columns`, which raises UserError, of a loss that has it."""
  getattr(loss, 'check_columns', lambda columns: None)(columns)


def check_columns(
    loss: Loss, columns: Mapping[str, np.ndarray], dim: int = 2
) -> None:
  """Checks before the first step that a loss can learn from these columns.

  Columns, of several batches, are [n] or [n, 1 + K]; `dim` is D. Raises
  UserError, also where the loss ignores a teacher's scores.
  """
  ask(loss, columns)
  teacher = columns_lib.TEACHER_SCORES.name
  if teacher in columns and teacher not in _read(loss, columns, dim):
    raise UserError(
        f"The training data has a teacher's scores, but {type(loss).__name__}"
        ' does not read them. Use losses.Distill or losses.MarginMSE, alone or'
        ' in a losses.Sum, or leave the scores out of the task.'
    )


def _read(loss: Loss, columns: Mapping[str, np.ndarray], dim: int) -> set[str]:
  """The names of the columns that a loss reads, by trying it."""
  read, size = set(), 2

  class Recording(dict):

    def __getitem__(self, name):
      read.add(name)
      return super().__getitem__(name)

  rows = {
      name: np.resize(values, (size, *values.shape[1:]))
      for name, values in columns.items()
  }
  k = max((x.shape[1] for x in rows.values() if x.ndim == 2), default=1) - 1
  ids = {
      name: jnp.zeros(shape, dtype)
      for name, (shape, dtype) in columns_lib.arrays(size, k or None).items()
      if name in Embeddings._fields
  }

  def value():
    vector = jnp.ones((size, dim))
    hard = jnp.ones((size, k, dim)) if k else None
    columns = Recording(rows)
    batch = Embeddings(
        vector, vector, hard, columns=columns, step=jnp.int32(0), **ids
    )
    return loss(loss.init(), batch, Similarity())[0]

  jax.eval_shape(value)
  return read


def check(name: str, loss: Any) -> None:
  """Raises UserError, with the name of the setting, unless it is a loss."""
  if isinstance(loss, type):
    raise UserError(
        f'{name} is the class {loss.__name__}; expected an object of it. In'
        ' gin, write the reference with ().'
    )
  if not callable(loss) or not hasattr(loss, 'init'):
    raise UserError(
        f'{name} is a {type(loss).__name__}; expected a loss over the batch, in'
        ' gin LOSS = @losses.SamToNe(). Those over lists (Pointwise, Listwise,'
        ' Pairwise) are of architectures/cross_encoder.gin.'
    )


def init(loss: Loss, similarity: Similarity) -> dict[str, Any]:
  """The parameters of a loss and of a learnt temperature, by name."""
  shared, own = similarity.init(), loss.init()
  if clash := shared.keys() & own.keys():
    raise UserError(
        f'{type(loss).__name__} and Similarity both learn {", ".join(clash)}.'
        ' Give one of them a number for its temperature.'
    )
  return {**shared, **own}


def evaluate(
    loss: Loss, similarity: Similarity, params: Params, batch: Embeddings
) -> Result:
  """Computes a loss of a global batch, and the metrics of any batch.

  `params` are those of `init`, as trained so far. The metrics are `loss`, those
  of the loss itself, the temperature and mean similarities.
  """
  # On a mesh whose axes are in the types of arrays, XLA places these, too.
  if AxisType.Explicit in jax.sharding.get_abstract_mesh().axis_types:

    def automatic(params, batch, temperature):
      at = dataclasses.replace(similarity, temperature=temperature)
      return evaluate(loss, at, params, batch)

    temperature = jnp.asarray(similarity.at(params).temperature, jnp.float32)
    return jax.sharding.auto_axes(automatic, out_sharding=PartitionSpec())(
        params, batch, temperature
    )
  batch.check()
  # Once and for all, or the parts of a bfloat16 gradient would be rounded one
  # by one.
  batch, similarity = batch.in_float32(), similarity.at(params)
  result = loss(params, batch, similarity)
  if not isinstance(result, tuple) or len(result) != 2:
    raise UserError(
        f'{type(loss).__name__} returned {type(result).__name__}; expected a'
        ' value and metrics by name, {} for none.'
    )
  value, metrics = result
  if jnp.shape(value):
    raise UserError(
        f'{type(loss).__name__} returned a value of shape {jnp.shape(value)};'
        ' expected a scalar, such as the mean over the pairs.'
    )
  own = {'loss': value, **metrics}
  return value, {**metrics_of_batch(batch, similarity), **own}


def mean(batch: Embeddings, values: jax.Array) -> jax.Array:
  """Weighted mean of float32 [B] over the pairs; 0 if no weight is above 0."""
  return weighted_mean(values, batch.weights)


def weighted_mean(values: jax.Array, weights: jax.Array | None) -> jax.Array:
  """Mean of float32 [B]; `weights` None are equal; 0 if they add up to 0."""
  if weights is None:
    return jnp.mean(values)
  total = jnp.sum(weights)
  return jnp.sum(weights * values) / jnp.where(total == 0.0, 1.0, total)


def positive_similarity(batch: Embeddings) -> jax.Array:
  """cos(q_i, p_i), float32 [B]."""
  return jnp.sum(batch.query * batch.passage, axis=1)


def metrics_of_batch(
    batch: Embeddings, similarity: Similarity
) -> dict[str, jax.Array]:
  """Temperature, and mean cosines of positives and of distinct rows.

  No array is B x B. With `check_norms` there is `norm_error`, too.
  """
  query, passage = batch.query, batch.passage
  result = {
      'temperature': jnp.asarray(similarity.temperature, jnp.float32),
      'positive_similarity': mean(batch, positive_similarity(batch)),
      'query_passage_similarity': mean_of_distinct(query, passage),
      'query_query_similarity': mean_of_distinct(query, query),
      'passage_passage_similarity': mean_of_distinct(passage, passage),
  }
  if similarity.check_norms:
    result['norm_error'] = norm_error(batch)
  return result


def mean_of_distinct(a: jax.Array, b: jax.Array) -> jax.Array:
  """Mean of a_i . b_j over i != j, of two [B, D]; no array is B x B."""
  size = a.shape[0]
  everything = jnp.dot(a.sum(0), b.sum(0), precision='highest')
  return (everything - jnp.sum(a * b)) / max(size * (size - 1.0), 1.0)


def norm_error(batch: Embeddings) -> jax.Array:
  """The largest | |e| - 1 | of all embeddings."""
  errors = []
  for name, vectors in batch.vectors().items():
    error = jnp.abs(jnp.linalg.norm(vectors, axis=-1) - 1.0)
    if name == 'negatives' and batch.negative_valid is not None:
      error = jnp.where(batch.negative_valid, error, 0.0)
    errors.append(jnp.max(error))
  return jnp.max(jnp.stack(errors))
