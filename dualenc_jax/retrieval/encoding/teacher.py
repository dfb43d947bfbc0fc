"""`PairScorer` and `Teacher`, a cross-encoder; calibration; saved scores."""

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import os
import pathlib
from typing import Any

import numpy as np

from dualenc_jax.data.text.ragged import lengths_to_offsets, Pool, Ragged
from dualenc_jax.data.text.template import PairPool, TokenTemplate
from dualenc_jax.data.text.tokenizer import Tokenizer
from dualenc_jax.retrieval.encoding.embedder import Scorer
from dualenc_jax.utils import files, json_file, untrusted
from dualenc_jax.utils.errors import UserError

CALIBRATION = 'calibration.json'
# Pairs whose texts are in memory at once.
_BLOCK = 2**16
# Bytes of a file of scores, of more pairs than memory holds.
_LARGEST = 2**36
_RECORD = np.dtype([('query', '<u8'), ('passage', '<u8'), ('score', '<f4')])


@dataclasses.dataclass(frozen=True)
class Calibration:
  """Platt's calibration: sigmoid(slope s + intercept) of a score s.

  Attributes:
    slope: above 0.
    intercept: it grows with the share of relevant pairs in the fit.
    step: checkpoint that gave the scores; None for any.
  """

  slope: float
  intercept: float
  step: int | None = None

  def probabilities(self, scores: np.ndarray) -> np.ndarray:
    """Probabilities of scores of any shape, float64."""
    from scipy import special  # A slow import that a training run does without.

    scores = np.asarray(scores, np.float64)
    return special.expit(self.slope * scores + self.intercept)

  def describe(self) -> str:
    """'sigmoid(0.52 s - 1.30)'."""
    sign = '-' if self.intercept < 0 else '+'
    return f'sigmoid({self.slope:.3g} s {sign} {abs(self.intercept):.3g})'


def fit_calibration(
    scores: np.ndarray, relevant: np.ndarray
) -> Calibration | None:
  """Fits a calibration to scored pairs [n], by maximum likelihood.

  Targets are Platt's (1999), (P + 1) / (P + 2) for P relevant pairs and
  1 / (N + 2) for N others, so that separable scores have a fit, too. None is
  returned where all pairs or none are relevant, or where the probability does
  not grow with the score.
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
  # The optimizer expects scores of scale one.
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
  return Calibration(float(slope), float(intercept))


def save_calibration(
    calibration: Calibration | None, folder: pathlib.Path
) -> None:
  """Saves a calibration in a model_dir; None removes an earlier one."""
  if calibration is None:
    (folder / CALIBRATION).unlink(missing_ok=True)
  else:
    files.write_json(folder / CALIBRATION, dataclasses.asdict(calibration))


def load_calibration(folder: pathlib.Path, step: int) -> Calibration | None:
  """Loads the calibration of a model_dir's checkpoint; None if it has none."""
  if not (folder / CALIBRATION).is_file():
    return None
  again = 'Remove it: scores need none, probabilities do.'
  facts = json_file.read(
      folder / CALIBRATION, again, slope=float, intercept=float, step=int
  )
  found = Calibration(facts['slope'], facts['intercept'], facts['step'])
  return found if found.step == step else None


