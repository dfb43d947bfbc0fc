"""The metrics by their definitions, one query at a time, in plain Python."""

import math

import numpy as np


def trec_eval_order(hits):
  """Passage ids as trec_eval orders them.

  Its C code holds scores as float and compares ids byte by byte.
  """
  by_id = sorted(hits, key=lambda p: p.encode(), reverse=True)
  return sorted(by_id, key=lambda p: -np.float32(hits[p]))


STANDARD = (
    'P@1', 'MRR', 'MRR@10', 'nDCG@10', 'MAP',
    'Recall@1', 'Recall@10', 'Recall@100', 'Recall@1000',
)


def of_order(passage_ids, grades, level=1, names=STANDARD):
  """Metrics of a query whose hits are `passage_ids`, best first.

  A grade of `level` or more is relevant. Of a query without a relevant passage
  they are 0, as trec_eval's.
  """
  gains = [max(grades.get(p, 0), 0) for p in passage_ids]
  relevant = sum(grade >= level for grade in grades.values()) or math.inf
  places = [i for i, gain in enumerate(gains, 1) if gain >= level]
  ideals = sorted((max(g, 0) for g in grades.values()), reverse=True)

  def dcg(gains):
    return sum(g / math.log2(i + 1) for i, g in enumerate(gains, 1))

  def value(family, cut):
    within = [place for place in places if place <= cut]
    match family:
      case 'P':
        return len(within) / cut
      case 'MRR':
        return 1 / within[0] if within else 0.0
      case 'nDCG':
        ideal = dcg(ideals[:cut])
        return dcg(gains[:cut]) / ideal if ideal else 0.0
      case 'MAP':
        return sum(i / place for i, place in enumerate(within, 1)) / relevant
      case 'Recall':
        return len(within) / relevant
      case 'Success':
        return float(bool(within))

  return {
      name: value(name.split('@')[0], int((name.split('@') + [10**9])[1]))
      for name in names
  }
