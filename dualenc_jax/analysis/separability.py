"""How well a linear classifier tells the vectors of the two towers apart."""

from collections.abc import Sequence

import numpy as np

FOLDS = 5


def separability(
    queries: np.ndarray,
    passages: np.ndarray,
    groups: np.ndarray,
    seed: int = 0,
) -> float:
  """Cross-validated accuracy of a logistic regression, query or passage.

  Features are standardised on the training folds; folds are stratified, and a
  group is never in two of them. It is the mean over `FOLDS` folds.

  Args:
    queries: float [n, D].
    passages: float [n, D], as many: guessing scores 0.5.
    groups: int [2 n], of the queries and then of the passages; see `groups_of`.
    seed: of the folds.

  Returns:
    About 0.5 where the towers' spaces coincide, 1.0 where a plane parts them.
  """
  from sklearn.linear_model import LogisticRegression
  from sklearn.model_selection import cross_val_score
  from sklearn.model_selection import StratifiedGroupKFold
  from sklearn.pipeline import make_pipeline
  from sklearn.preprocessing import StandardScaler
  import threadpoolctl

  vectors = np.concatenate([queries, passages]).astype(np.float64)
  towers = np.repeat([0, 1], len(queries))
  # Strong regularisation: there may be more dimensions than vectors.
  classifier = make_pipeline(
      StandardScaler(), LogisticRegression(C=1e-2, max_iter=1000)
  )
  folds = StratifiedGroupKFold(FOLDS, shuffle=True, random_state=seed)
  # One thread: sums are in one order, and so is the result's last digit.
  with threadpoolctl.threadpool_limits(1):
    accuracies = cross_val_score(
        classifier, vectors, towers, groups=groups, cv=folds
    )
  return float(accuracies.mean())


def groups_of(
    gold: Sequence[Sequence[int]], passages: np.ndarray
) -> np.ndarray:
  """Groups that hold a query and the passages relevant for it.

  Were they in two folds, what is said in both would help the classifier. A
  passage that is relevant for several queries stays with the first.

  Args:
    gold: for each of n queries its relevant passages, as rows of the corpus.
    passages: int [n], rows of the corpus.

  Returns:
    int64 [2 n]: of the queries, then of the passages.
  """
  first = {}
  for query, relevant in enumerate(gold):
    for passage in relevant:
      first.setdefault(passage, query)
  alone = len(gold)
  return np.array([
      *range(len(gold)),
      *(first.get(p, alone + i) for i, p in enumerate(passages.tolist())),
  ])
