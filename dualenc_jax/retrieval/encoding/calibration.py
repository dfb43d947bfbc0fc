"""Calibration of a cross-encoder's scores to probabilities of relevance."""

import dataclasses
import pathlib

import numpy as np

from dualenc_jax.utils import files, json_file
from dualenc_jax.utils.errors import UserError

FILE = 'calibration.json'


@dataclasses.dataclass(frozen=True)
class Calibration:
  """Platt's: the probability of score s is sigmoid(slope s + intercept).

  Attributes:
    slope: above 0.
    intercept: it grows with the share of relevant pairs in the fit.
    step: checkpoint that gave the scores; None for any.
    pairs: number of pairs in the fit.
    positives: number of relevant pairs.
    candidates: description of the pairs.
  """

  slope: float
  intercept: float
  step: int | None = None
  pairs: int = 0
  positives: int = 0
  candidates: str = ''

  def probabilities(self, scores: np.ndarray) -> np.ndarray:
    """Probabilities of scores of any shape, float64."""
    from scipy import special  # A slow import that a training run does without.

    scores = np.asarray(scores, np.float64)
    return special.expit(self.slope * scores + self.intercept)

  def describe(self) -> str:
    """'sigmoid(0.52 s - 1.30)'."""
    sign = '-' if self.intercept < 0 else '+'
    return f'sigmoid({self.slope:.3g} s {sign} {abs(self.intercept):.3g})'


def fit(scores: np.ndarray, relevant: np.ndarray) -> Calibration | None:
  """The maximum-likelihood calibration of scored pairs.

  Targets are Platt's (1999), (P + 1) / (P + 2) of P relevant pairs and
  1 / (N + 2) of N others, so that separable scores have one, too.

  Args:
    scores: [n], finite.
    relevant: bool [n].

  Returns:
    None where all pairs or none are relevant, or where the probability does not
    grow with the score.
  """
  from scipy import optimize, special  # Slow imports, as above.

  positives = int(np.count_nonzero(relevant))
  negatives = len(relevant) - positives
  if not positives or not negatives:
    return None
  targets = np.where(
      relevant, (positives + 1) / (positives + 2), 1 / (negatives + 2)
  )
  scores = np.asarray(scores, np.float64)
  # Scores of any scale are as easy to fit.
  scale = max(np.std(scores), 1e-12)
  signs = scores / scale

  def loss(parameters):
    logits = parameters[0] * signs + parameters[1]
    value = np.logaddexp(0, logits) - targets * logits
    error = (special.expit(logits) - targets) / len(targets)
    return value.mean(), np.array([error @ signs, error.sum()])

  found = optimize.minimize(loss, np.zeros(2), jac=True, tol=1e-10)
  slope, intercept = found.x / (scale, 1)
  if slope <= 0:
    return None
  return Calibration(
      float(slope), float(intercept), pairs=len(targets), positives=positives
  )


def save(calibration: Calibration | None, folder: pathlib.Path) -> None:
  """Writes it into a model_dir; None removes an earlier one."""
  if calibration is None:
    (folder / FILE).unlink(missing_ok=True)
  else:
    files.write_json(folder / FILE, dataclasses.asdict(calibration))


def of_step(folder: pathlib.Path, step: int) -> Calibration | None:
  """The calibration of a model_dir's checkpoint, or None."""
  if not (folder / FILE).is_file():
    return None
  again = 'Remove it: scores need none, probabilities do.'
  facts = json_file.read(
      folder / FILE, again, slope=float, intercept=float, step=int
  )
  try:
    found = Calibration(**facts)
  except TypeError as e:
    raise UserError(f'{folder / FILE}: {e}. {again}') from e
  return found if found.step == step else None
