"""Contrastive training against a cache of passages encoded some steps ago."""

from collections.abc import Iterator, Mapping
import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dualenc_jax import losses
from dualenc_jax.data import Layout, Padded
from dualenc_jax.data.layouts import padded_rows
from dualenc_jax.data.text.ragged import as_uint32_pairs
from dualenc_jax.losses import negative_cache
from dualenc_jax.losses.loss import mean, metrics_of_batch, positive_similarity
from dualenc_jax.losses.negative_cache import NegativeCache, Sample
from dualenc_jax.losses.score_matrix import MASKED
from dualenc_jax.models import abstract_params, DualEncoder, model_params
from dualenc_jax.objectives import encoding
from dualenc_jax.objectives.frozen_passages import (
  describe_memory,
  Passages,
  put_rows,
)
from dualenc_jax.objectives.objective import Key, Run
from dualenc_jax.objectives.pairs import PairObjective
from dualenc_jax.parallel import data_axis
from dualenc_jax.parallel.partitioning import Partitioner
from dualenc_jax.retrieval.encoding.embedder import Embedder
from dualenc_jax.utils.errors import expect, UserError

# The seed of the choice of passages, beside the run's.
_CHOICE = 17


@dataclasses.dataclass(frozen=True)
class CachedNegatives(PairObjective):
  """A softmax over M cached passages (Lindgren et al., NeurIPS 2021).

  For a query q with the passage p, and a cache whose slots j have embeddings
  e_j of some steps ago, the loss is that of all of it,

    L = -log p+,  p+ = softmax([s(q, p), c_1, ..., c_M])_0,  c_j = s(q, e_j).

  With `sampled` = 1 its gradient is estimated by

    (1 - p+) (grad s(q, d) - grad s(q, p)),  d drawn from softmax(c),

  where only d is encoded again: without bias, were no embedding stale. With
  more, L is the softmax over p and the K passages that are drawn, without
  replacement, and encoded again, all with gradients.

  No labelled passage of q is a negative. After a step the cache has the new
  embeddings of the passages drawn, and the batch's passages in place of the
  oldest. At first it has passages of the training data, embedded by the initial
  model without dropout. Embeddings that a step puts in have its dropout.

  Attributes:
    sampled: K, negatives a query that are encoded again.
    top_k: the passages of the cache, most similar to q, that are negatives;
      None for all.
    refresh: share of the slots, the oldest, that are encoded again at each
      step, without dropout; the rho of DAFT (Leonhardt et al. 2022).
  """

  model: DualEncoder
  cache_size: int
  similarity: losses.Similarity = losses.Similarity()
  sampled: int = 1
  top_k: int | None = None
  refresh: float = 0.0
  micro_batch_size: int | None = None
  layout: Layout = Padded()
  num_negatives = 0

  def __post_init__(self):
    self.check_options()
    if not isinstance(self.layout, Padded):
      raise UserError(
          f'LAYOUT is {type(self.layout).__name__}: the cache needs each'
          ' passage in its own row. Give --gin.LAYOUT=@data.Padded().'
      )
    candidates = self.top_k or self.cache_size
    expect(
        1 <= candidates <= self.cache_size, 'CachedNegatives.top_k (TOP_K)',
        self.top_k, f'1 to CACHE_SIZE, {self.cache_size}, or None',
    )
    expect(
        1 <= self.sampled <= candidates, 'CachedNegatives.sampled (SAMPLED)',
        self.sampled, f'1 to {candidates}, the candidates of a query',
    )
    expect(
        0.0 <= self.refresh <= 1.0, 'CachedNegatives.refresh (REFRESH)',
        self.refresh, 'a share of the cache, from 0 to 1',
    )
    if not self.similarity.mask_duplicates:
      raise UserError(
          "Similarity.mask_duplicates is False: a cache finds a query's own"
          ' passages by their fingerprints. Expected True.'
      )

  @property
  def _refreshed(self) -> int:
    """Slots, the oldest, that a step encodes again."""
    return math.ceil(self.refresh * self.cache_size)

  def check_mesh(self, partitioner: Partitioner) -> None:
    super().check_mesh(partitioner)
    partitioner.check_batch_size('CACHE_SIZE', self.cache_size)

  def check_batch(self, run: Run) -> None:
    super().check_batch(run)
    if run.batch_size > self.cache_size:
      raise UserError(
          f'CACHE_SIZE is {self.cache_size}; expected at least BATCH_SIZE,'
          f' {run.batch_size}, whose passages it takes in at each step.'
      )
    most = len(Passages(run.caches))
    if self.cache_size > most:
      raise UserError(
          f'CACHE_SIZE is {self.cache_size}, but the training data has'
          f' {most} different passages. Expected at most that many.'
      )

  def _empty(self, run: Run) -> Any:
    return negative_cache.empty(
        self.cache_size, run.tokenizer.passage_length,
        self.model.projection.features, run.tokenizer.vocabulary.size,
    )

  def loss_params(self) -> Mapping[str, Any]:
    return self.similarity.init()

  def extra_state(self, run: Run) -> NegativeCache:
    return jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), self._empty(run)
    )

  def init_extra_state(self, run: Run, params: Any) -> NegativeCache:
    passages, size = Passages(run.caches), self.cache_size
    chosen = np.random.default_rng([run.seed, _CHOICE]).choice(
        len(passages), size, replace=False
    )
    passages = passages.select(np.sort(chosen))
    cache = self._empty(run)._replace(
        ids=as_uint32_pairs(passages.fingerprints)
    )
    passages.copy_tokens(cache.tokens)
    vectors = passages.encode(
        Embedder.for_params(self.model, params, run.partitioner),
        model_params(params), 'encode_passage', self.model.projection.features,
    )
    cache = cache._replace(embeddings=vectors)
    return put_rows(cache, size, run.partitioner)

  def step(
      self, params: Any, extra: NegativeCache, batch: Any, key: Key
  ) -> tuple[jax.Array, dict[str, jax.Array], NegativeCache]:
    # The key of dropout is that of the draws, too.
    assert key is not None
    drawing, dropout, again = jax.random.split(key, 3)
    embeddings = encoding.embed(
        self.model, params, batch, dropout, self.micro_batch_size
    ).to_float32()
    similarity = self.similarity.resolve(params.get('loss', {}))
    order = batch['numbers']
    drawn = self._draw(extra, embeddings, similarity, order, drawing)
    encoded = self._encode_drawn(params, batch, drawn, order, again)
    value, metrics = self._value(embeddings, drawn, encoded, similarity)
    # Whole numbers first: 1 - n / n is not always 0 by XLA's division.
    masked = (self.cache_size - drawn.unmasked) / jnp.float32(self.cache_size)
    metrics |= {
        'loss': value,
        'staleness': _staleness(drawn.rows, encoded),
        'masked_fraction': mean(embeddings, masked),
        **encoding.effective_ranks(embeddings.query, embeddings.passage),
        **metrics_of_batch(embeddings, similarity),
    }
    refreshed = [(drawn.rows.slots, encoded)]
    if self._refreshed:
      refreshed.append(self._encode_oldest(params, extra))
    tokens = batch['passages'].tokens
    return value, metrics, negative_cache.update(
        extra, refreshed, embeddings.passage,
        tokens.reshape(-1, tokens.shape[-1]), batch['passage_ids'],
    )

  def _draw(self, cache, embeddings, similarity, order, key) -> Sample:
    known, limits = embeddings.passage_ids[:, None], None
    if embeddings.positive_ids is not None:
      known = jnp.concatenate([known, embeddings.positive_ids], axis=1)
    if similarity.false_negative_margin is not None:
      limits = positive_similarity(embeddings)
      limits += similarity.false_negative_margin
      limits /= similarity.temperature
    return negative_cache.sample(
        cache, embeddings.query, known, similarity.temperature, key, order,
        self.sampled, self.top_k, limits,
    )

  def _encode_drawn(self, params, batch, drawn, order, key) -> jax.Array:
    """Encodes the slots drawn, with dropout and gradients: [B, K, D]."""
    queries, count = batch['queries'], self.sampled
    shape = queries.num_cells, queries.num_texts
    tokens = drawn.rows.tokens.reshape(shape[0], shape[1] * count, -1)
    numbers = encoding.number_candidates(order.reshape(shape), count)
    micro = self.micro_batch_size
    at_once = None if micro is None else micro // shape[1]
    encoded = self._encode(params, tokens, numbers, key, at_once)
    return encoded.reshape(len(order), count, -1)

  def _encode_oldest(self, params: Any, cache: NegativeCache) -> Any:
    """Encodes the oldest slots, without dropout and gradients."""
    micro = self.micro_batch_size
    if micro is not None and micro >= self._refreshed:
      micro = None
    rows = negative_cache.oldest(cache, self._refreshed, micro or 1)
    params = jax.lax.stop_gradient(params)
    encoded = self._encode(
        params, rows.tokens[:, None],
        jnp.zeros((len(rows.slots), 1), jnp.uint32), None, micro,
    )
    return rows.slots, encoded[:, 0]

  def _encode(self, params, tokens, numbers, key, at_once) -> jax.Array:
    """Encodes passages of C cells, `at_once` cells at once."""

    def encode_cells(params, texts, numbers):
      return encoding.encode_side(
          self.model, params, 'encode_passage', texts, numbers, key
      )

    texts = padded_rows(tokens)
    encoded = data_axis.map_rows(
        encode_cells, at_once,
        functools.partial(abstract_params, self.model, params), params, texts,
        numbers,
    )
    return encoded.astype(jnp.float32)

  def _value(self, embeddings, drawn, encoded, similarity):
    positive = positive_similarity(embeddings) / similarity.temperature
    negatives = jnp.einsum(
        'bd,bkd->bk', embeddings.query, encoded, precision='highest'
    )
    negatives /= similarity.temperature
    if self.sampled == 1:
      terms = _estimated(
          positive, negatives[:, 0], drawn.rows.valid[:, 0], drawn.lse
      )
    else:
      negatives = jnp.where(drawn.rows.valid, negatives, MASKED)
      terms = jax.nn.softplus(jax.nn.logsumexp(negatives, axis=1) - positive)
    first = (positive > drawn.maximum).astype(jnp.float32)
    return mean(embeddings, terms), {'accuracy': mean(embeddings, first)}

  def describe(self, run: Run) -> Iterator[str]:
    yield from super().describe(run)
    yield describe_memory(
        f'The {self.cache_size:,} passages of the cache (CACHE_SIZE)',
        self.extra_state(run), run.partitioner, 'a smaller one',
    )

  def chance(self, run: Run) -> float | None:
    candidates = self.top_k or self.cache_size
    return math.log(1 + (candidates if self.sampled == 1 else self.sampled))


