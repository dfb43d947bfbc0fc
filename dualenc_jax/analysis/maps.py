"""Maps of many dimensions onto two: t-SNE and principal components."""

import dataclasses

import numpy as np

_PERPLEXITY = 30
# Standard deviation of the first coordinate where t-SNE starts: small, so that
# points can pass each other (Kobak and Berens 2019).
_START = 1e-4


def tsne(vectors: np.ndarray, seed: int = 0) -> np.ndarray:
  """The t-SNE map of vectors [n, D] (van der Maaten and Hinton 2008).

  By scikit-learn: Euclidean distances, which order unit vectors as cosines do;
  perplexity 30, less for fewer than 91 vectors; started from the principal
  components. One thread, so that it is the same every time.

  Returns:
    float32 [n, 2]; zeros if all vectors are equal.
  """
  from sklearn.manifold import TSNE
  import threadpoolctl

  perplexity = min(_PERPLEXITY, (len(vectors) - 1) / 3)
  with threadpoolctl.threadpool_limits(1):
    start = PrincipalComponents.fit(vectors).project(vectors)
    spread = start[:, 0].std()
    if not spread > 0:
      return np.zeros((len(vectors), 2), np.float32)
    start = (_START * start / spread).astype(np.float32)
    method = TSNE(init=start, perplexity=perplexity, random_state=seed)
    return method.fit_transform(vectors.astype(np.float64))


@dataclasses.dataclass(frozen=True)
class PrincipalComponents:
  """The directions in which vectors vary, the one of most variance first.

  Attributes:
    mean: float64 [D].
    directions: float64 [D, D], one a column; its greatest coordinate by size is
      positive.
    shares: float64 [D], of the variance; they add up to 1, or are 0 if all
      vectors are equal.
  """

  mean: np.ndarray
  directions: np.ndarray
  shares: np.ndarray

  @classmethod
  def fit(cls, vectors: np.ndarray) -> 'PrincipalComponents':
    """Of vectors [n, D], n at least 2."""
    vectors = vectors.astype(np.float64)
    mean = vectors.mean(axis=0)
    if not np.ptp(vectors, axis=0).any():
      # Else the mean's rounding would pass for variance.
      mean = vectors[0]
    centred = vectors - mean
    variances, directions = np.linalg.eigh(centred.T @ centred)
    # In ascending order; those of no variance may come out below zero.
    variances = np.maximum(variances[::-1], 0)
    directions = directions[:, ::-1]
    greatest = np.abs(directions).argmax(axis=0)
    signs = np.sign(directions[greatest, np.arange(len(mean))])
    total = variances.sum()
    shares = variances / total if total > 0 else np.zeros_like(variances)
    return cls(mean, directions * signs, shares)

  def project(self, vectors: np.ndarray, count: int = 2) -> np.ndarray:
    """The first `count` components of vectors [n, D]: float64 [n, count]."""
    return (vectors - self.mean) @ self.directions[:, :count]
