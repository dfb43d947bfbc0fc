"""Joint training of a query tower and a product quantiser's centroids (JPQ)."""

from collections.abc import Iterator
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dualenc_jax.data import Layout, Packed
from dualenc_jax.data.columns import STEP
from dualenc_jax.losses.code_search import lambda_rank
from dualenc_jax.losses.loss import weighted_mean
from dualenc_jax.models import DualEncoder
from dualenc_jax.objectives import passage_states
from dualenc_jax.objectives.objective import Key, Result, Run
from dualenc_jax.objectives.over_codes import OverCodes
from dualenc_jax.retrieval.compression.model_codec import GROUP, SCORE
from dualenc_jax.utils.errors import check_whole, UserError


@dataclasses.dataclass(frozen=True)
class JointPq(OverCodes):
  """JPQ (Zhan et al. 2021): joint learning of a query tower and of centroids.

  Each step searches all codes for the `depth` best by C and E as they are now.
  With these and the labelled passages of q,

    L_q = mean over relevant i, other j found of
          log(1 + exp((s_j - s_i) / temperature)) |w(r_j) - w(r_i)|,

  w(r) = 1 / r up to rank `cut`, and 0 behind. A relevant passage that is not
  found has rank depth + 1; other hits are the negatives. At a temperature of 1
  the logarithm would be in its linear part. Every `refresh` steps the search
  takes over C.
  """

  model: DualEncoder
  codec_from: str | None = None
  depth: int = 200
  cut: int = 200
  temperature: float = 0.01
  refresh: int = 1
  whole_corpus: bool = True
  states_dir: str | None = None
  micro_batch_size: int | None = None
  layout: Layout = Packed()

  def __post_init__(self):
    super().__post_init__()
    for name in ('cut', 'refresh'):
      macro = f'JPQ_{name.upper()}'
      check_whole(f'JointPq.{name} ({macro})', getattr(self, name), 1)

  def check_batch(self, run: Run) -> None:
    super().check_batch(run)
    size = self.codec.quantiser.score.shape[1]
    devices = run.partitioner.mesh.shape['data']
    # The stale centroids are kept centroid by centroid.
    if self.refresh > 1 and size % devices:
      raise UserError(
          f'JPQ_REFRESH is {self.refresh}, and {devices} devices on the data'
          f' axis do not divide the {size} centroids of a part. Expected'
          ' JPQ_REFRESH=1, or a power of two of devices.'
      )

  def memory(self, run: Run) -> Any:
    del run
    if self.refresh == 1:
      return ()
    parts, size, width = self.codec.quantiser.score.shape
    return {SCORE: jax.ShapeDtypeStruct((size, parts, width), np.float32)}

  def fill(self, run: Run, params: Any) -> Any:
    self.check_tower(run, params)
    if self.refresh == 1:
      return ()
    score = np.asarray(jax.device_get(params[GROUP][SCORE]))
    found = {SCORE: np.ascontiguousarray(np.swapaxes(score, 0, 1))}
    return passage_states.put(found, score.shape[1], run.partitioner)

  def step(
      self, params: Any, memory: Any, batch: Any, key: Key
  ) -> tuple[jax.Array, dict[str, jax.Array], Any]:
    score = params[GROUP][SCORE]
    searched = score
    if self.refresh > 1:
      now = jax.lax.stop_gradient(jnp.swapaxes(score, 0, 1))
      renewed = batch[STEP] % self.refresh == 0
      kept = jnp.where(renewed, now, memory[SCORE])
      memory, searched = {SCORE: kept}, jnp.swapaxes(kept, 0, 1)
    value, metrics = self._value(params, batch, searched, key)
    return value, metrics, memory

  def __call__(self, params: Any, batch: Any, key: Key = None) -> Result:
    return self._value(params, batch, params[GROUP][SCORE], key)

  def _value(self, params, batch, searched, key):
    """The value and metrics of a batch, with centroids for the search."""
    query = self.queries(params, batch, key)
    hits = self.search(batch, query, searched)
    relevant, others, metrics = self.rank(params, batch, query, hits)
    losses = lambda_rank(relevant, others, self.cut, self.temperature)
    loss = weighted_mean(losses, batch.get('weights'))
    return loss, {'loss': loss, **metrics}

  def describe(self, run: Run) -> Iterator[str]:
    yield from super().describe(run)
    stale = ''
    if self.refresh > 1:
      stale = f', by centroids of up to {self.refresh - 1} steps ago'
    yield (
        f'JPQ: the query tower and the centroids of {self.codec.name} are'
        f' trained, by the {self.depth} best of all passages at each'
        f' step{stale}.'
    )
