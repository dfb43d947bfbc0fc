"""The input, the settings and the interface of a loss, and its evaluation."""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec
import numpy as np

from dualenc_jax.data import columns as columns_lib
from dualenc_jax.losses.temperature import LearnableTemperature, Params
from dualenc_jax.utils.errors import (
  check_one_of,
  check_positive,
  expect,
  UserError,
)

# The loss, float32 [], and metrics, each float32 [].
Result = tuple[jax.Array, dict[str, jax.Array]]

IMPLEMENTATIONS = ('auto', 'dense', 'ring')


class Dims(NamedTuple):
  """Components of the embeddings, D, and of a teacher's vectors, D'."""

  student: int
  teacher: int


class Embeddings(NamedTuple):
  """A global batch, embedded: row i of query and passage is pair i.

  B pairs, K hard negatives a query, D components. Ids are 64-bit fingerprints
  of the tokens as two uint32, None if they are unknown.

  Attributes:
    query: float32 [B, D], rows of norm one; so are passage [B, D] and negatives
      [B, K, D].
    query_ids: uint32 [B, 2]; passage_ids likewise, negative_ids [B, K, 2].
    negative_valid: bool [B, K], False where a query has fewer than K hard
      negatives; None if all are real.
    positive_ids: uint32 [B, P, 2], the other labelled passages of a query; its
      own is repeated where there are fewer.
    columns: the other columns of the batch by name, see `data.columns`: [B] of
      pairs, [B, 1 + K] of passages and their hard negatives.
    step: optimizer steps taken so far, int32 []; None outside a train step.
    teacher: vectors of another model by the name of their texts, as of
      `vectors`: float32 [..., D'], rows of norm one, zeros for a text that has
      none.
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
  teacher: Mapping[str, jax.Array] = {}

  @classmethod
  def from_batch(
      cls, batch: Mapping[str, Any], query: jax.Array, passages: jax.Array
  ) -> 'Embeddings':
    """Joins embeddings [B, D] and [B, 1 + K, D] to the rest of their batch."""
    fields = (*columns_lib.batch_arrays(1, 1, (), 1), columns_lib.STEP)
    known = {n: batch[n] for n in cls._fields if n in fields and n in batch}
    of_teacher = columns_lib.TEACHER_VECTORS
    known['columns'] = {
        name: values
        for name, values in batch.items()
        if name not in (*fields, *columns_lib.ROWS, *of_teacher.values())
    }
    teacher = {}
    if of_teacher['queries'] in batch:
      teacher['query'] = batch[of_teacher['queries']]
    if of_teacher['passages'] in batch:
      vectors = batch[of_teacher['passages']]
      teacher['passage'] = vectors[:, 0]
      if passages.shape[1] > 1:
        teacher['negatives'] = vectors[:, 1:]
    if passages.shape[1] > 1:
      known['negatives'] = passages[:, 1:]
    return cls(query, passages[:, 0], teacher=teacher, **known)

  @property
  def weights(self) -> jax.Array | None:
    """Weights [B] of anchors in means, None if equal; candidates have none."""
    return self.columns.get('weights')

  def column(self, name: str) -> jax.Array:
    """Returns a column of the batch; raises UserError if it is missing."""
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
    vectors = {'query': self.query, 'passage': self.passage}
    if self.negatives is not None:
      vectors['negatives'] = self.negatives
    return vectors

  def check_teacher(self) -> Mapping[str, jax.Array]:
    """Returns `teacher`; raises UserError unless all texts have vectors."""
    if self.vectors().keys() - self.teacher.keys():
      raise UserError(
          "The loss compares a teacher's scores of queries and passages, but"
          ' the batch lacks vectors. Give both TEACHER_QUERIES and'
          ' TEACHER_PASSAGES.'
      )
    return self.teacher

  def map_vectors(self, function: Callable[[jax.Array], Any]) -> 'Embeddings':
    """Returns a copy with function(x) in place of each array of vectors."""
    return self._replace(**{n: function(x) for n, x in self.vectors().items()})

  def to_float32(self) -> 'Embeddings':
    return self.map_vectors(lambda x: x.astype(jnp.float32))

  def check(self) -> None:
    """Raises UserError for arrays whose shapes do not agree."""
    size, dim = self.query.shape
    k = None if self.negatives is None else self.negatives.shape[1]
    several = self.positive_ids
    p = 0 if several is None or several.ndim != 3 else several.shape[1]
    known = columns_lib.batch_arrays(size, k, (), p or 1)
    expected: dict[str, list[Any]] = {
        'passage': [(size, dim)],
        'negatives': [(size, k, dim)],
        **{name: [shape] for name, (shape, _) in known.items()},
        'weights': [(size,)],
    }
    arrays = {**self._asdict(), **self.columns}
    del arrays['query'], arrays['columns'], arrays['step'], arrays['teacher']
    for name, array in self.teacher.items():
      of_text = getattr(self, name).shape[:-1], array.shape[-1]
      expected[f'teacher[{name!r}]'] = [(*of_text[0], of_text[1])]
      arrays[f'teacher[{name!r}]'] = array
    for name, array in arrays.items():
      shapes = expected.get(name, [(size,), (size, 1 + self.num_negatives)])
      if array is not None and array.shape not in shapes:
        raise UserError(
            f'Embeddings.{name} has the shape {array.shape}; expected'
            f' {" or ".join(map(str, shapes))}, since Embeddings.query has'
            f' {self.query.shape}.'
        )


@dataclasses.dataclass(frozen=True)
class Similarity:
  """s(a, b) = cos(a, b) / temperature, and how a matrix of them is computed.

  Every loss, a user's own too, gets these settings from its caller.

  Duplicates are known by the fingerprint of their tokens. With
  `mask_duplicates`, pair j is no negative for pair i, in either direction, if
  q_j = q_i, p_j = p_i, or p_j is another labelled passage of q_i; a hard
  negative that is any passage of q_i is masked out; and a same-tower negative
  (SamToNe, PAIR) is masked out when it equals the anchor, or, among passages,
  when one of the two is labelled for the other's query.

  Attributes:
    temperature: a number above 0, an array [] or a `LearnableTemperature`; a
      loss gets the number, or the temperature as trained so far, float32 [].
    implementation: 'dense' holds matrices of scores, B x B; 'ring' never does;
      'auto' chooses by their size. The value is the same to rounding. Outside
      the library set the mesh that the batch is sharded over by `jax.set_mesh`
      or `Partitioner.scope`: without it the ring takes the batch to be on one
      device.
    tile: the most rows and columns that the ring scores at once; None for the
      default of `blocks.log_partitions`.
    false_negative_margin: a candidate whose cosine with the anchor is above
      that of the anchor's positive by more than this is taken for an unlabelled
      positive and masked out (Solatorio 2024; 0.1 in Qwen3-Embedding, 2025).
      None masks none.
    guard_margin: a candidate whose score by a teacher, the cosine of
      `Embeddings.teacher`, is above the positive's score t less this is masked
      out (GISTEmbed, Solatorio 2024); less |t| times this if `guard_strategy`
      is 'relative' and not 'absolute'. A pair without vectors masks none, and a
      candidate without one stays. None masks none.
  """

  temperature: Any = 0.01
  implementation: str = 'auto'
  tile: int | None = None
  mask_duplicates: bool = True
  false_negative_margin: float | None = None
  guard_margin: float | None = None
  guard_strategy: str = 'absolute'

  def __post_init__(self):
    temperature = self.temperature
    if isinstance(temperature, jax.Array):
      one = temperature.shape == ()
      expect(one, 'Similarity.temperature', temperature, 'one number')
      known = not isinstance(temperature, jax.core.Tracer)
      temperature = float(temperature) if known else 1.0
    if not isinstance(temperature, LearnableTemperature):
      check_positive('Similarity.temperature', temperature)
    check_one_of(
        'Similarity.implementation', self.implementation, IMPLEMENTATIONS
    )
    check_one_of(
        'Similarity.guard_strategy', self.guard_strategy,
        ('absolute', 'relative'),
    )
    expect(
        self.tile is None or self.tile > 0, 'Similarity.tile', self.tile,
        'a number above 0, or None',
    )

  def init(self) -> dict[str, jax.Array]:
    """Returns the parameter of a learnt temperature; {} for a number."""
    if isinstance(self.temperature, LearnableTemperature):
      return self.temperature.init()
    return {}

  def resolve(self, params: Params) -> 'Similarity':
    """Returns a copy with the temperature as learnt so far."""
    if isinstance(self.temperature, LearnableTemperature):
      return dataclasses.replace(self, temperature=self.temperature(params))
    return self


class Loss:
  """The base class of losses over a batch; a subclass defines `__call__`."""

  @property
  def reads_teacher(self) -> bool:
    """Whether the loss learns from the column `teacher_scores`."""
    return False

  @property
  def reads_vectors(self) -> bool:
    """Whether the loss learns from `Embeddings.teacher`."""
    return False

  def init(self, dims: Dims | None = None) -> Params:
    """Returns fresh parameters by name; `dims` are None if not known."""
    return {}

  def __call__(
      self, params: Params, batch: Embeddings, similarity: Similarity
  ) -> Result:
    """Returns the loss of B pairs and metrics, all float32 []."""
    raise NotImplementedError

  def check_columns(self, columns: Mapping[str, np.ndarray]) -> None:
    """Raises UserError if columns [n] or [n, 1 + K] of a batch are unfit."""

  def chance(self, batch_size: int, num_negatives: int) -> float | None:
    """Returns the loss if all similarities are equal; None if unknown."""
    return None

  def trained_dims(self, dim: int) -> tuple[int, ...]:
    """Returns the numbers of first components, up to `dim`, that are trained.

    () means that only whole embeddings are.
    """
    return ()


class LossWrapper(Loss):
  """A loss around another one, its attribute `loss`."""

  loss: Loss

  @property
  def reads_teacher(self) -> bool:
    return self.loss.reads_teacher

  @property
  def reads_vectors(self) -> bool:
    return self.loss.reads_vectors

  def init(self, dims: Dims | None = None) -> Params:
    return self.loss.init(dims)

  def check_columns(self, columns: Mapping[str, np.ndarray]) -> None:
    self.loss.check_columns(columns)


def validate_columns(loss: Loss, columns: Mapping[str, np.ndarray]) -> None:
  """Raises UserError, before the first step, for columns that are unfit.

  Columns of several batches are [n] or [n, 1 + K]. A teacher's scores that the
  loss ignores are an error, too.
  """
  loss.check_columns(columns)
  if columns_lib.TEACHER_SCORES.name in columns and not loss.reads_teacher:
    raise UserError(
        f"The training data has a teacher's scores, but {type(loss).__name__}"
        ' does not read them. Use losses.Distill or losses.MarginMSE, alone or'
        ' in a losses.Sum, or leave the scores out of the task.'
    )


def check(name: str, loss: Any) -> None:
  """Raises UserError, with the name of the setting, unless it is a loss."""
  if isinstance(loss, type):
    raise UserError(
        f'{name} is the class {loss.__name__}; expected an object of it. In'
        ' gin, write the reference with ().'
    )
  if not isinstance(loss, Loss):
    raise UserError(
        f'{name} is a {type(loss).__name__}; expected a losses.Loss, in gin'
        ' LOSS = @losses.SamToNe(). Those over lists (Pointwise, Listwise,'
        ' Pairwise) are of architectures/cross_encoder.gin.'
    )


def init(
    loss: Loss, similarity: Similarity, dims: Dims | None = None
) -> dict[str, Any]:
  """Returns the parameters of a loss and of a learnt temperature, by name."""
  shared, learnt = similarity.init(), loss.init(dims)
  if clash := shared.keys() & learnt.keys():
    raise UserError(
        f'{type(loss).__name__} and Similarity both learn {", ".join(clash)}.'
        ' Give one of them a number for its temperature.'
    )
  return {**shared, **learnt}


def evaluate(
    loss: Loss, similarity: Similarity, params: Params, batch: Embeddings
) -> Result:
  """Computes a loss of a global batch, and the metrics of any batch.

  `params` are those of `init`, as trained so far. The metrics are `loss`, those
  of the loss itself, the temperature and mean similarities.
  """
  # XLA places the arrays on a mesh whose axes are in their types, too.
  if AxisType.Explicit in jax.sharding.get_abstract_mesh().axis_types:

    def automatic(params, batch, temperature):
      resolved = dataclasses.replace(similarity, temperature=temperature)
      return evaluate(loss, resolved, params, batch)

    temperature = similarity.resolve(params).temperature
    temperature = jnp.asarray(temperature, jnp.float32)
    return jax.sharding.auto_axes(automatic, out_sharding=PartitionSpec())(
        params, batch, temperature
    )
  batch.check()
  # Converted once: else the parts of a bfloat16 gradient would each be rounded.
  batch, similarity = batch.to_float32(), similarity.resolve(params)
  value, metrics = loss(params, batch, similarity)
  return value, {
      **metrics_of_batch(batch, similarity), 'loss': value, **metrics
  }


def mean(batch: Embeddings, values: jax.Array) -> jax.Array:
  """Returns the weighted mean of float32 [B]; 0 if no weight is above 0."""
  return weighted_mean(values, batch.weights)


def weighted_mean(values: jax.Array, weights: jax.Array | None) -> jax.Array:
  """Returns the mean of float32 [B], unweighted if `weights` are None.

  It is 0 if the weights add up to 0.
  """
  if weights is None:
    return jnp.mean(values)
  total = jnp.sum(weights)
  return jnp.sum(weights * values) / jnp.where(total == 0.0, 1.0, total)


def positive_similarity(batch: Embeddings) -> jax.Array:
  """Returns cos(q_i, p_i), float32 [B]."""
  return jnp.sum(batch.query * batch.passage, axis=1)


def metrics_of_batch(
    batch: Embeddings, similarity: Similarity
) -> dict[str, jax.Array]:
  """Returns the temperature, and mean cosines of positives and distinct rows.

  No array is B x B.
  """
  query, passage = batch.query, batch.passage
  return {
      'temperature': jnp.asarray(similarity.temperature, jnp.float32),
      'positive_similarity': mean(batch, positive_similarity(batch)),
      'query_passage_similarity': mean_of_distinct(query, passage),
      'query_query_similarity': mean_of_distinct(query, query),
      'passage_passage_similarity': mean_of_distinct(passage, passage),
  }


def mean_of_distinct(a: jax.Array, b: jax.Array) -> jax.Array:
  """Returns the mean of a_i . b_j over i != j, of two [B, D]."""
  size = a.shape[0]
  everything = jnp.dot(a.sum(0), b.sum(0), precision='highest')
  return (everything - jnp.sum(a * b)) / max(size * (size - 1.0), 1.0)
