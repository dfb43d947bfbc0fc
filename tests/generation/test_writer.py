"""What a T5 writes, against transformers and against itself."""

import functools

import jax
import numpy as np
import pytest
import tiny_t5
import torch

from dualenc_jax.data.text.ragged import Ragged
from dualenc_jax.models import Seq2Seq
from dualenc_jax.parallel.partitioning import HostPartitioner, Partitioner
from dualenc_jax.pipelines.generation.sampling import Sampling
from dualenc_jax.pipelines.generation.writer import Writer

pytestmark = pytest.mark.devices(8)

GREEDY = Sampling(temperature=0.0)
LENGTH = 12


@pytest.fixture(scope='module', params=tiny_t5.VERSIONS)
def tiny(request):
  theirs, parts, params = tiny_t5.make(request.param)
  return theirs, Seq2Seq(*parts), params


def sources(longest, count=13):
  rng = np.random.default_rng(0)
  sizes = np.where(np.arange(count) % 4, rng.integers(1, 30, count), longest)
  rows = [[*rng.integers(2, tiny_t5.VOCAB, n).tolist(), 1] for n in sizes]
  return Ragged.from_rows(rows, np.int32)


class Few(Partitioner):
  """The first devices alone."""

  def devices(self):
    return jax.devices()[:1]


EIGHT, ONE = HostPartitioner(), Few()


make_writer = functools.cache(Writer)


def write(
    model, params, texts, sampling, count=1, devices=EIGHT, size=4, **kwargs
):
  """Tokens, log-probabilities and ends by source and number."""
  placed = jax.device_put(params, devices.replicated)
  writer = make_writer(model, devices, size)
  numbers = kwargs.pop('numbers', np.arange(len(texts), dtype=np.uint64))
  found = {}
  for text in writer.write(
      placed, texts, numbers, count, sampling, LENGTH, **kwargs
  ):
    assert (text.source, text.number) not in found
    found[text.source, text.number] = (
        text.tokens.tolist(), text.log_probability, text.ended
    )
  assert len(found) == count * len(texts)
  return found


def test_greedy_is_that_of_transformers(tiny):
  theirs, model, params = tiny
  # Of two static lengths on eight devices, or of one on one.
  tied = theirs.config.tie_word_embeddings
  texts = sources(40 if tied else 30)
  found = write(model, params, texts, GREEDY, devices=EIGHT if tied else ONE)
  lengths = set()
  for i in range(len(texts)):
    row = torch.tensor(texts.row(i)[None]).long()
    wanted = theirs.generate(row, do_sample=False, max_new_tokens=LENGTH)
    wanted = wanted[0, 1:].tolist()
    tokens, chance, ended = found[i, 0]
    assert tokens + [1] * ended == wanted
    with torch.no_grad():
      logits = theirs(
          input_ids=row, decoder_input_ids=torch.tensor([[0, *wanted[:-1]]])
      ).logits.log_softmax(-1)
    own = sum(logits[0, j, token].item() for j, token in enumerate(wanted))
    np.testing.assert_allclose(chance, own, rtol=1e-5, atol=1e-5)
    lengths.add(len(wanted))
  assert len(lengths) > 1


@pytest.mark.nightly
@pytest.mark.parametrize('tiny', ['1.0'], indirect=True)
def test_samples_do_not_depend_on_mates_or_devices(tiny):
  _, model, params = tiny
  sampling, texts = Sampling(20.0), sources(30)
  numbers = np.random.default_rng(1).integers(0, 2**64, 13, np.uint64)
  kwargs = {'numbers': numbers, 'count': 5}
  first = write(model, params, texts, sampling, **kwargs)
  assert len({tuple(tokens) for tokens, *_ in first.values()}) > 40
  assert write(model, params, texts, sampling, devices=ONE, **kwargs) == first
  # Of some, in another order, fewer of each, in other slots.
  order = np.array([7, 2, 11])
  some = Ragged.from_rows([texts.row(i) for i in order], np.int32)
  found = write(
      model, params, some, sampling, 2, ONE, 7, numbers=numbers[order]
  )
  for (i, number), text in found.items():
    assert text[0] == first[order[i], number][0]
  assert write(model, params, texts, sampling, seed=1, **kwargs) != first
