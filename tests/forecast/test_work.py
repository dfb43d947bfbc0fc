"""Operations of a batch of real texts, by the formula."""

import numpy as np
import pytest
import tiny_training

from dualenc_jax.data.text import text_rows
from dualenc_jax.forecast import work


@pytest.mark.filterwarnings('error')
def test_operations_of_texts_and_of_slots():
  # What a text costs is more than int32 has.
  layers, heads, head_dim, mlp, width = 24, 16, 64, 2816, 1024
  model = tiny_training.make_model(
      width=width, num_layers=layers, num_heads=heads, head_dim=head_dim,
      mlp_dim=mlp,
  )
  queries, passages = np.array([[1, 7], [256, 200]])

  def rows(of_pairs, most):
    tokens = np.arange(most) < of_pairs[:, None, None]
    return text_rows.from_tokens(tokens.astype(np.int32))

  found = work.work(
      model,
      {'queries': rows(queries, 64), 'passages': rows(passages, 256)},
  )
  inner = heads * head_dim

  def cost(text):
    text = np.float64(text)
    token = 2 * (4 * width * inner + 3 * width * mlp) + 4 * text * inner
    return 3 * (layers * text * token + 2 * width * 16)

  assert found.tokens == 1 + 7 + 256 + 200
  assert found.slots == 2 * (64 + 256)
  texts = np.concatenate([queries, passages])
  assert found.flops == pytest.approx(cost(texts).sum())
  assert found.slot_flops == pytest.approx(2 * (cost(64) + cost(256)))
