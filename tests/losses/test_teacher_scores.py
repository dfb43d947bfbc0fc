"""A teacher's scores of the batch: distilled, and as a guard."""

import jax
import loss_cases
import meshes
import numpy as np
import pytest
import reference
from sentence_transformers.sentence_transformer import losses as theirs
import torch

from dualenc_jax import losses
from dualenc_jax.losses import blocks
from dualenc_jax.training import Partitioner
from dualenc_jax.utils.errors import UserError

pytestmark = pytest.mark.devices(8)

K, DIM, TEMPERATURE, OF_TEACHER = 2, 6, 0.1, 0.2
UNMASKED = {'temperature': TEMPERATURE, 'mask_duplicates': False}


class Anchors(losses.InBatchSoftmax):
  """GISTEmbed contrasts pairs of queries, too, with the query's positive."""

  def query_blocks(self):
    return (*super().query_blocks(), blocks.QUERY_QUERIES)


class Gist(Anchors):
  """And pairs of passages."""

  def query_blocks(self):
    return (*super().query_blocks(), blocks.PASSAGE_PASSAGES)


GUARDED = {
    'absolute': (Gist(False), 0.1), 'relative': (Anchors(False), 0.4),
    'queries': (losses.InBatchSoftmax(False), 0.1),
}
# The guard as a whole, on two devices one kind of it, costs most to compile.
RINGS = {
    'dense': (None, 'dense', 14, None, GUARDED),
    'ring_1': (None, 'ring', 14, 4, {}),
    'ring_2': (meshes.SmallPartitioner(devices=2), 'ring', 14, 4, ['relative']),
    'ring_8': (Partitioner(), 'ring', 24, 2, {}),
}
NIGHTLY = 'ring_2', 'ring_8'


def make_batch(size, duplicates=True):
  """A batch, and the same for NumPy; the teacher lacks some texts."""
  embeddings, batch = loss_cases.make_batch(size, K, duplicates)
  rng = np.random.default_rng(size)

  def unit(*shape):
    x = rng.normal(size=(*shape, DIM))
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)

  teacher = {'query': unit(size), 'passage': unit(size)}
  # As far from queries as positives are.
  teacher['passage'] = 0.7 * teacher['passage'] + 0.7 * teacher['query']
  norms = np.linalg.norm(teacher['passage'], axis=1, keepdims=True)
  teacher['passage'] /= norms
  teacher['negatives'] = unit(size, K)
  if duplicates:
    teacher['query'][3], teacher['passage'][6] = 0, 0
    teacher['negatives'][1, 0] = 0
  return embeddings._replace(teacher=teacher), batch


def program(partitioner, implementation, tile, cases):
  """Values and gradients of cases: a loss, and options of its similarity."""
  settings = {
      name: (loss, losses.Similarity(
          implementation=implementation, tile=tile, **options
      )) for name, (loss, options) in cases.items()
  }
  function = meshes.on_mesh(
      partitioner, loss_cases.values_and_gradients(settings)
  )
  return lambda embeddings: jax.device_get(function({}, embeddings))


def distilled(batch, teacher, weights):
  """Value by side, and gradients of vectors, pair by pair in float64."""
  flat = {n: x.reshape(-1, DIM).astype(np.float64) for n, x in teacher.items()}
  known = {name: np.any(x != 0, axis=1) for name, x in flat.items()}
  gradients = {name: np.zeros_like(x) for name, x in batch.vectors.items()}
  taught = (known['query'] & known['passage']) * weights
  values = []
  for side in (reference.query_side, reference.passage_side):
    total = 0.0
    for anchor, positive, negatives in side(batch, True):
      share = taught[anchor[1]] / taught.sum()
      names = [positive, *(n for n in negatives if known[n[0]][n[1]])]

      def scores(vectors, temperature):
        rows = np.array([vectors[tower][row] for tower, row in names])
        return rows @ vectors[anchor[0]][anchor[1]] / temperature, rows

      s, candidates = scores(batch.vectors, TEMPERATURE)
      t, _ = scores(flat, OF_TEACHER)
      s, t = (x - np.log(np.sum(np.exp(x))) for x in (s, t))
      total += share * np.sum(np.exp(t) * (t - s))
      d = share * (np.exp(s) - np.exp(t)) / TEMPERATURE
      gradients[anchor[0]][anchor[1]] += d @ candidates
      for (tower, row), each in zip(names, d, strict=True):
        a = batch.vectors[anchor[0]][anchor[1]]
        gradients[tower][row] += each * a
    values.append(total)
  return values, gradients


