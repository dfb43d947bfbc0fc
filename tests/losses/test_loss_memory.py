"""The ring in compiled programs of full size: its memory, what it sends."""

import functools

import hlo
import loss_programs
from loss_programs import DIM, SHARD
import meshes
import pytest

from dualenc_jax.losses import InBatchSoftmax, Matryoshka, PAIR, SamToNe, Sum

pytestmark = pytest.mark.devices(8)

MIB = 2**20
GIB = 2**30
SIZE = 8 * SHARD
LOSSES = {
    'softmax': InBatchSoftmax(),
    'samtone': SamToNe(both_towers=True),
    'sum': Sum(((SamToNe(), 0.7), (PAIR(), 0.3))),
    'matryoshka': Matryoshka(InBatchSoftmax()),
}


@functools.cache
def compiled(name, implementation, devices=8, model_parallel=1, size=SIZE):
  partitioner = meshes.SmallPartitioner(model_parallel, devices=devices)
  return loss_programs.compile_gradient(
      LOSSES[name], implementation, partitioner, size
  )


@functools.cache
def text(*args):
  return compiled(*args).as_text()


def test_memory_of_65536_pairs_on_one_device():
  size = 65536
  ring, dense = (
      compiled('samtone', implementation, 1, 1, size)
      for implementation in ('ring', 'dense')
  )
  assert loss_programs.temporaries(ring) < GIB
  assert hlo.num_elements(ring.as_text()) < size * size / 64
  # The check can fail: all scores at once are 16 GiB, and there are two.
  assert loss_programs.temporaries(dense) > 32 * GIB
  assert hlo.num_elements(dense.as_text()) >= size * size


PERMITTED = {'collective-permute', 'all-reduce'}


@pytest.mark.parametrize(
    'name',
    [
        'softmax',
        pytest.param('samtone', marks=pytest.mark.nightly),
        # They are made of these two.
        pytest.param('sum', marks=pytest.mark.nightly),
        pytest.param('matryoshka', marks=pytest.mark.nightly),
    ],
)
def test_no_device_holds_the_scores_or_the_vectors_of_all(name):
  program = text(name, 'ring')
  # A tile of scores takes no more memory than a shard of vectors.
  assert hlo.num_elements(program) <= SHARD * DIM
  moves = hlo.collectives(program)
  assert {kind for kind, _ in moves} == PERMITTED
  # What is summed over all devices are means, not vectors.
  for kind, shape in moves:
    assert kind != 'all-reduce' or hlo.num_elements(shape) == 1


# Shards that a device gets for each other device. SamToNe's are those of
# softmax and half as many for each of the two matrices that are symmetric.
@pytest.mark.parametrize(
    'name, forward, backward', [('softmax', 1, 2), ('samtone', 2, 4)]
)
def test_bytes_sent(name, forward, backward):
  program = text(name, 'ring')
  vectors = SIZE * DIM * 4
  total = hlo.sent_bytes(program)
  of_backward = hlo.sent_bytes(program, within='transpose(')
  # Fingerprints and statistics of the rows travel, too: 2% at most.
  assert 0.8 * forward * vectors < total - of_backward
  assert total - of_backward <= 1.02 * forward * vectors
  assert of_backward <= 1.02 * backward * vectors
