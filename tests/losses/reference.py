"""The losses from the papers' formulas, in float64 NumPy, pair by pair.

A loss is a weighted sum of terms. Each term has one anchor, its positive and a
list of negatives, all named (tower, row); value and gradient of a term are the
textbook cross-entropy of a softmax. Shares nothing with the package.
"""

import dataclasses

import numpy as np

QUERY, PASSAGE, HARD = 'query', 'passage', 'negatives'


@dataclasses.dataclass
class Batch:
  """B pairs with K hard negatives; ids are one integer a text.

  vectors: float64 query [B, D], passage [B, D], negatives [B * K, D].
  ids: integers query [B], passage [B], negatives [B * K].
  valid: bool [B * K].
  """

  vectors: dict
  ids: dict
  valid: np.ndarray
  positives: list = None  # Of each pair the ids of all passages of its query.

  def is_positive(self, i, passage):
    """Whether a passage, by its id, is one of query i."""
    return self.positives is not None and passage in self.positives[i]


@dataclasses.dataclass
class Result:
  value: float
  gradients: dict  # as Batch.vectors, and 'log_temperature'


@dataclasses.dataclass
class Options:
  temperature: float = 0.01
  margin: float = 0.0
  mask_duplicates: bool = True
  false_negative_margin: float = np.inf
  hardness: str = None  # As of sentence-transformers' hardness_mode.
  hardness_strength: float = 5.0


def other_pairs(batch, i, tower, mask):
  """Rows of `tower` in the other pairs, for an anchor of the other tower."""
  for j in range(len(batch.ids[QUERY])):
    same = (
        batch.ids[QUERY][i] == batch.ids[QUERY][j]
        or batch.ids[PASSAGE][i] == batch.ids[PASSAGE][j] or (
            batch.is_positive(i, batch.ids[PASSAGE][j]) if tower == PASSAGE
            else batch.is_positive(j, batch.ids[PASSAGE][i])
        )
    )
    if j != i and not (mask and same):
      yield tower, j


def own_tower(batch, i, tower, mask):
  """The other rows of the anchor's own tower (same-tower negatives)."""
  for j in range(len(batch.ids[tower])):
    same = batch.ids[tower][i] == batch.ids[tower][j]
    if tower == PASSAGE:
      same |= batch.is_positive(i, batch.ids[tower][j])
      same |= batch.is_positive(j, batch.ids[tower][i])
    if j != i and not (mask and same):
      yield tower, j


def hard_negatives(batch, i, mask):
  """Every real hard negative of every query."""
  for j in range(len(batch.ids[HARD])):
    same = batch.ids[PASSAGE][i] == batch.ids[HARD][j]
    same |= batch.is_positive(i, batch.ids[HARD][j])
    if batch.valid[j] and not (mask and same):
      yield HARD, j


def query_side(batch, mask, same_tower=False):
  """Terms (anchor, positive, negatives) of the queries."""
  for i in range(len(batch.ids[QUERY])):
    negatives = list(other_pairs(batch, i, PASSAGE, mask))
    negatives += hard_negatives(batch, i, mask)
    if same_tower:
      negatives += own_tower(batch, i, QUERY, mask)
    yield (QUERY, i), (PASSAGE, i), negatives


def passage_side(batch, mask, same_tower=False):
  """Terms of the passages."""
  for i in range(len(batch.ids[QUERY])):
    negatives = list(other_pairs(batch, i, QUERY, mask))
    if same_tower:
      negatives += own_tower(batch, i, PASSAGE, mask)
    yield (PASSAGE, i), (QUERY, i), negatives


def passage_centric(batch, mask, queries=False, passages=True):
  """Terms of PAIR's L_P: equation 5 of Ren et al. (2021)."""
  for i in range(len(batch.ids[QUERY])):
    negatives = list(hard_negatives(batch, i, mask))
    if passages:
      negatives += own_tower(batch, i, PASSAGE, mask)
    if queries:
      negatives += other_pairs(batch, i, QUERY, mask)
    yield (PASSAGE, i), (QUERY, i), negatives


def softmax_terms(batch, mask, bidirectional):
  sides = [(1.0, True, query_side(batch, mask))]
  if bidirectional:
    sides.append((1.0, True, passage_side(batch, mask)))
  return sides


def samtone_terms(batch, mask, bidirectional, both_towers=False):
  """SamToNe, equation 2 and section 3.4."""
  sides = [(1.0, True, query_side(batch, mask, same_tower=True))]
  if bidirectional:
    sides.append((1.0, True, passage_side(batch, mask, same_tower=both_towers)))
  return sides


def pair_terms(
    batch, mask, bidirectional, alpha, positive, queries, passages=True
):
  """PAIR, equation 6: (1 - alpha) L_Q + alpha L_P."""
  sides = [
      ((1.0 - alpha) * weight, True, terms)
      for weight, _, terms in softmax_terms(batch, mask, bidirectional)
  ]
  centric = passage_centric(batch, mask, queries, passages)
  sides.append((alpha, positive, centric))
  return sides


