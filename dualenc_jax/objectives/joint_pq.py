"""Joint training of a query tower and a product quantiser's centroids (JPQ)."""

import dataclasses
from typing import Any

from dualenc_jax.losses.code_search import lambda_rank
from dualenc_jax.losses.loss import weighted_mean
from dualenc_jax.objectives.objective import Key, Result
from dualenc_jax.objectives.product_codes import CodeObjective
from dualenc_jax.utils.errors import check_whole


@dataclasses.dataclass(frozen=True)
class JointPq(CodeObjective):
  """JPQ (Zhan et al. 2021): joint learning of a query tower and of centroids.

  Each step searches all codes for the `depth` best by C and E as they are now,
  see `ProductCodes`. With these and the labelled passages of q,

    L_q = mean over relevant i, other j found of
          log(1 + exp((s_j - s_i) / temperature)) |w(r_j) - w(r_i)|,

  w(r) = 1 / r up to rank `cut`, and 0 behind. A relevant passage that is not
  found has rank depth + 1; other hits are the negatives. At a temperature of 1
  the logarithm would be in its linear part.

  The temperature is 0.01 to 0.05.
  """

  depth: int = 200
  temperature: float = 0.01
  cut: int = 200

  def __post_init__(self):
    super().__post_init__()
    check_whole('JointPq.cut (JPQ_CUT)', self.cut, 1)

  def __call__(self, params: Any, batch: Any, key: Key = None) -> Result:
    codes = self.frozen_passages
    query = self.queries(params, batch, key)
    hits = codes.search(params, batch, query, self.depth)
    relevant, others, metrics = codes.rank(params, batch, query, hits)
    losses = lambda_rank(relevant, others, self.cut, self.temperature)
    loss = weighted_mean(losses, batch.get('weights'))
    return loss, {'loss': loss, **metrics}