def _estimated(
    positive: jax.Array, negative: jax.Array, valid: jax.Array, lse: jax.Array
) -> jax.Array:
  """Returns -log p+ [B] with the gradient of the estimate.

  It is (1 - p+) (grad negative - grad positive). Scores are present ones; the
  negative is the slot drawn, if it is `valid`; `lse` is of the cached scores.
  """
  odds = jax.lax.stop_gradient(lse - positive)
  difference = jnp.where(valid, negative - positive, 0.0)
  surrogate = jax.nn.sigmoid(odds) * difference
  # The surrogate has a gradient and no value.
  return jax.nn.softplus(odds) + surrogate - jax.lax.stop_gradient(surrogate)


def _staleness(rows: negative_cache.Rows, encoded: jax.Array) -> jax.Array:
  """Returns the mean |e_cached - e_now|^2 / |e_now|^2 of the slots drawn."""
  encoded = jax.lax.stop_gradient(encoded)
  change = jnp.sum(jnp.square(rows.embeddings - encoded), axis=-1)
  change /= jnp.maximum(jnp.sum(jnp.square(encoded), axis=-1), 1e-12)
  valid = rows.valid.astype(jnp.float32)
  return jnp.sum(valid * change) / jnp.maximum(jnp.sum(valid), 1.0)
