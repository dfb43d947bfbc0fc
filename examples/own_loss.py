"""A loss of your own: python examples/own_loss.py PAIRS.jsonl MODEL_DIR.

Decoupled contrastive learning (Yeh et al. 2022): the positive is not in the
denominator.
"""

import dataclasses
import sys

import jax.numpy as jnp
from train_in_python import experiment

import dualenc_jax as dj
from dualenc_jax.data import readers
from dualenc_jax.losses import blocks


@dataclasses.dataclass(frozen=True)
class Decoupled(dj.losses.Loss):
  """The mean of log sum_j exp s(q_i, p_j) - s(q_i, p_i), j != i."""

  def __call__(self, params, batch, similarity):
    block = blocks.QUERY_PASSAGES
    negatives = blocks.partitions(batch, [block], similarity)[block]
    positive = jnp.sum(batch.query * batch.passage, axis=1)
    value = jnp.mean(negatives.lse - positive / similarity.temperature)
    return value, {'positive_similarity': jnp.mean(positive)}


if __name__ == '__main__':
  pairs, model_dir = sys.argv[1:]
  task = readers.Pairs(train=pairs)
  ended = dj.training.train(experiment(task, model_dir, Decoupled()))
  print(f'{model_dir} has {ended.step} steps.')
