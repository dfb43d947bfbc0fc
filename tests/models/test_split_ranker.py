"""The split re-ranker: against transformers' decoder and NumPy's means."""

import jax
import numpy as np
import pytest
import tiny_t5
import torch
from transformers.modeling_outputs import BaseModelOutput

from dualenc_jax.models import SplitRanker
from dualenc_jax.utils.errors import UserError

TOKENS = 17, 58
STATES = 5


def means(states, count):
  """Of the states [n, E] of one text, in float64."""
  n = len(states)
  bounds = [m * n // count for m in range(count + 1)]
  return np.stack([
      states[a : max(a + 1, b)].mean(0) for a, b in zip(bounds, bounds[1:])
  ])


@pytest.mark.parametrize('version', tiny_t5.VERSIONS)
def test_scores_are_those_of_transformers(version):
  theirs, parts, params = tiny_t5.make(version)
  passages = tiny_t5.padded(tiny_t5.texts())
  rng, lengths = np.random.default_rng(1), [7, 1, 4]
  queries = np.zeros((3, 8), np.int32)
  for row, n in zip(queries, lengths):
    row[:n] = [*rng.integers(2, tiny_t5.VOCAB, n - 1), 1]

  with torch.no_grad():
    encoded = theirs.encoder(
        input_ids=torch.tensor(passages).long(),
        attention_mask=torch.tensor(passages != 0).long(),
    ).last_hidden_state.double().numpy()
    states = np.stack([
        means(x[: (row != 0).sum()], STATES)
        for x, row in zip(encoded, passages)
    ])
    wanted = np.zeros((3, len(passages)))
    for q, n in enumerate(lengths):
      logits = theirs(
          encoder_outputs=BaseModelOutput(torch.tensor(states)),
          decoder_input_ids=torch.tensor(
              np.tile([0, *queries[q, : n - 1]], (len(passages), 1))
          ).long(),
      ).logits[:, -1].numpy()
      wanted[q] = logits[:, TOKENS[0]] - logits[:, TOKENS[1]]

  ours = SplitRanker(*parts, STATES, TOKENS)

  @jax.jit
  def run(params, queries, passages):
    def score(module):
      states = module.encode_passage(passages)
      return states, module.score(
          queries, jax.numpy.repeat(states[None], len(queries), axis=0)
      )

    return ours.apply({'params': params}, method=score)

  found_states, found = run(params, queries, passages)
  scale = np.abs(wanted).max()
  np.testing.assert_allclose(
      found_states.reshape(states.shape), states, atol=1e-5
  )
  np.testing.assert_allclose(found, wanted, atol=1e-5 * scale)
  # Texts of fewer tokens than states are among them.
  assert ((passages != 0).sum(1) < STATES).any()


def test_bad_sizes_are_explained():
  _, parts, _ = tiny_t5.make('1.1')
  with pytest.raises(UserError, match='num_states is 0; .*above 0'):
    SplitRanker(*parts, 0)
  with pytest.raises(UserError, match='SCORE_TOKENS.* below VOCAB_SIZE, '):
    SplitRanker(*parts)
