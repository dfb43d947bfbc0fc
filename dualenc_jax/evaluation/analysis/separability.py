"""Separability: how well a linear classifier separates two towers' vectors."""

from collections.abc import Sequence

import numpy as np

_FOLDS = 5
# A fold may hold this share of a tower; a classifier learns from the rest.
_MOST = 0.5


def separability(
    queries: np.ndarray, passages: np.ndarray, groups: np.ndarray, seed: int = 0
) -> float | None:
  """Cross-validated accuracy of a logistic regression, query or passage.

  Args:
    queries: float [n, D].
    passages: float [n, D], as many: guessing scores 0.5.
    groups: int [2 n], see `groups_of`; none is in two folds.
    seed: seed of the folds.

  Returns:
    About 0.5 where the towers' spaces coincide, 1.0 where a plane separates
    them. None if one fold would hold more than half of a tower, as where most
    queries are linked: too little would be left to learn from.
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
  parts = [(train, test) for train, test in splits if len(test)]
  largest = max(np.bincount(towers[test]).max() for _, test in parts)
  if largest > _MOST * len(queries):
    return None
  # Regularisation is strong, as there may be more dimensions than vectors, and
  # classes are balanced, as a large group leaves fewer of one tower.
  classifier = make_pipeline(
      StandardScaler(),
      LogisticRegression(C=1e-2, max_iter=1000, class_weight='balanced'),
  )
  # One thread sums in one order, which fixes the result's last digit.
  with threadpoolctl.threadpool_limits(1):
    predicted = cross_val_predict(classifier, vectors, towers, cv=parts)
  return float(np.mean(predicted == towers))


def groups_of(
    queries: np.ndarray, passages: np.ndarray, relevant: Sequence[np.ndarray]
) -> np.ndarray:
  """Connected components of texts linked by equality or relevance.

  If linked texts were in two folds, a classifier could learn their topics
  rather than how the towers differ.

  Args:
    queries: uint64 [n], fingerprints of tokens.
    passages: uint64 [m], fingerprints of tokens.
    relevant: for each query the fingerprints of its relevant passages, uint64
      [any], whether or not these are among `passages`.

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
  links = coo_array(
      (np.ones(len(start)), (start, text_of[count:])), (len(texts),) * 2
  )
  _, component = connected_components(links, directed=False)
  return component[text_of[:count]]
