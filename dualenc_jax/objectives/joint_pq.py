"""Joint training of a query tower and a product quantiser's centroids (JPQ)."""

import dataclasses
import functools
from typing import Any

from dualenc_jax.data import Layout, Packed
from dualenc_jax.losses.code_search import lambda_rank
from dualenc_jax.losses.loss import weighted_mean
from dualenc_jax.models import DualEncoder
from dualenc_jax.objectives.encoding import embed_queries
from dualenc_jax.objectives.objective import Key, Result
from dualenc_jax.objectives.pairs import PairObjective
from dualenc_jax.objectives.product_codes import ProductCodes
from dualenc_jax.utils.errors import check_positive, check_whole


@dataclasses.dataclass(frozen=True)
class JointPq(PairObjective):
  """JPQ (Zhan et al. 2021): joint learning of a query tower and of centroids.

  Each step searches all codes for the `depth` best by C and E as they are now,
  see `ProductCodes`. With these and the labelled passages of q,

    L_q = mean over relevant i, other j found of
          log(1 + exp((s_j - s_i) / temperature)) |w(r_j) - w(r_i)|,

  w(r) = 1 / r up to rank `cut`, and 0 behind. A relevant passage that is not
  found has rank depth + 1; other hits are the negatives. At a temperature of 1
  the logarithm would be in its linear part.

  Attributes:
    depth: hits of a query's search.
    temperature: divides the scores, which are near cosines: 0.01 to 0.05.
  """

  model: DualEncoder
  codec_from: str | None = None
  depth: int = 200
  cut: int = 200
  temperature: float = 0.01
  whole_corpus: bool = True
  states_dir: str | None = None
  micro_batch_size: int | None = None
  layout: Layout = Packed()
  num_negatives = 0
  sides = ('queries',)
  needs_start = True

  def __post_init__(self):
    self.check_options()
    check_whole('JointPq.depth (JPQ_DEPTH)', self.depth, 1)
    check_whole('JointPq.cut (JPQ_CUT)', self.cut, 1)
    check_positive('JointPq.temperature (TEMPERATURE)', self.temperature)

  @functools.cached_property
  def frozen_passages(self) -> ProductCodes:
    return ProductCodes(
        self.model, self.whole_corpus, self.states_dir,
        codec_from=self.codec_from,
    )

  def __call__(self, params: Any, batch: Any, key: Key = None) -> Result:
    codes = self.frozen_passages
    query = codes.map_queries(
        params,
        embed_queries(self.model, params, batch, key, self.micro_batch_size),
    )
    hits = codes.search(params, batch, query, self.depth)
    relevant, others, metrics = codes.rank(params, batch, query, hits)
    losses = lambda_rank(relevant, others, self.cut, self.temperature)
    loss = weighted_mean(losses, batch.get('weights'))
    return loss, {'loss': loss, **metrics}