def evaluate(batch, sides, options, weights=None):
  """Sums weight * mean over anchors of every side's terms; a Result.

  Sides are triples (weight, positive in the denominator, terms); `weights` [B]
  of the pairs in the means, None for equal ones.
  """
  gradients = {k: np.zeros_like(v) for k, v in batch.vectors.items()}
  gradients['log_temperature'] = 0.0
  value = 0.0
  if weights is None:
    weights = np.ones(len(batch.ids[QUERY]))
  shares = weights / np.sum(weights)
  for weight, in_denominator, terms in sides:
    for anchor, positive, negatives in terms:
      share = weight * shares[anchor[1]]
      loss = _add_term(
          batch, anchor, positive, negatives, in_denominator, options, share,
          gradients,
      )
      value += share * loss
  return Result(value, gradients)


def matryoshka(batch, terms, options, dims):
  """The weighted sum over the first components, of length one again.

  All D components are taken as they are. `terms` gives the sides of a batch,
  `dims` weights by dim. Gradients are of the vectors of the batch.
  """
  gradients = {k: np.zeros_like(v) for k, v in batch.vectors.items()}
  gradients['log_temperature'] = 0.0
  value = 0.0
  for dim, weight in dims.items():
    norms, units = {}, {}
    for k, x in batch.vectors.items():
      # A hard negative that is missing is all zeros.
      norms[k] = np.maximum(np.linalg.norm(x[:, :dim], axis=1)[:, None], 1e-6)
      units[k] = x[:, :dim] / norms[k]
      if dim == x.shape[1]:
        norms[k], units[k] = 1.0, x
    part = dataclasses.replace(batch, vectors=units)
    result = evaluate(part, terms(part), options)
    value += weight * result.value
    for k, unit in units.items():
      g = result.gradients[k]
      if dim < batch.vectors[k].shape[1]:
        g = (g - np.sum(g * unit, axis=1)[:, None] * unit) / norms[k]
      gradients[k][:, :dim] += weight * g
    gradients['log_temperature'] += (
        weight * result.gradients['log_temperature']
    )
  return Result(value, gradients)


def _add_term(
    batch, anchor, positive, negatives, in_denominator, o, weight, gradients
):
  """The loss of one anchor; adds `weight` times its gradient."""
  a = batch.vectors[anchor[0]][anchor[1]]
  negatives = below_limit(batch, anchor, positive, negatives, o)
  names = [positive, *negatives]
  c = np.array([batch.vectors[tower][row] for tower, row in names])
  cosines = c @ a
  cosines[0] -= o.margin
  s = cosines / o.temperature
  counted = np.full(len(names), True)
  counted[0] = in_denominator
  if not counted.any():
    return 0.0  # Every candidate is masked out: there is no term.

  logits = s + _hardness(batch, anchor, names, cosines, o)
  top = logits[counted].max()
  exponentials = np.where(counted, np.exp(logits - top), 0.0)
  loss = top + np.log(exponentials.sum()) - s[0]

  ds = exponentials / exponentials.sum()
  ds[0] -= 1
  ds *= weight
  gradients[anchor[0]][anchor[1]] += ds @ c / o.temperature
  for (tower, row), d in zip(names, ds, strict=True):
    gradients[tower][row] += d * a / o.temperature
  gradients['log_temperature'] -= ds @ s
  return loss


def _hardness(batch, anchor, names, cosines, options):
  """What hardness adds to the logits of an anchor, of which it is no function.

  The positive, the first name, gets none.
  """
  added = np.zeros(len(names))
  if options.hardness is None or anchor[0] != QUERY:
    return added
  k = len(batch.ids[HARD]) // len(batch.ids[QUERY])
  for place, (tower, row) in enumerate(names[1:], 1):
    own = tower == HARD and row // k == anchor[1]
    chosen = {
        'hard_negatives': own, 'in_batch_negatives': not own,
        'all_negatives': True,
    }[options.hardness]
    if chosen and tower != QUERY:
      added[place] = options.hardness_strength * cosines[place]
  return added


def below_limit(batch, anchor, positive, negatives, options):
  """The negatives that are not taken for false ones."""

  def cosine(other):
    a, b = (batch.vectors[tower][row] for tower, row in (anchor, other))
    return a @ b

  limit = cosine(positive) + options.false_negative_margin
  return [negative for negative in negatives if cosine(negative) <= limit]


def metrics(batch, terms, mask):
  """Logged numbers of a batch whose query side has `terms`."""
  q, p = batch.vectors[QUERY], batch.vectors[PASSAGE]
  size = len(q)
  hits, seen = 0, 0
  for anchor, positive, negatives in terms:
    seen += len(negatives)
    scores = [
        q[anchor[1]] @ batch.vectors[tower][row]
        for tower, row in negatives
        if tower != QUERY
    ]
    hits += q[anchor[1]] @ p[positive[1]] > max(scores, default=-np.inf)

  def mean_of_distinct(x, y):
    off = [x[i] @ y[j] for i in range(size) for j in range(size) if i != j]
    return np.mean(off)

  return {
      'accuracy': hits / size,
      'negatives': seen / size,
      'positive_similarity': np.mean([a @ b for a, b in zip(q, p)]),
      'query_passage_similarity': mean_of_distinct(q, p),
      'query_query_similarity': mean_of_distinct(q, q),
      'passage_passage_similarity': mean_of_distinct(p, p),
  }
