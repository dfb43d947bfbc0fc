"""An objective of a user's own: how long is the passage of these words?"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from dualenc_jax.objectives import Objective


@dataclasses.dataclass
class Rows:
  """Batches straight from the token cache, every example a cell."""

  run: object

  def __post_init__(self):
    self.cells = self.run.batch_size
    self.shapes = [(self.cells, self.run.tokenizer.query_length)]

  def __call__(self, step, cells=slice(None)):
    cache = self.run.caches[0]
    rng = np.random.default_rng([self.run.seed, step])
    rows = rng.choice(len(cache), self.cells, replace=False)[cells]
    lengths = cache.passage_tokens.lengths[rows]
    return {
        'words': cache.query_tokens.padded(rows, self.shapes[0][1]),
        'length': lengths.astype(np.float32),
    }


@dataclasses.dataclass(frozen=True)
class BagOfWords(Objective):
  """Linear regression: the sum of a number for each word."""

  vocab_size: int

  def init(self, key):
    return {'words': 0.1 * jax.random.normal(key, (self.vocab_size, 1))}

  def __call__(self, params, batch, key=None):
    words = params['words'][batch['words'], 0] * (batch['words'] > 0)
    loss = jnp.mean((words.sum(axis=1) - batch['length']) ** 2)
    return loss, {}

  def batches(self, run):
    return Rows(run)

  def abstract_batch(self, run):
    shape = run.batch_size, run.tokenizer.query_length
    return {
        'words': jax.ShapeDtypeStruct(shape, np.int32),
        'length': jax.ShapeDtypeStruct(shape[:1], np.float32),
    }