class PairScorer(abc.ABC):
  """A model that scores pairs of a query and a passage.

  Attributes:
    provenance: JSON that determines its scores.
    calibration: from scores to probabilities, or None.
  """

  provenance: Mapping[str, Any]
  calibration: Calibration | None

  def scores(
      self,
      queries: Sequence[str],
      passages: Sequence[str],
      pairs: np.ndarray,
  ) -> np.ndarray:
    """Logits float32 [n] of pairs int64 [n, 2] of query and passage."""
    blocks = [found for _, found in self.blocks(queries, passages, pairs)]
    return np.concatenate([np.zeros(0, np.float32), *blocks])

  @abc.abstractmethod
  def blocks(
      self,
      queries: Sequence[str],
      passages: Sequence[str],
      pairs: np.ndarray,
      size: int = _BLOCK,
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields blocks of pairs [b, 2] with their scores [b], in order."""


@dataclasses.dataclass(frozen=True, eq=False)
class Teacher(PairScorer):
  """A cross-encoder with its parameters and tokenizer.

  Attributes:
    params: parameters of `scorer` on the devices.
    tokenizer: vocabulary and lengths.
    template: tokens that join a query and a passage.
    scorer: the compiled model.
  """

  params: Any
  tokenizer: Tokenizer
  template: TokenTemplate
  scorer: Scorer
  provenance: Mapping[str, Any]
  calibration: Calibration | None = None

  def blocks(
      self,
      queries: Sequence[str],
      passages: Sequence[str],
      pairs: np.ndarray,
      size: int = _BLOCK,
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    # Each text that takes part is tokenised once.
    rows = np.empty_like(pairs)
    pools = []
    for column, (texts, encode) in enumerate((
        (queries, self.tokenizer.encode_queries),
        (passages, self.tokenizer.encode_passages),
    )):
      used, rows[:, column] = np.unique(pairs[:, column], return_inverse=True)
      pools.append(Pool([(encode([texts[i] for i in used.tolist()]), {})]))
    joined = PairPool(self.template, *pools)
    for start in range(0, len(pairs), size):
      scores = self.of_tokens(joined, rows[start : start + size])
      yield pairs[start : start + size], scores

  def of_tokens(self, joined: PairPool, rows: np.ndarray) -> np.ndarray:
    """Logits of rows [n, 2] of texts that are tokens: float32 [n]."""
    offsets = lengths_to_offsets(joined.lengths(rows))
    values = np.empty(offsets[-1], np.int32)
    joined.copy(rows, values, offsets[:-1])
    return self.scorer.scores(self.params, Ragged(values, offsets))


def check_spread(
    margins: np.ndarray, scores: np.ndarray, spread: float
) -> None:
  """Raises UserError for margins [n] with a lower deviation than `spread`."""
  if len(margins) < 2 or margins.std() >= spread:
    return
  why = 'Give a teacher that separates passages more.'
  if 0 <= min(scores) <= max(scores) <= 1:
    why = 'All its scores are from 0 to 1, as of a sigmoid. Give raw logits.'
  raise UserError(
      f"The teacher's {len(margins):,} margins have a standard deviation of"
      f' {margins.std():.3g}; expected {spread:g} or more (LEAST_SPREAD in gin,'
      f' --min_spread of `dualenc mine`). {why}'
  )


class PairScores:
  """A teacher's scores of pairs, each computed once, in memory and a file.

  A killed process loses none of the scores that it has returned.
  """

  def __init__(
      self,
      score: Callable[[np.ndarray], np.ndarray],
      path: pathlib.Path | None = None,
      instead: str = '',
  ):
    """Reads the file at `path`, if any; `instead` is a remedy for its errors.

    `score` computes scores of new pairs, uint64 [n, 2] -> float32 [n].
    """
    self._score = score
    self._path = path
    self._instead = instead
    self._known: dict[tuple[int, int], float] = {}
    if path is not None and path.exists():
      self._read(path)

  def __len__(self) -> int:
    return len(self._known)

  def __call__(self, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns scores of pairs uint64 [n, 2]; computes new ones in their order.

    Returns:
      float32 [n]; bool [n], True where it was computed, once of equal pairs.

    Raises:
      UserError: a score is not finite, or the file cannot be written.
    """
    keys: list[tuple[int, int]] = [tuple(pair) for pair in pairs.tolist()]
    new: dict[tuple[int, int], int] = {}
    for place, key in enumerate(keys):
      if key not in self._known:
        new.setdefault(key, place)
    asked = np.zeros(len(keys), bool)
    if new:
      places = np.fromiter(new.values(), np.int64)
      asked[places] = True
      found = self._score(pairs[places])
      if not np.isfinite(found).all():
        raise UserError(
            f'The teacher gives {np.sum(~np.isfinite(found)):,} of'
            f' {len(found):,} pairs a score that is not finite. Give another'
            ' teacher.'
        )
      if self._path is not None:
        self._write(self._path, pairs[places], found)
      self._known.update(zip(new, found.tolist()))
    scores = np.array([self._known[key] for key in keys], np.float32)
    return scores, asked

  def _write(
      self, path: pathlib.Path, pairs: np.ndarray, scores: np.ndarray
  ) -> None:
    """Appends records, in one call, so that none but the last is torn."""
    records = np.empty(len(pairs), _RECORD)
    records['query'], records['passage'] = pairs.T
    records['score'] = scores
    with files.writing(path, self._instead):
      with open(path, 'ab', buffering=0) as out:
        out.write(records.tobytes())

  def _read(self, path: pathlib.Path) -> None:
    content = untrusted.read(path, _LARGEST)
    whole = len(content) // _RECORD.itemsize * _RECORD.itemsize
    if whole < len(content):
      # A full disk has cut the last record.
      with files.writing(path, self._instead):
        os.truncate(path, whole)
    records = np.frombuffer(content[:whole], _RECORD)
    pairs = zip(records['query'].tolist(), records['passage'].tolist())
    self._known = dict(zip(pairs, records['score'].tolist()))