def gist(embeddings, name):
  """Value and gradients of CachedGISTEmbedLoss, in float64."""
  loss, margin = GUARDED[name]
  theirs_loss = theirs.CachedGISTEmbedLoss.__new__(theirs.CachedGISTEmbedLoss)
  torch.nn.Module.__init__(theirs_loss)
  strategy = 'relative' if name == 'relative' else 'absolute'
  vars(theirs_loss).update(
      # The cosine of vectors of length one, without the gradient of lengths.
      temperature=TEMPERATURE, similarity_fct=lambda a, b: (a * b).sum(-1),
      mini_batch_size=5, show_progress_bar=False, margin=margin,
      margin_strategy=strategy,
      contrast_anchors=isinstance(loss, Anchors),
      contrast_positives=isinstance(loss, Gist), gather_across_devices=False,
      cross_entropy_loss=torch.nn.CrossEntropyLoss(),
  )

  def columns(of):
    made = (torch.tensor(x, dtype=torch.float64) for x in of.values())
    query, passage, negatives = made
    each = [query, passage, *negatives.unbind(1)]
    return [[x.detach().requires_grad_()] for x in each]

  student = columns(embeddings.vectors())
  value = theirs_loss.calculate_loss(student, columns(embeddings.teacher))
  value.backward()
  query, passage, *negatives = (x[0].grad.numpy() for x in student)
  return value.item(), {
      'query': query, 'passage': passage, 'negatives': np.stack(negatives, 1)
  }


@pytest.mark.parametrize('case', [
    pytest.param(name, marks=[pytest.mark.nightly] * (name in NIGHTLY))
    for name in RINGS
])
def test_values_and_gradients(case):
  partitioner, implementation, size, tile, guards = RINGS[case]
  cases = {'distil': (
      losses.InBatchDistill(OF_TEACHER, True),
      # Neither margin masks anything for it.
      {'temperature': TEMPERATURE, 'guard_margin': 0.0,
       'false_negative_margin': -0.5},
  )}
  for name in guards:
    loss, margin = GUARDED[name]
    strategy = 'relative' if name == 'relative' else 'absolute'
    cases[name] = loss, {
        **UNMASKED, 'guard_margin': margin, 'guard_strategy': strategy
    }
  run = program(partitioner, implementation, tile, cases)
  embeddings, batch = make_batch(size)
  weights = np.linspace(0, 2, size, dtype=np.float32)
  embeddings = embeddings._replace(columns={'weights': weights})
  (value, metrics), (_, gradients) = run(embeddings)['distil']
  values, wanted = distilled(batch, embeddings.teacher, weights)
  assert value == pytest.approx(sum(values), rel=2e-6)
  assert metrics['passage_side_loss'] == pytest.approx(values[1], rel=2e-6)
  loss_cases.assert_gradients_close(gradients, wanted, 2e-6)
  # Those of sentence-transformers know no missing texts and no weights.
  embeddings, _ = make_batch(size, duplicates=False)
  embeddings = embeddings._replace(
      columns={'weights': np.ones(size, np.float32)},
      negative_valid=np.ones((size, K), bool),
      positive_ids=embeddings.passage_ids[:, None],
  )
  got = run(embeddings)
  for name in guards:
    (value, metrics), (_, gradients) = got[name]
    want, of_vectors = gist(embeddings, name)
    assert value == pytest.approx(want, rel=1e-6)
    loss_cases.assert_gradients_close(gradients, of_vectors, 2e-6)
    assert 0.05 < metrics['masked_fraction'] < 0.9


def test_a_student_like_its_teacher_learns_nothing():
  embeddings, _ = make_batch(8)
  embeddings = embeddings._replace(
      teacher=embeddings.vectors(), negative_valid=None, positive_ids=None
  )
  loss = losses.InBatchDistill(TEMPERATURE)
  run = program(None, 'dense', None, {'': (loss, UNMASKED)})
  (value, _), (_, gradients) = run(embeddings)['']
  assert abs(value) < 1e-5
  assert all(np.abs(x).max() < 1e-5 for x in gradients.values())


def test_who_lacks_vectors():
  embeddings, _ = make_batch(8)
  guarded = losses.Similarity(guard_margin=0.0)
  one = embeddings._replace(teacher={'query': embeddings.teacher['query']})
  for loss in (losses.InBatchDistill(), losses.SamToNe()):
    with pytest.raises(UserError, match='lacks vectors. Give both TEACHER_QU'):
      jax.eval_shape(lambda: losses.evaluate(loss, guarded, {}, one))  # noqa: B023
  with pytest.raises(UserError, match="'nearly'; expected one of 'absolute'"):
    losses.Similarity(guard_strategy='nearly')
