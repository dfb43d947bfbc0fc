"""PAIR (Ren et al. 2021): a passage-centric loss beside the usual one."""

import dataclasses

from dualenc_jax.losses.blocks import (
  PASSAGE_HARD,
  PASSAGE_PASSAGES,
  PASSAGE_QUERIES,
)
from dualenc_jax.losses.in_batch_softmax import InBatchSoftmax, Term
from dualenc_jax.utils.errors import check_one_of, expect

# The negatives of L_P by form.
_NEGATIVES = {
    'paper': (PASSAGE_PASSAGES, PASSAGE_HARD),
    'released': (PASSAGE_HARD, PASSAGE_QUERIES),
    'union': (PASSAGE_PASSAGES, PASSAGE_HARD, PASSAGE_QUERIES),
    'without_positive': (PASSAGE_PASSAGES, PASSAGE_HARD),
}


@dataclasses.dataclass(frozen=True)
class PAIR(InBatchSoftmax):
  """(1 - alpha) L_Q + alpha L_P (equation 6).

  L_Q is `InBatchSoftmax` with all its options; `bidirectional = False` is the
  paper's own query-centric loss. L_P (equation 5) is the mean over pairs i of

    log(exp s(p_i, q_i) + sum_{j != i} exp s(p_i, p_j)
        + sum_{j, k} exp s(p_i, n_jk)) - s(p_i, q_i).

  Attributes:
    alpha: weight of L_P, 0.1 in the paper.
    form: 'paper' for L_P as above. 'released', as in the authors' code, has the
      other queries q_j in place of the passages p_j; 'union' has both.
      'without_positive', equation 3 of SamToNe, leaves exp s(p_i, q_i) out of
      the denominator.
  """

  alpha: float = 0.1
  form: str = 'paper'

  def __post_init__(self):
    super().__post_init__()
    expect(0.0 <= self.alpha <= 1.0, 'PAIR.alpha', self.alpha, '0 to 1')
    check_one_of('PAIR.form (PAIR_FORM)', self.form, tuple(_NEGATIVES))

  def terms(self) -> list[Term]:
    centric = Term(
        'passage_centric', _NEGATIVES[self.form], self.alpha,
        positive_in_denominator=self.form != 'without_positive',
    )
    query_centric = [
        dataclasses.replace(term, weight=(1.0 - self.alpha) * term.weight)
        for term in super().terms()
    ]
    return [*query_centric, centric]
