"""All numbers of one model, by name."""

import numpy as np

from dualenc_jax.analysis import geometry
from dualenc_jax.analysis.bits import bit_numbers
from dualenc_jax.analysis.geometry import Ratios, similarity_ratios
from dualenc_jax.analysis.sample import Sample
from dualenc_jax.analysis.separability import groups_of, separability
from dualenc_jax.analysis.vectors import Vectors

# Of each tower: more do not change the accuracy, and take long.
_CLASSIFIED = 2000
NEAR_ONE = (0.9, 1.1)


def numbers(vectors: Vectors, sample: Sample) -> dict[str, float]:
  """The numbers of a model; what does not apply is absent.

  Returns:
    separability: see `separability.separability`; absent where most texts of
      a tower hang together.
    alignment: of the queries with one of their relevant passages.
    uniformity_queries, uniformity_passages: see `geometry.uniformity`.
    mean_top1_cosine, median_top1_cosine: of the queries' best hits.
    positive_query_cosine, positive_negative_cosine: of relevant passages with
      their query, and with its 100 best hits that are not relevant: figure 4
      of PAIR (Ren et al. 2021), which wants the first above the second.
    median_ratio, ratios_near_one: of query-query over query-passage
      similarities: the median, and the share from 0.9 to 1.1.
    duplicate_queries, duplicate_passages: the share of the whole set whose
      tokens are those of an earlier one.
    repeated_positives: the share of the sampled pairs whose passage is that of
      an earlier pair.
    near_duplicate_queries, near_duplicate_passages: the share of the sample
      that another vector of it all but equals.
    dimensional_efficiency and others of the signs of passages: see
      `bits.bit_numbers`.
    mrr_dim_<d>: the mean reciprocal rank with the first d components.
  """
  retrieval_set = sample.retrieval_set
  corpus = retrieval_set.corpus
  query_prints = retrieval_set.cache.query_fingerprints
  passage_prints = corpus.cache.passage_fingerprints[corpus.rows]
  size = min(len(vectors.queries), len(vectors.passages), _CLASSIFIED)
  apart = separability(
      vectors.queries[:size],
      vectors.passages[:size],
      groups_of(
          query_prints[sample.query_rows()[:size]],
          passage_prints[sample.passages[:size]],
          [passage_prints[np.array(r, np.int64)] for r in sample.gold[:size]],
      ),
      sample.seed,
  )
  values = {} if apart is None else {'separability': apart}
  values |= {
      'uniformity_queries': geometry.uniformity(vectors.queries),
      'uniformity_passages': geometry.uniformity(vectors.passages),
      'mean_top1_cosine': float(vectors.top_cosines.mean(dtype=np.float64)),
      'median_top1_cosine': float(np.median(vectors.top_cosines)),
      'duplicate_queries': geometry.repeats(
          query_prints[retrieval_set.query_rows]
      ),
      'duplicate_passages': geometry.repeats(passage_prints),
      'near_duplicate_queries': geometry.near_duplicates(vectors.queries),
      'near_duplicate_passages': geometry.near_duplicates(vectors.passages),
      **bit_numbers(vectors.passages),
  }
  ratios = ratios_of(vectors, sample)
  if len(ratios.values):
    values['median_ratio'] = ratios.median
    values['ratios_near_one'] = ratios.share_within(*NEAR_ONE)
  if sample.has_pairs:
    own = np.sum(
        vectors.queries[sample.pair_queries] * vectors.positives,
        axis=1,
        dtype=np.float64,
    )
    values['positive_query_cosine'] = float(own.mean())
    if not np.isnan(vectors.negative_cosines).all():
      values['positive_negative_cosine'] = float(
          np.nanmean(vectors.negative_cosines)
      )
    values['alignment'] = geometry.alignment(
        vectors.queries[sample.pair_queries], vectors.positives
    )
    values['repeated_positives'] = geometry.repeats(sample.pair_passages)
  return values | {f'mrr_dim_{dim}': x for dim, x in vectors.mrr.items()}


def ratios_of(vectors: Vectors, sample: Sample) -> Ratios:
  """Similarity ratios: p_j is relevant for q_j where such are known.

  Else it is one of the passages of the sample.
  """
  if sample.has_pairs:
    queries, passages = vectors.queries[sample.pair_queries], vectors.positives
  else:
    size = min(len(vectors.queries), len(vectors.passages))
    queries, passages = vectors.queries[:size], vectors.passages[:size]
  return similarity_ratios(queries, passages, seed=sample.seed)
