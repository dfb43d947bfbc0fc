"""The metrics by their definitions, one query at a time, in plain Python."""

import math

import numpy as np


def trec_eval_order(hits):
  """Passage ids as trec_eval orders them.

  Its C code holds scores as float and compares ids byte by byte.
  """
  by_id = sorted(hits, key=lambda p: p.encode(), reverse=True)
  return sorted(by_id, key=lambda p: -np.float32(hits[p]))


def of_order(passage_ids, grades, level=1):
  """All metrics of a query whose hits are `passage_ids`, best first.

  A grade of `level` or more is relevant. Of a query without a relevant passage
  they are 0, as trec_eval's.
  """
  gains = [max(grades.get(p, 0), 0) for p in passage_ids]
  relevant = sum(grade >= level for grade in grades.values()) or math.inf
  places = [i for i, gain in enumerate(gains, 1) if gain >= level]
  first = places[0] if places else math.inf

  def dcg(gains):
    return sum(g / math.log2(i + 1) for i, g in enumerate(gains[:10], 1))

  def recall(cut):
    return sum(place <= cut for place in places) / relevant

  ideal = dcg(sorted((max(g, 0) for g in grades.values()), reverse=True))
  precisions = [i / place for i, place in enumerate(places, 1)]
  return {
      'P@1': float(first == 1),
      'MRR': 1 / first,
      'MRR@10': 1 / first if first <= 10 else 0.0,
      'nDCG@10': dcg(gains) / ideal if ideal else 0.0,
      'MAP': sum(precisions) / relevant,
      'Recall@1': recall(1),
      'Recall@10': recall(10),
      'Recall@100': recall(100),
      'Recall@1000': recall(1000),
  }
