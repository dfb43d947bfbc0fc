"""Tokens drawn from logits by temperature, top-k and top-p, in that order.

Shapes: n targets, V vocabulary.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from dualenc_jax.retrieval.search.search_programs import top_scores
from dualenc_jax.utils.errors import expect


@dataclasses.dataclass(frozen=True)
class Sampling:
  """Settings with the meaning that they have in `transformers`.

  Attributes:
    temperature: divides the logits; 0 takes the most probable token (greedy).
    top_k: number of most probable tokens to draw from; None for all.
    top_p: mass of the nucleus (Holtzman et al. 2020), the fewest of these whose
      renormalised probabilities reach it; 1.0 for all.
  """

  temperature: float = 1.0
  top_k: int | None = 25
  top_p: float = 0.95

  def __post_init__(self):
    temperature, most, top_p = self.temperature, self.top_k, self.top_p
    expect(
        0 <= temperature < math.inf, 'Sampling.temperature', temperature,
        '0, which is greedy, or a number above it',
    )
    expect(
        most is None or type(most) is int and most >= 1, 'Sampling.top_k', most,
        'a whole number, 1 or more, or None',
    )
    expect(
        0 < top_p <= 1, 'Sampling.top_p', top_p, 'a share above 0, at most 1'
    )

  def draw(
      self, keys: jax.Array, logits: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Draws a token for each target.

    Args:
      keys: [n], one a target.
      logits: float32 [n, V].

    Returns:
      int32 [n], tokens; float32 [n], their log-probabilities among all tokens
      at temperature 1.
    """
    if not self.temperature:
      tokens = jnp.argmax(logits, axis=1).astype(jnp.int32)
    else:
      count = logits.shape[1]
      if self.top_k is not None or self.top_p < 1:
        count = min(self.top_k or count, count)
        best, which = top_scores(logits, count, count)
      else:
        best, which = logits, None
      best = best / self.temperature
      if self.top_p < 1:
        chances = jax.nn.softmax(best, axis=1)
        before = jnp.cumsum(chances, axis=1) - chances
        # The first is kept, whatever rounding makes of the sum before it.
        inside = (before < self.top_p).at[:, 0].set(True)
        best = jnp.where(inside, best, -jnp.inf)
      noise = jax.vmap(lambda key: jax.random.gumbel(key, (count,)))(keys)
      tokens = jnp.argmax(best + noise, axis=1).astype(jnp.int32)
      if which is not None:
        tokens = jnp.take_along_axis(which, tokens[:, None], 1, mode='clip')
        tokens = tokens[:, 0].astype(jnp.int32)
    own = jnp.take_along_axis(logits, tokens[:, None], 1, mode='clip')[:, 0]
    return tokens, own - jax.nn.logsumexp(logits, axis=1)
