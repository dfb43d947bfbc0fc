"""A teacher's scores: calibration, against scikit-learn, and their spread."""

import json

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from dualenc_jax.retrieval.encoding import teacher
from dualenc_jax.retrieval.encoding.teacher import Calibration, check_spread
from dualenc_jax.utils.errors import UserError


def sample(seed, scale):
  """Scores whose log odds are known to be 0.8 s / scale - 1.5."""
  rng = np.random.default_rng(seed)
  scores = rng.normal(size=4000) * 3
  chance = 1 / (1 + np.exp(-(0.8 * scores - 1.5)))
  return (scores * scale).astype(np.float32), rng.random(4000) < chance


@pytest.mark.parametrize('scale', [1e-3, 1.0, 40.0])
def test_is_the_logistic_regression_on_platts_targets(scale):
  scores, relevant = sample(0, scale)
  found = teacher.fit_calibration(scores, relevant)
  scores = scores.astype(np.float64)
  p, n = relevant.sum(), (~relevant).sum()
  targets = np.where(relevant, (p + 1) / (p + 2), 1 / (n + 2))
  reference = LogisticRegression(C=np.inf, tol=1e-12, max_iter=10_000)
  # A target t is t of a positive and 1 - t of a negative.
  reference.fit(
      np.tile(scores[:, None] / scale, (2, 1)),
      np.repeat([1, 0], len(scores)),
      np.concatenate([targets, 1 - targets]),
  )
  assert found.slope * scale == pytest.approx(reference.coef_[0, 0], rel=1e-4)
  assert found.intercept == pytest.approx(reference.intercept_[0], rel=1e-4)
  assert found.slope * scale == pytest.approx(0.8, rel=0.1)
  np.testing.assert_allclose(
      found.probabilities(scores),
      reference.predict_proba(scores[:, None] / scale)[:, 1],
      atol=1e-4,
  )


@pytest.mark.parametrize('relevant', [[0, 0, 0], [1, 1, 1], [1, 0, 0], []])
def test_nothing_to_calibrate_by(relevant):
  relevant = np.array(relevant, bool)
  assert teacher.fit_calibration(np.arange(len(relevant)), relevant) is None


def test_saved_for_a_step(tmp_path):
  assert teacher.load_calibration(tmp_path, 3) is None
  saved = Calibration(0.5, -2.0, 3)
  teacher.save_calibration(saved, tmp_path)
  assert teacher.load_calibration(tmp_path, 3) == saved
  assert saved.describe() == 'sigmoid(0.5 s - 2)'
  # Scores of another checkpoint are others.
  assert teacher.load_calibration(tmp_path, 4) is None
  (tmp_path / teacher.CALIBRATION).write_text(json.dumps({'slope': 'steep'}))
  with pytest.raises(UserError, match='calibration.json.*slope'):
    teacher.load_calibration(tmp_path, 3)
  teacher.save_calibration(None, tmp_path)
  assert not (tmp_path / teacher.CALIBRATION).exists()


@pytest.mark.parametrize(('scores', 'why'), [
    ([0.9, 0.8, 0.99, 0.2], 'as of a sigmoid. Give raw logits'),
    ([2.1, 2.0, 2.2, 1.9], 'separates passages more'),
])
def test_flat_labels_are_refused_with_the_reason(scores, why):
  own, others = np.array(scores[::2]), np.array(scores[1::2])
  with pytest.raises(UserError, match=f'deviation of 0.*{why}'):
    check_spread(own - others, np.array(scores), 1.0)
