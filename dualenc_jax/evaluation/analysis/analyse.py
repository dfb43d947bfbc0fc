"""The analysis of a model on a split: a sample, embedded and measured."""

from collections.abc import Mapping
import dataclasses
import logging
import pathlib
from typing import Any

import numpy as np

from dualenc_jax.evaluation.analysis import (
  geometry,
  sample as sample_lib,
  vectors,
)
from dualenc_jax.evaluation.analysis.sample import Sample
from dualenc_jax.evaluation.analysis.separability import groups_of, separability
from dualenc_jax.evaluation.analysis.vectors import Vectors
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.retrieval.encoding.towers import Loaded
from dualenc_jax.retrieval.index import of_model
from dualenc_jax.training.experiment import Experiment
from dualenc_jax.utils.errors import UserError

# Queries, and as many passages, that numbers and histograms are of.
_MEASURED = 5000
# Of each tower: more do not change the accuracy, and take long.
_CLASSIFIED = 2000
NEAR_ONE = (0.9, 1.1)
_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Analysis:
  """One model on one sample.

  Attributes:
    name: of the model.
    data: label, split and fingerprints of what the sample is from.
    provenance: of the model.
    sample: queries and passages.
    vectors: what the model makes of them.
    numbers: by name, see `measure`.
  """

  name: str
  data: Mapping[str, Any]
  provenance: Mapping[str, Any]
  sample: Sample
  vectors: Vectors
  numbers: Mapping[str, float]


def analyse(
    name: str, model: Loaded, experiment: Experiment, split: str,
    mapped: int = 400, seed: int = 0, max_passages: int | None = None,
    index_dir: pathlib.Path | None = None,
) -> Analysis:
  """Samples a split, embeds the sample with a model, and measures it.

  Numbers and histograms are of 5,000 queries and as many passages, or of
  `mapped` if these are more; `seed` and `max_passages` are those of
  `sample.draw`. `index_dir` is the folder of an index of the whole corpus,
  which is made unless it exists; None keeps the embeddings in memory.

  Raises:
    UserError: too little data, or vectors that are not finite.
  """
  whole = RetrievalSet.of_split(experiment, split)
  sample = sample_lib.draw(whole, max(mapped, _MEASURED), seed, max_passages)
  _LOG.info('Passages of %s: %s.', name, f'{len(sample.searched):,}')
  # Embeddings, whatever codec was trained with them.
  towers = dataclasses.replace(model, codec=None)
  encoded = of_model.corpus_embeddings(
      towers, whole.corpus.subset(sample.searched), index_dir
  )
  if codec := getattr(encoded, 'codec', None):
    raise UserError(
        f'--index_dir={index_dir} holds codes of {codec.name}, but the analysis'
        ' needs embeddings. Give an index of --codec=fp32, or none.'
    )
  found = vectors.embed(name, model.embedder, model.params, sample, encoded)
  _LOG.info('Measuring %s.', name)
  numbers = measure(found, sample)
  if 'separability' not in numbers:
    _LOG.warning(
        'No separability of %s: most queries, or passages, hang together by'
        ' shared relevant passages or equal texts, and no folds part them.',
        name,
    )
  corpus = whole.corpus.cache.header
  data = {
      'label': experiment.task.label,
      'split': split,
      'source': whole.cache.header['source'],
      'corpus': {key: corpus[key] for key in ('split', 'source')},
  }
  return Analysis(name, data, model.provenance, sample, found, numbers)


def measure(vectors: Vectors, sample: Sample) -> dict[str, float]:
  """The numbers of a model by name; what does not apply is absent.

  Beside those of `separability` and `geometry`:

  Returns:
    positive_query_cosine, positive_negative_cosine: of relevant passages with
      their query, and with its 100 best hits that are not relevant: figure 4
      of PAIR (Ren et al. 2021), which wants the first above the second.
  """
  cache, corpus = sample.retrieval_set.cache, sample.retrieval_set.corpus
  query_prints = cache.query_fingerprints[sample.retrieval_set.query_rows]
  passage_prints = corpus.cache.passage_fingerprints[corpus.rows]
  size = min(len(vectors.queries), len(vectors.passages), _CLASSIFIED)
  apart = separability(
      vectors.queries[:size],
      vectors.passages[:size],
      groups_of(
          query_prints[sample.queries[:size]],
          passage_prints[sample.passages[:size]],
          [passage_prints[np.array(r, np.int64)] for r in sample.gold[:size]],
      ),
      sample.seed,
  )
  values = {
      **({} if apart is None else {'separability': apart}),
      'uniformity_queries': geometry.uniformity(vectors.queries),
      'uniformity_passages': geometry.uniformity(vectors.passages),
      'median_top1_cosine': float(np.median(vectors.top_cosines)),
      'dimensional_efficiency': geometry.dimensional_efficiency(
          vectors.passages
      ),
  }
  if sample.has_pairs:
    queries, positives = vectors.queries[sample.pair_queries], vectors.positives
    if len(vectors.ratios):
      values['median_ratio'] = float(np.median(vectors.ratios))
      near = geometry.share_within(vectors.ratios, *NEAR_ONE)
      values['ratios_near_one'] = near
    own = np.sum(queries * positives, axis=1, dtype=np.float64)
    values['positive_query_cosine'] = float(own.mean())
    if not np.isnan(vectors.negative_cosines).all():
      values['positive_negative_cosine'] = float(
          np.nanmean(vectors.negative_cosines)
      )
    # E ||q - p||^2 of unit vectors (Wang and Isola 2020).
    values['alignment'] = 2 - 2 * values['positive_query_cosine']
  return values
