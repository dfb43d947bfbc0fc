"""TLDR: a linear map that preserves which vectors are neighbours.

Kalantidis et al., TLDR: Twin Learning for Dimensionality Reduction (2022): the
Barlow Twins loss, where the twin of a vector is one of its neighbours.

The authors' encoder has a bias, which has no place here. It is lost to
training, as the projector's first batch normalisation takes it off, and in use
the same shift of queries and passages would change the ranking:
(q + b).(p + b) = q.p + b.p + const(q), and b.p differs between passages.

Shapes: n vectors, D dims, d of the result, B rows of a batch, H of the
projector's layers.
"""

import functools
import logging
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np
import optax

from dualenc_jax.retrieval.search.exact_search import ExactSearch
from dualenc_jax.utils.errors import UserError

# Of both terms, and of the off-diagonal one beside the other.
_SCALE, _OFF_DIAGONAL = 1 / 32, 3.9e-3
# Added to variances.
_EPSILON = 1e-5
# The learning rate is given for a batch of 256, and decays to this share.
_BASE_BATCH, _FINAL = 256, 1e-3
_LOG = logging.getLogger(__name__)


def nearest_neighbours(vectors: np.ndarray, count: int) -> np.ndarray:
  """int64 [n, count]: rows of the greatest inner products but a row's own."""
  total = len(vectors)
  if count >= total:
    raise UserError(
        f'tldr learns from {count} neighbours of each of {total:,} vectors;'
        f' expected more than {count}. Give more passages or queries.'
    )
  found = ExactSearch(vectors, [str(i) for i in range(total)])
  hits = found.top_k(vectors, count + 1).indices
  others = hits != np.arange(total)[:, np.newaxis]
  # Where a row is not among its own, it is the last that goes.
  others[others.all(axis=1), -1] = False
  return hits[others].reshape(total, count)


def train(
    vectors: np.ndarray, twins: np.ndarray, dim: int, seed: int,
    epochs: int = 100, warmup_epochs: int = 10, batch: int = 1024,
    learning_rate: float = 0.2, hidden: int = 2048,
) -> tuple[np.ndarray, np.ndarray]:
  """Trains the encoder y = A x below a projector that is then thrown away.

  Vectors are float32 [n, D]; twins are int64 [n, k], such as the nearest
  neighbours of each vector, one of which is drawn at each step. The projector
  is d -> H, batch normalisation, ReLU -> H. With z1 and z2 the normalised
  outputs for rows and their twins, and C = z1^T z2 / B,

    loss = (sum_i (C_ii - 1)^2 + 0.0039 sum_{i != j} C_ij^2) / 32.

  LARS moves weights by about a thousandth of the learning rate at each step,
  so fewer than thousands of steps ask for more epochs or a higher rate: of a
  thousand vectors, the defaults hardly leave the random start.

  The learning rate is of LARS, for 256 rows, and grows with the batch; it rises
  from 0 in the warm-up, at most half of the epochs, and falls along a cosine.

  Returns:
    A, float32 [d, D], and float32 [epochs], the mean loss of each.
  """
  batch = min(batch, len(vectors))
  steps = len(vectors) // batch
  schedule = optax.warmup_cosine_decay_schedule(
      init_value=0.0, peak_value=learning_rate * batch / _BASE_BATCH,
      warmup_steps=min(warmup_epochs * steps, epochs * steps // 2),
      decay_steps=epochs * steps,
      end_value=learning_rate * batch / _BASE_BATCH * _FINAL,
  )
  # As Barlow Twins has it, scales and shifts take plain steps.
  matrices = functools.partial(jax.tree.map, lambda x: x.ndim > 1)
  optimizer = optax.lars(schedule, momentum=0.9, trust_ratio_mask=matrices)
  devices = jax.local_devices()
  mesh = jax.sharding.Mesh(
      np.array(devices[: math.gcd(batch, len(devices))]), ('devices',)
  )
  split = NamedSharding(mesh, PartitionSpec('devices'))
  params = jax.device_put(
      _weights(vectors.shape[1], dim, hidden, seed),
      NamedSharding(mesh, PartitionSpec()),
  )
  state = optimizer.init(params)
  step = jax.jit(
      functools.partial(_step, optimizer=optimizer), donate_argnums=(0, 1)
  )
  rng = np.random.default_rng(seed)
  history = np.empty(epochs, np.float32)
  with jax.set_mesh(mesh):
    for epoch in range(epochs):
      losses = []
      order = rng.permutation(len(vectors))
      for rows in order[: steps * batch].reshape(steps, batch):
        others = twins[rows, rng.integers(twins.shape[1], size=batch)]
        pair = jax.device_put((vectors[rows], vectors[others]), split)
        params, state, loss = step(params, state, *pair)
        losses.append(loss)
      history[epoch] = np.mean(jax.device_get(losses))
      if not np.isfinite(history[epoch]):
        raise UserError(
            f'the loss of TLDR is {history[epoch]} in epoch {epoch + 1}:'
            f' expected a number. learning_rate is {learning_rate}: lower it.'
        )
      _LOG.info('TLDR, epoch %d: loss %.4f', epoch + 1, history[epoch])
  return np.asarray(params['encoder']).T.copy(), history


def _weights(dims: int, dim: int, hidden: int, seed: int) -> dict[str, Any]:
  """Uniform up to 1 / sqrt(inputs), as is usual for linear layers."""
  rng = np.random.default_rng(seed)

  def matrix(inputs, outputs):
    limit = 1 / math.sqrt(inputs)
    return rng.uniform(-limit, limit, (inputs, outputs)).astype(np.float32)

  return {
      'encoder': matrix(dims, dim),
      'first': matrix(dim, hidden),
      'scale': np.ones(hidden, np.float32),
      'shift': np.zeros(hidden, np.float32),
      'second': matrix(hidden, hidden),
  }


def _step(params, state, rows, twins, *, optimizer):
  value, gradients = jax.value_and_grad(_loss)(params, rows, twins)
  updates, state = optimizer.update(gradients, state, params)
  return optax.apply_updates(params, updates), state, value


def _loss(params, rows: jax.Array, twins: jax.Array) -> jax.Array:
  """Barlow Twins; the statistics are of the rows, and of the twins, [B, D]."""
  one, other = (_project(params, x) for x in (rows, twins))
  correlations = one.T @ other / len(rows)
  diagonal = jnp.diag(correlations)
  off_diagonal = jnp.sum(correlations**2) - jnp.sum(diagonal**2)
  return _SCALE * (jnp.sum((diagonal - 1) ** 2) + _OFF_DIAGONAL * off_diagonal)


def _project(params: dict[str, jax.Array], rows: jax.Array) -> jax.Array:
  values = _normalised(rows @ params['encoder'] @ params['first'])
  values = values * params['scale'][jnp.newaxis] + params['shift'][jnp.newaxis]
  return _normalised(jax.nn.relu(values) @ params['second'])


def _normalised(values: jax.Array) -> jax.Array:
  """Mean 0 and variance 1 of each column, over the whole batch."""
  values = values - jnp.mean(values, axis=0, keepdims=True)
  variance = jnp.mean(values**2, axis=0, keepdims=True)
  return values * jax.lax.rsqrt(variance + _EPSILON)
