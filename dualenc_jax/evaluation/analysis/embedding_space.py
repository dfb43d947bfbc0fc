"""The analysis of a model on a split: a sample, embedded and measured."""

from collections.abc import Mapping
import dataclasses
import logging
import pathlib
from typing import Any

import numpy as np

from dualenc_jax.evaluation.analysis import sample as sample_lib, vectors
from dualenc_jax.evaluation.analysis.sample import Sample
from dualenc_jax.evaluation.analysis.separability import groups_of, separability
from dualenc_jax.evaluation.analysis.vectors import share_within, Vectors
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.retrieval.encoding.towers import LoadedModel
from dualenc_jax.retrieval.index import build_for_model
from dualenc_jax.training.experiment import Experiment
from dualenc_jax.utils.errors import UserError

# Numbers and histograms are of so many queries, and as many passages.
_MEASURED = 5000
# More vectors of each tower take long and do not change the accuracy.
_CLASSIFIED = 2000
NEAR_ONE = (0.9, 1.1)
_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Analysis:
  """One model on one sample.

  Attributes:
    name: the model's name.
    data: label, split and fingerprints of the sample's data.
    provenance: the model's.
    sample: queries and passages.
    vectors: their embeddings.
    numbers: values by name, see `measure`.
  """

  name: str
  data: Mapping[str, Any]
  provenance: Mapping[str, Any]
  sample: Sample
  vectors: Vectors
  numbers: Mapping[str, float]


def analyse(
    name: str, model: LoadedModel, experiment: Experiment, split: str,
    mapped: int = 400, seed: int = 0, max_passages: int | None = None,
    index_dir: pathlib.Path | None = None,
) -> Analysis:
  """Samples a split, embeds the sample with a model, and measures it.

  Args:
    name: the model's name.
    model: the model.
    experiment: has the task.
    split: the split to sample.
    mapped: the queries on the maps. The sample has 5,000 queries, or as many as
      the maps if these have more.
    seed: see `sample.draw`.
    max_passages: see `sample.draw`.
    index_dir: folder of an index of the whole corpus, which is made unless it
      exists; None keeps the embeddings in memory.

  Raises:
    UserError: too little data, or vectors that are not finite.
  """
  whole = RetrievalSet.of_split(experiment, split)
  sample = sample_lib.draw(whole, max(mapped, _MEASURED), seed, max_passages)
  _LOG.info('Passages of %s: %s.', name, f'{len(sample.searched):,}')
  # The embeddings are analysed, whatever codec was trained with them.
  towers = dataclasses.replace(model, codec=None)
  encoded = build_for_model.corpus_embeddings(
      towers, whole.corpus.subset(sample.searched), index_dir
  )
  if codec := getattr(encoded, 'codec', None):
    raise UserError(
        f'--index_dir={index_dir} holds codes of {codec.name}, but the analysis'
        ' needs embeddings. Give an index of --codec=fp32, or none.'
    )
  embedded = vectors.embed(name, model.embedder, model.params, sample, encoded)
  _LOG.info('Measuring %s.', name)
  numbers = measure(embedded, sample)
  if 'separability' not in numbers:
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
      are not relevant. Figure 4 of PAIR (Ren et al. 2021) has the first above
      the second.
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
  values['median_top1_cosine'] = float(np.median(vectors.top_cosines))
  if len(vectors.ratios):
    values['median_ratio'] = float(np.median(vectors.ratios))
    values['ratios_near_one'] = share_within(vectors.ratios, *NEAR_ONE)
  if sample.has_pairs:
    queries = vectors.queries[sample.pair_queries]
    cosines = np.sum(queries * vectors.positives, axis=1, dtype=np.float64)
    values['positive_query_cosine'] = float(cosines.mean())
    if not np.isnan(vectors.negative_cosines).all():
      values['positive_negative_cosine'] = float(
          np.nanmean(vectors.negative_cosines)
      )
  return values
