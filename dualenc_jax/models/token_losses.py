"""Cross-entropy of the tokens that a model writes, as T5X computes it."""

import jax
import jax.numpy as jnp
import numpy as np


def token_losses(
    logits: jax.Array, targets: jax.Array, z_loss: float = 0.0,
    label_smoothing: float = 0.0,
) -> jax.Array:
  """The loss of each token of targets [R, T], 0 at best but for the z-loss.

  `z_loss` is a factor of the squared logarithm of the partition function;
  smoothing spreads a share of the probability over all other tokens.
  """
  log_z = jax.nn.logsumexp(logits, axis=-1)
  size = logits.shape[-1]
  # A comparison, not a gather: its gradient is no scatter, and it needs no
  # logits of another device where the vocabulary is sharded.
  tokens = jnp.arange(size, dtype=jnp.int32)[None, None]
  of_target = jnp.sum(
      jnp.where(tokens == targets[:, :, None], logits, 0.0), axis=-1
  )
  losses = log_z - of_target
  if label_smoothing:
    low = label_smoothing / (size - 1)
    high = 1.0 - label_smoothing
    entropy = -(high * np.log(high) + label_smoothing * np.log(low))
    of_all = jnp.sum(logits, axis=-1)
    losses = log_z - (high - low) * of_target - low * of_all - entropy
  if z_loss:
    losses += z_loss * jnp.square(log_z)
  return losses
