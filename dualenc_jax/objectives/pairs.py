"""The base class of objectives over pairs and their hard negatives."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import math
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from dualenc_jax.data import Batches, batches as batches_lib, Cache, Layout
from dualenc_jax.data.columns import TEACHER_SCORES
from dualenc_jax.data.layouts import Padded, padded_shape
from dualenc_jax.data.text.template import TokenTemplate
from dualenc_jax.data.text.tokenizer import vocab_size, Vocabulary
from dualenc_jax.models import describe
from dualenc_jax.models.dual_encoder import describe_towers
from dualenc_jax.objectives.frozen_passages import (
  check_separate_encoders,
  FrozenPassages,
)
from dualenc_jax.objectives.objective import Objective, Run
from dualenc_jax.objectives.teacher_vectors import TeacherVectors
from dualenc_jax.parallel import data_axis
from dualenc_jax.parallel.partitioning import Partitioner
from dualenc_jax.utils.errors import expect, UserError


class PairObjective(Objective):
  """An objective whose batches are pairs of a token cache in some layout.

  Parameters are the model's, and those of the loss under 'loss'.

  Attributes:
    num_negatives: K, hard negatives taken from each example.
    num_others: passages of other pairs that serve as hard negatives, too.
    micro_batch_size: pairs encoded at once; None for all of the batch.
    layout: how texts are put into rows: `data.Packed()` or `data.Padded()`.
    sides: the texts that the objective reads.
    needs_passages: whether each query must have a passage.
    joint_rows: whether a query and its passage share a row and segment.
    reads_scores: whether it can learn from a teacher's scores.
    reads_vectors: whether it can learn from vectors of another model.
    teacher_vectors: those vectors, which its batches have.
  """

  model: Any
  num_negatives: int
  micro_batch_size: int | None
  layout: Layout
  outputs = 'embeddings'
  num_others: int = 0
  sides: Sequence[str] = ('queries', 'passages')
  needs_passages = True
  joint_rows = False
  reads_scores = True
  reads_vectors = False
  teacher_vectors: TeacherVectors = TeacherVectors()

  def check_options(self) -> None:
    """Raises UserError for attributes that are out of range."""
    name = type(self).__name__
    expect(
        not isinstance(self.layout, type), f'{name}.layout', self.layout,
        'a layout, in gin LAYOUT = @data.Packed() or @data.Padded()',
    )
    expect(
        isinstance(self.model, nn.Module), f'{name}.model', self.model,
        'a model, in gin @models.DualEncoder()',
    )
    for field, least in (
        ('num_negatives', 0), ('num_others', 0), ('micro_batch_size', 1)
    ):
      value = getattr(self, field)
      expect(
          value is None or value >= least, f'{name}.{field}', value,
          f'{least} or more',
      )
    guard = getattr(getattr(self, 'similarity', None), 'guard_margin', None)
    expect(
        guard is None or self.reads_vectors, 'GUARD_MARGIN', guard,
        f'None, as {name} has no vectors of a teacher',
    )
    if self.frozen_passages is not None:
      check_separate_encoders(name, self.model)

  @property
  def frozen_passages(self) -> FrozenPassages | None:
    """The passages that a frozen tower encodes once, if there are such."""
    return None

  @property
  def frozen(self) -> Sequence[str]:
    return self.frozen_passages.frozen if self.frozen_passages else ()

  def token_template(self, run: Run) -> TokenTemplate | None:
    """Returns how a query and a passage are joined to one text, if so."""
    return None

  def loss_params(self) -> Mapping[str, Any]:
    """Returns fresh parameters of the loss."""
    return {}

  def init(self, key: jax.Array) -> Any:
    tokens = jnp.ones((1, 2), jnp.int32)
    texts = (tokens, tokens) if self.outputs == 'embeddings' else (tokens,)
    params = self.model.init(key, *texts)['params']
    if loss := self.loss_params():
      params = {**params, 'loss': loss}
    if self.frozen_passages is not None:
      params = {**params, **self.frozen_passages.init()}
    return params

  def batches(self, run: Run) -> Batches:
    for cache in run.caches:
      if self.needs_passages and not cache.passage_tokens.lengths.all():
        raise UserError(
            f"Split train of {cache.header['task']} has queries without"
            f' passages, but {type(self).__name__} learns from pairs. Train'
            ' with --gin_file=objectives/matching.gin, or on a task of pairs.'
        )
    batches = Batches(
        run.caches, run.batch_size, run.seed, run.tokenizer.query_length,
        run.tokenizer.passage_length, self.num_negatives, run.rates,
        self.layout, self._cells(run), run.extra_columns,
        self.token_template(run), self.num_others, self.sides, self.joint_rows,
    )
    if self.frozen_passages is not None:
      batches = self.frozen_passages.add_targets(batches, run)
    return self.teacher_vectors.add_to(batches, run)

  def abstract_batch(self, run: Run) -> Any:
    """Returns a batch with room for all but the rarest texts.

    It has a tenth more rows than any batch of a sample; a batch beyond comes
    once in a very long run. Layouts other than the padded one look at the
    examples, which are tokenised first if they are not yet.
    """
    cells = self._cells(run)
    pairs = run.batch_size // cells
    candidates, num_positives = 1 + self.num_negatives + self.num_others, 0
    template = self.token_template(run)
    names = self.sides if template is None else ('pairs',)
    if isinstance(self.layout, Padded):
      lengths = run.tokenizer.query_length, run.tokenizer.passage_length
      texts = {
          'queries': (pairs, lengths[0]),
          'passages': (pairs * candidates, lengths[1]),
      }
      if template is not None:
        texts['pairs'] = pairs * candidates, template.most(*lengths)
      shapes: Any = [padded_shape(*texts[name]) for name in names]
    else:
      num_positives = run.batches.positives.count
      shapes = run.batches.shapes
      shapes = shapes[min(self.layout.num_shapes, max(len(shapes) - 2, 0))]
    batch = batches_lib.abstract_batch(
        shapes, run.batch_size, cells, candidates - 1, jax.ShapeDtypeStruct,
        run.extra_columns, num_positives, names,
    )
    if self.frozen_passages is not None:
      batch = {**batch, **self.frozen_passages.abstract(run, batch)}
    return {**batch, **self.teacher_vectors.abstract(batch)}

  def make_completion(
      self, run: Run, params: Any
  ) -> Callable[[Any, Any], Any] | None:
    if self.frozen_passages is None:
      return None
    arrays = self.frozen_passages.arrays(run, params)
    return lambda params, batch: {**batch, **arrays}

  def check_mesh(self, partitioner: Partitioner) -> None:
    # The model axis splits attention by heads.
    devices = partitioner.mesh.shape['model']
    for name in ('encoder', 'passage_encoder', 'decoder'):
      stack = getattr(self.model, name, None)
      if stack is not None and stack.num_heads % devices:
        raise UserError(
            f'{name} has {stack.num_heads} heads, which the {devices} devices'
            ' on the model axis do not divide. Set MODEL_PARALLEL to a divisor'
            f' of {stack.num_heads}.'
        )

  def check_vocabulary(self, vocabulary: Vocabulary) -> None:
    for name in ('token_embedder', 'passage_token_embedder'):
      embedder = getattr(self.model, name, None)
      # T5 pads its table to a multiple of 128 rows, beyond 100 extra ids.
      if embedder and not 0 <= embedder.vocab_size - vocabulary.size < 256:
        raise UserError(
            f'{name} has {embedder.vocab_size} rows but the vocabulary'
            f' {vocabulary.path} has {vocabulary.size} pieces. Expected as many'
            ' rows, or up to 255 more: set VOCAB_SIZE to'
            f' {vocab_size(vocabulary)}, or give the vocabulary of the model.'
        )

  def check_batch(self, run: Run) -> None:
    super().check_batch(run)
    if self.micro_batch_size is not None:
      data_axis.check_micro_batch_size(
          self.micro_batch_size, run.batch_size
      )
      run.partitioner.check_batch_size(
          'MICRO_BATCH_SIZE', self.micro_batch_size
      )

  def batch_sizes(self, run: Run) -> range:
    sizes = super().batch_sizes(run)
    unit = math.lcm(sizes.step, self.micro_batch_size or 1)
    most = sizes.stop
    if not isinstance(self.layout, Padded):
      # The layout looks at batches of the examples that there are.
      most = sum(len(cache) for cache in run.caches) + 1
    return range(unit, most, unit)

  def describe(self, run: Run) -> Iterator[str]:
    lengths = run.tokenizer.query_length, run.tokenizer.passage_length
    yield (
        f'{type(self).__name__}: a global batch of {run.batch_size} pairs,'
        f' query {lengths[0]} and passage {lengths[1]} tokens.'
    )
    if self.outputs == 'embeddings':
      yield from describe_towers(self.model, *lengths)

  def describe_batches(self, run: Run, step: int) -> Iterator[str]:
    if TEACHER_SCORES in run.batches.columns and not self.reads_scores:
      raise UserError(
          "The training data has a teacher's scores, but"
          f' {type(self).__name__} does not read them. Leave the scores out of'
          ' the task.'
      )
    yield run.batches.order.describe()
    yield from describe_cuts(run.caches, self.sides)
    negatives = sum(int(cache.negative_offsets[-1]) for cache in run.caches)
    if negatives and not self.num_negatives and 'passages' in self.sides:
      yield (
          f'NUM_NEGATIVES is 0: the {negatives:,} hard negatives of the'
          ' examples are not used.'
      )
    yield _describe_layout(run.batches, step)
    if self.frozen_passages is not None:
      yield self.frozen_passages.describe(run)

  @property
  def facts(self) -> dict[str, Any]:
    passages = self.frozen_passages
    return {**describe(self.model), **(passages.facts if passages else {})}

  def codec_of(self, params: Any) -> Any:
    return self.frozen_passages and self.frozen_passages.codec_of(params)

  def _cells(self, run: Run) -> int:
    """Returns C: a micro-batch has as many cells as the data axis devices."""
    devices, size = run.partitioner.mesh.shape['data'], run.batch_size
    return devices * (size // (self.micro_batch_size or size))


def first_columns(batches: Batches, step: int) -> dict[str, np.ndarray]:
  """Returns the columns of the three batches from a step on, concatenated."""
  steps = range(step, step + 3)
  parts = [batches.arrays(batches.indices(s)) for s in steps]
  names = [column.name for column in batches.columns]
  return {name: np.concatenate([b[name] for b in parts]) for name in names}


def describe_cuts(
    caches: Sequence[Cache], sides: Sequence[str]
) -> Iterator[str]:
  """Yields a line on each of `PairObjective.sides` whose texts may be cut.

  A cache does not know how long a text was that fills its row.
  """
  for side in sides:
    name = {'queries': 'query', 'passages': 'passage'}[side]
    limit = caches[0].header[f'{name}_length']
    lengths = [getattr(cache, f'{name}_tokens').lengths for cache in caches]
    full = sum(int(np.sum(each >= limit)) for each in lengths)
    if full:
      yield (
          f'{full / sum(map(len, lengths)):.1%} of {side} fill the {limit}'
          f' tokens of {name.upper()}_LENGTH: what is longer is cut.'
      )


def _describe_layout(batches: Batches, step: int) -> str:
  """Returns a line on shapes, and padding in a step, or in 16 that differ."""
  shapes = batches.usual_shapes
  steps = range(step, step + (16 if len(shapes) > 1 else 1))
  some = [batches(number) for number in steps]
  texts = [batch[name] for batch in some for name in batches.names]
  real = sum(int(rows.lengths.sum()) for rows in texts)
  total = sum(rows.tokens.size for rows in texts)
  named = []
  for name, *of in zip(batches.names, *shapes):
    rows = ' to '.join(dict.fromkeys(str(of[i].rows) for i in (0, -1)))
    named.append(f'{name} {rows} x {of[-1].length}')
  count = f' {len(shapes)} shapes,' if len(shapes) > 1 else ''
  return (
      f'Layout: {type(batches.layout).__name__},{count} rows x tokens in each'
      f' of {batches.cells} cells: {", ".join(named)}; {real / total:.0%} of'
      ' the tokens are real.'
  )
