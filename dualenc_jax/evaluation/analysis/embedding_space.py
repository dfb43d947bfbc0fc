"""The analysis of a model on a split: a sample, embedded and measured."""

from collections.abc import Mapping, Sequence
import dataclasses
import logging
import pathlib
from typing import Any

import numpy as np
from scipy.spatial.distance import pdist

from dualenc_jax.evaluation.analysis import vectors
from dualenc_jax.evaluation.analysis.vectors import (
  Sample,
  share_within,
  Vectors,
)
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.parallel.hosts import Host
from dualenc_jax.retrieval.encoding.towers import LoadedModel
from dualenc_jax.retrieval.index import build_for_model
from dualenc_jax.training.experiment import Experiment
from dualenc_jax.utils.errors import UserError

# Numbers and histograms are of so many queries, and as many passages.
_MEASURED = 5000
# More vectors of each tower take long and do not change the accuracy.
_CLASSIFIED = 2000
NEAR_ONE = (0.9, 1.1)
# Similarities of a relevant passage, as in figure 4 of PAIR.
POSITIVES = ('positive_query_cosine', 'positive_negative_cosine')
_FOLDS = 5
# A fold may hold this share of a tower; a classifier learns from the rest.
_MOST = 0.5
_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Analysis:
  """One model on one sample: its vectors, and numbers of them by `measure`.

  `data` has label, split and fingerprints of the sample's data.
  """

  name: str
  data: Mapping[str, Any]
  provenance: Mapping[str, Any]
  sample: Sample
  vectors: Vectors
  numbers: Mapping[str, float]


def analyse(
    name: str, model: LoadedModel, experiment: Experiment, split: str,
    mapped: int = 400, seed: int = 0, index_dir: pathlib.Path | None = None,
    host: Host = Host(),
) -> Analysis:
  """Samples a split, embeds the sample with a model, and measures it.

  The sample has 5,000 queries, or `mapped` ones, those on the maps, if these
  are more. `index_dir` is the folder of an index of the corpus, which is made
  unless it exists; None keeps the embeddings in memory. `host` is one of those
  that share the index and call this; the first alone has numbers.

  Raises:
    UserError: too little data, or vectors that are not finite.
  """
  whole = RetrievalSet.of_split(experiment, split)
  sample = vectors.draw(whole, max(mapped, _MEASURED), seed)
  _LOG.info('Passages of %s: %s.', name, f'{len(whole.corpus):,}')
  # The embeddings are analysed, whatever codec was trained with them.
  towers = dataclasses.replace(model, codec=None)
  whole.agree()
  encoded = build_for_model.corpus_embeddings(
      towers, whole.corpus, index_dir, host
  )
  if codec := getattr(encoded, 'codec', None):
    raise UserError(
        f'--index_dir={index_dir} holds codes of {codec.name}, but the analysis'
        ' needs embeddings. Give an index of --codec=fp32, or none.'
    )
  embedded = vectors.embed(name, model.embedder, model.params, sample, encoded)
  numbers: dict[str, float] = {}
  if not host.index:
    _LOG.info('Measuring %s.', name)
    numbers = measure(embedded, sample)
  if numbers and 'separability' not in numbers:
    _LOG.warning(
        'No separability of %s: most texts are linked by relevance or equality,'
        ' so that no fair folds exist.', name,
    )
  corpus = whole.corpus.cache.header
  data = {
      'label': experiment.task.label,
      'split': split,
      'source': whole.cache.header['source'],
      'corpus': {key: corpus[key] for key in ('split', 'source')},
  }
  return Analysis(name, data, model.provenance, sample, embedded, numbers)


def measure(vectors: Vectors, sample: Sample) -> dict[str, float]:
  """Computes the numbers of a model; those that do not apply are absent.

  Returns:
    separability: see `separability`.
    median_top1_cosine: of queries with their best hit.
    median_ratio, ratios_near_one: of `similarity_ratios`.
    positive_query_cosine, positive_negative_cosine: means over relevant
      passages of the cosine with their query, and with its 100 best hits that
      are not relevant, and standard deviations, `..._sd`. Figure 4 of PAIR (Ren
      et al. 2021) has the first above the second.
    uniformity_queries, uniformity_passages: log E exp(-2 ||x - y||^2) over
      pairs of a tower, 0 where all are one point (Wang and Isola 2020).
    alignment: E ||q - p||^2 over relevant pairs (the same).
    dimensional_efficiency: see `dimensional_efficiency`.
  """
  cache, corpus = sample.retrieval_set.cache, sample.retrieval_set.corpus
  query_prints = cache.query_fingerprints[sample.retrieval_set.query_rows]
  passage_prints = corpus.cache.passage_fingerprints[corpus.rows]
  size = min(len(vectors.queries), len(vectors.passages), _CLASSIFIED)
  accuracy = separability(
      vectors.queries[:size],
      vectors.passages[:size],
      groups_of(
          query_prints[sample.queries[:size]],
          passage_prints[sample.passages[:size]],
          [passage_prints[np.array(r, np.int64)] for r in sample.gold[:size]],
      ),
      sample.seed,
  )
  values = {} if accuracy is None else {'separability': accuracy}
  for side in ('queries', 'passages'):
    squares = pdist(getattr(vectors, side)[:size], 'sqeuclidean')
    values[f'uniformity_{side}'] = float(np.log(np.mean(np.exp(-2 * squares))))
  values['median_top1_cosine'] = float(np.median(vectors.top_cosines))
  values['dimensional_efficiency'] = dimensional_efficiency(
      bit_shares(vectors.passages)
  )
  if len(vectors.ratios):
    values['median_ratio'] = float(np.median(vectors.ratios))
    values['ratios_near_one'] = share_within(vectors.ratios, *NEAR_ONE)
  if sample.has_pairs:
    queries = vectors.queries[sample.pair_queries]
    products = (queries * vectors.positives).astype(np.float64)
    cosines: np.ndarray = products.sum(axis=1)
    values['alignment'] = float(2 - 2 * cosines.mean())
    for name, own in zip(POSITIVES, (cosines, vectors.negative_cosines)):
      if len(own := own[~np.isnan(own)]):
        values |= {name: float(own.mean()), f'{name}_sd': float(own.std())}
  return values


def bit_shares(passages: np.ndarray) -> np.ndarray:
  """The share P_d of passages [n, D] whose code has a 1 as bit d: [D]."""
  return np.mean(passages >= 0, axis=0)


def dimensional_efficiency(shares: np.ndarray) -> float:
  """4 / D sum_d P_d (1 - P_d) of `bit_shares`, 1 where bits part in halves.

  It is as in table 4 of Thakur et al. 2022, whose equation 3 has another factor
  and sign.
  """
  return float(4 * np.mean(shares * (1 - shares)))


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
