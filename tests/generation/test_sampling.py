"""What is drawn, against transformers' own order of filters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
import torch
from transformers.generation import logits_process

from dualenc_jax.pipelines.generation.sampling import Sampling
from dualenc_jax.utils.errors import UserError

DRAWS = 20_000
# With the size of the vocabulary: the best of so many are found by groups.
CASES = {
    'warm': (128, Sampling(1.7, None, 1.0)),
    'top_k': (2048, Sampling(0.8, 6, 1.0)),
    'top_p': (128, Sampling(1.0, None, 0.7)),
    'both': (2048, Sampling(1.3, 12, 0.8)),
    'first': (128, Sampling(1.0, 5, 0.01)),
}


def logits(size):
  return (2 * np.random.default_rng(0).normal(size=size)).astype(np.float32)


def expected(own, sampling):
  """Probabilities as transformers' processors leave them."""
  scores = torch.tensor(own.astype(np.float64))[None]
  processors = [logits_process.TemperatureLogitsWarper(sampling.temperature)]
  if sampling.top_k is not None:
    processors.append(logits_process.TopKLogitsWarper(sampling.top_k))
  if sampling.top_p < 1:
    processors.append(logits_process.TopPLogitsWarper(sampling.top_p))
  for process in processors:
    scores = process(None, scores)
  return scores.softmax(-1)[0].numpy()


@pytest.mark.parametrize('name', CASES)
def test_draws_have_the_probabilities_of_transformers(name):
  size, sampling = CASES[name]
  own = logits(size)
  wanted = expected(own, sampling)
  keys = jax.vmap(jax.random.fold_in, (None, 0))(
      jax.random.key(3), jnp.arange(DRAWS)
  )
  tokens, chances = jax.jit(sampling.draw)(
      keys, jnp.broadcast_to(own[None], (DRAWS, size))
  )
  counts = np.bincount(tokens, minlength=size)
  assert not counts[wanted == 0].any()
  # Tokens of few draws in one class, as the test wants it.
  likely = wanted * DRAWS >= 5
  rest = (wanted > 0) & ~likely
  found = np.append(counts[likely], counts[rest].sum())
  ideal = np.append(wanted[likely], wanted[rest].sum()) * DRAWS
  found, ideal = found[ideal > 0], ideal[ideal > 0]
  if len(ideal) > 1:
    ideal *= found.sum() / ideal.sum()
    assert stats.chisquare(found, ideal).pvalue > 1e-3
  # Log-probabilities are the model's, whatever was left out.
  wide = own.astype(np.float64)
  np.testing.assert_allclose(
      chances, (wide - np.logaddexp.reduce(wide))[np.asarray(tokens)], atol=1e-5
  )


def test_greedy_takes_the_first_of_the_best():
  keys = jax.random.split(jax.random.key(0), 2)
  rows = np.array([[0.0, 3.0, 3.0], [5.0, 1.0, 2.0]], np.float32)
  tokens, _ = Sampling(0.0).draw(keys, jnp.asarray(rows))
  assert tokens.tolist() == [1, 0]


def test_impossible_values_are_refused():
  for name, value in (('temperature', -1.0), ('top_k', 0), ('top_p', 0.0)):
    with pytest.raises(UserError, match=f'{name} is {value}'):
      Sampling(**{name: value})
