"""PAIR (Ren et al. 2021): a passage-centric loss beside the usual one."""

import dataclasses

from dualenc_jax.losses import blocks, in_batch_softmax
from dualenc_jax.utils.errors import expect


@dataclasses.dataclass(frozen=True)
class PAIR(in_batch_softmax.InBatchSoftmax):
  """(1 - alpha) L_Q + alpha L_P (equation 6).

  L_Q is `InBatchSoftmax` with all its options; `bidirectional = False` is the
  paper's own query-centric loss. L_P (equation 5) is the mean over pairs i of

    log(exp s(p_i, q_i) + sum_{j != i} exp s(p_i, p_j)
        + sum_{j, k} exp s(p_i, n_jk)) - s(p_i, q_i).

  Attributes:
    alpha: weight of L_P, 0.1 in the paper.
    positive_in_denominator: False gives equation 3 of SamToNe, which leaves
      exp s(p_i, q_i) out of the denominator.
    queries_in_denominator: also sum_{j != i} exp s(p_i, q_j).
    passages_in_denominator: False leaves the other positives p_j out of L_P.
      The authors' released code has the queries and the hard negatives alone.
  """

  alpha: float = 0.1
  positive_in_denominator: bool = True
  queries_in_denominator: bool = False
  passages_in_denominator: bool = True

  def __post_init__(self):
    super().__post_init__()
    expect(0.0 <= self.alpha <= 1.0, 'PAIR.alpha', self.alpha, '0 to 1')

  def terms(self) -> list[in_batch_softmax.Term]:
    wanted = {
        blocks.PASSAGE_PASSAGES: self.passages_in_denominator,
        blocks.PASSAGE_HARD: True,
        blocks.PASSAGE_QUERIES: self.queries_in_denominator,
    }
    centric = in_batch_softmax.Term(
        'passage_centric', [block for block in wanted if wanted[block]],
        self.alpha, self.positive_in_denominator,
    )
    query_centric = [
        dataclasses.replace(term, weight=(1.0 - self.alpha) * term.weight)
        for term in super().terms()
    ]
    return [*query_centric, centric]
