"""Separability: how well a linear classifier separates two towers' vectors."""

from collections.abc import Sequence

import numpy as np

_FOLDS = 5
# Of a tower, that a fold may hold: the rest is what a classifier learns from.
_MOST = 0.5


def separability(
    queries: np.ndarray, passages: np.ndarray, groups: np.ndarray, seed: int = 0
) -> float | None:
  """Cross-validated accuracy of a logistic regression, query or passage.

  Args:
    queries: float [n, D].
    passages: float [n, D], as many: guessing scores 0.5.
    groups: int [2 n], see `groups_of`; none is in two folds.
    seed: of the folds.

  Returns:
    About 0.5 where the towers' spaces coincide, 1.0 where a plane parts them.
    None if more than half of a tower would be in one fold, as where most
    queries hang together: too little would be left to learn from.
  """
  from sklearn.linear_model import LogisticRegression
  from sklearn.model_selection import cross_val_predict, StratifiedGroupKFold
  from sklearn.pipeline import make_pipeline
  from sklearn.preprocessing import StandardScaler
  import threadpoolctl

  vectors = np.concatenate([queries, passages]).astype(np.float64)
  towers = np.repeat([0, 1], len(queries))
  if len(np.unique(groups)) < _FOLDS:
    return None
  folds = StratifiedGroupKFold(_FOLDS, shuffle=True, random_state=seed)
  # Large groups may leave a fold without a text.
  splits = folds.split(vectors, towers, groups)
  parts = [(learnt, tested) for learnt, tested in splits if len(tested)]
  largest = max(np.bincount(towers[part]).max() for _, part in parts)
  if largest > _MOST * len(queries):
    return None
  # Strong regularisation: there may be more dimensions than vectors. Balanced,
  # as a large group leaves fewer of one tower than of the other.
  classifier = make_pipeline(
      StandardScaler(),
      LogisticRegression(C=1e-2, max_iter=1000, class_weight='balanced'),
  )
  # One thread: sums are in one order, and so is the result's last digit.
  with threadpoolctl.threadpool_limits(1):
    found = cross_val_predict(classifier, vectors, towers, cv=parts)
  return float(np.mean(found == towers))


def groups_of(
    queries: np.ndarray, passages: np.ndarray, relevant: Sequence[np.ndarray]
) -> np.ndarray:
  """Groups of texts that hang together, by equality or by relevance.

  Were a query and another of the same passage in two folds, a classifier could
  learn what the passage is about, and who speaks of it, rather than how towers
  differ. So a group is all that is reached from a text by steps from a query to
  a relevant passage, or back; equal texts are one.

  Args:
    queries: uint64 [n], fingerprints of tokens.
    passages: uint64 [m], fingerprints of tokens.
    relevant: for each query those of all its relevant passages, uint64 [any],
      whether these are among `passages` or not.

  Returns:
    int [n + m]: of the queries, then of the passages, from 0.
  """
  from scipy.sparse import coo_array
  from scipy.sparse.csgraph import connected_components

  count = len(queries) + len(passages)
  texts, text_of = np.unique(
      np.concatenate([queries, passages, *relevant]), return_inverse=True
  )
  start = np.repeat(text_of[: len(queries)], [len(r) for r in relevant])
  steps = coo_array(
      (np.ones(len(start)), (start, text_of[count:])), (len(texts),) * 2
  )
  _, component = connected_components(steps, directed=False)
  return component[text_of[:count]]
