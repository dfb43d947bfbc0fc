"""The loss of JPQ+GPL against NumPy in float64, and scores that are kept."""

import code_cases
import jax
import numpy as np
import pytest

from dualenc_jax.checkpoints.foreign_models import TextTeacher
from dualenc_jax.data import Tokenizer, Vocabulary
from dualenc_jax.data.text.ragged import Pool
from dualenc_jax.losses.code_search import Hits
from dualenc_jax.objectives import DistilledPQ
from dualenc_jax.objectives.distilled_pq import score_as_text
from dualenc_jax.retrieval.encoding.teacher import PairScores
from dualenc_jax.utils.errors import UserError

DEPTH, TEMPERATURE = 9, 0.2


@pytest.fixture(scope='module')
def case(tmp_path_factory):
  """An objective, parameters, a batch with hits and scores, and its codes."""
  folder = tmp_path_factory.mktemp('codec')
  objective, params, batch, numbers = code_cases.start(
      DistilledPQ, folder, depth=DEPTH, temperature=TEMPERATURE
  )
  rng = np.random.default_rng(1)
  size = len(batch['targets'])
  rows = np.stack([rng.permutation(61)[:DEPTH] for _ in range(size)])
  rows = rows.astype(np.int32)
  # The passage is found at some rank, others that are labelled, too.
  rows[::2, 3] = batch['targets'][::2, 0]
  rows[1, 5] = batch['targets'][1, 1]
  # Fewer passages than hits are asked for.
  rows[2, -2:] = len(batch['codes'])
  there = rows < len(batch['codes'])
  scores = rng.normal(scale=5, size=(size, 1 + DEPTH)).astype(np.float32)
  scores[:, 1:][~there] = np.nan
  codes = np.where(there[..., None], batch['codes'][rows % 64], 0)
  return objective, params, numbers, {
      **batch,
      'hits': Hits(rows, codes, batch['codes'][batch['targets']]),
      'teacher_scores': scores,
      'asked': np.arange(size, dtype=np.float32),
  }


def reference(query, score, matrix, numbers, batch, weights=None):
  """The loss by plain loops."""
  rotated = query @ np.asarray(matrix, np.float64).T
  vectors = [score[m][numbers[:, m]] for m in range(len(score))]
  own = rotated @ np.concatenate(vectors, axis=1).T / TEMPERATURE
  losses = []
  for q, rows in enumerate(batch['hits'].rows):
    teacher = batch['teacher_scores'][q].astype(np.float64)
    targets = batch['targets'][q]
    errors = [
        (own[q, targets[0]] - own[q, j] - (teacher[0] - teacher[1 + place]))
        ** 2
        for place, j in enumerate(rows)
        if j not in targets and j < len(numbers)
    ]
    losses.append(np.mean(errors))
  return np.average(losses, weights=weights)


def test_the_loss_is_that_of_plain_loops(case):
  objective, params, numbers, batch = case
  value, metrics = jax.jit(objective)(params, batch)
  query = code_cases.embed(objective, params, batch)
  codec = params['codec']
  known = query, codec['score'].astype(np.float64), codec['matrix_0'], numbers
  assert value == pytest.approx(reference(*known, batch), rel=1e-5)
  assert metrics['loss'] == value
  assert metrics['asked'] == 3.5
  rows, scores = batch['hits'].rows, batch['teacher_scores']
  others = ~np.any(rows[:, :, None] == batch['targets'][:, None], axis=2)
  others &= rows < 64
  margins = (scores[:, :1] - scores[:, 1:])[others]
  assert metrics['teacher_margin'] == pytest.approx(margins.mean(), rel=1e-5)
  assert metrics['better_hits'] == pytest.approx(np.mean(margins < 0))
  weights = np.linspace(0, 2, len(query)).astype(np.float32)
  value, _ = jax.jit(objective)(params, batch | {'weights': weights})
  expected = reference(*known, batch, weights)
  assert value == pytest.approx(expected, rel=1e-5)


def some_pairs(count, seed=0):
  rng = np.random.default_rng(seed)
  return rng.integers(0, 2**64, (count, 2), np.uint64)


class Asked:
  """A teacher that remembers what it was asked."""

  def __init__(self):
    self.pairs = []

  def __call__(self, pairs):
    self.pairs += map(tuple, pairs.tolist())
    return (pairs[:, 0] % 1000 - pairs[:, 1] % 7.0).astype(np.float32)


def test_a_pair_is_asked_for_once(tmp_path):
  teacher, path = Asked(), tmp_path / 'scores.bin'
  scores, pairs = PairScores(teacher, path), some_pairs(50)
  twice = np.concatenate([pairs, pairs[::-1]])
  found, asked = scores(twice)
  np.testing.assert_array_equal(found, Asked()(twice))
  np.testing.assert_array_equal(asked, np.arange(100) < 50)
  more = np.concatenate([some_pairs(5, 1), pairs])
  found, asked = scores(more)
  np.testing.assert_array_equal(found, Asked()(more))
  np.testing.assert_array_equal(asked, np.arange(55) < 5)
  assert len(teacher.pairs) == len({*teacher.pairs}) == len(scores) == 55
  # Another process knows them, but for one that was cut.
  with path.open('r+b') as file:
    file.truncate(path.stat().st_size - 3)
  again = Asked()
  found, asked = PairScores(again, path)(more)
  np.testing.assert_array_equal(found, Asked()(more))
  assert again.pairs == teacher.pairs[-1:] and asked.sum() == 1
  assert not PairScores(again, path)(more)[1].any()


def test_scores_that_are_not_finite(tmp_path):
  path = tmp_path / 'scores.bin'
  pairs = some_pairs(3)
  scores = PairScores(lambda pairs: np.array([1, np.nan, 2], 'f4'), path)
  with pytest.raises(UserError, match='gives 1 of 3 pairs a score that is not'):
    scores(pairs)
  assert not path.exists()


def test_a_teacher_of_other_tokens_reads_text():
  tokenizer = Tokenizer(
      Vocabulary('python_code_8k'), query_length=16, passage_length=8,
      query_prefix='query:  ', passage_prefix='',
  )
  queries = ['find a map', 'a date', 'open the file']
  passages = ['maps of a list', 'the date', 'a file is opened by its long path']
  pools = [
      Pool([(encode(texts), {})]) for encode, texts in (
          (tokenizer.encode_queries, queries),
          (tokenizer.encode_passages, passages),
      )
  ]

  def predict(pairs):
    """What a pair is, told apart by its texts alone."""
    found = []
    for query, passage in pairs:
      place = [p.startswith(passage) for p in passages].index(True)
      assert passage and len(passage) <= len(passages[place])
      found.append(10 * queries.index(query) + place)
    return found

  rows = np.array([[2, 0], [0, 2], [2, 2], [1, 1]])
  teacher = TextTeacher(predict, {})
  found = score_as_text(teacher, tokenizer, *pools, rows)
  np.testing.assert_array_equal(found, rows @ [10, 1])
