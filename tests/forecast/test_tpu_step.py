"""The train step as the TPU's compiler has it, by the command."""

import re

import pytest
import tiny_run

from dualenc_jax import losses
from dualenc_jax.commands import cli
from dualenc_jax.forecast import slices
from dualenc_jax.forecast.schedule import Schedule
from dualenc_jax.training import Partitioner

pytestmark = pytest.mark.slow


def check(capsys, tmp_path, *flags, status=0):
  argv = tiny_run.flags(tmp_path, '--gin.DROPOUT_RATE=0.0', *flags)
  assert cli.main(['check', *argv]) == status
  return capsys.readouterr()


def test_a_step_with_a_ring_and_what_it_needs(capsys, tmp_path):
  said = check(
      capsys, tmp_path, '--topology=v5e:2x2', '--gin.LOSS_IMPLEMENTATION=ring'
  ).out
  assert 'Devices: 4 TPU v5 lite on 1 host(s), mesh data 4 x model 1.' in said
  assert re.search(r'Step on v5e:2x2, as libtpu 0\S+ expects it: \d', said)
  for part in ('attention', 'MLP', 'norms', 'loss', 'optimizer, metrics'):
    assert re.search(rf'\n  {part} +[\d.]+ ms +[\d.]+%', said), part
  assert re.search(r'Products of [\d,]+ tokens in [\d,]+ slots', said)
  # Gradients are summed where they are used; parameters are gathered.
  assert re.search(r'\n  collective-permute +\d+ times .* all of it besi', said)
  assert re.search(r'\n  all-gather', said)
  peak = float(re.search(r'\n  peak +([\d,.]+)', said)[1].replace(',', ''))
  assert 10 < peak < 60
  assert said.endswith('The step fits v5e:2x2.\n')


def test_gradients_are_summed_once_after_the_micro_batches(capsys, tmp_path):
  said = check(
      capsys, tmp_path, '--topology=v5e:2x2', '--gin.MICRO_BATCH_SIZE=8'
  ).out

  def size(of):
    return float(re.search(rf'\n  {of} +(?:\d+ times +)?([\d.]+)', said)[1])

  # Of float32, as the parameters are.
  assert 0.9 * size('parameters') < size('reduce-scatter')
  assert size('reduce-scatter') + size('all-reduce') < 1.1 * size('parameters')


def test_a_step_that_does_not_fit(capsys, tmp_path):
  said = check(
      capsys, tmp_path, '--topology=v5e:1x1', '--device_memory_gib=0.01',
      status=2,
  )
  assert re.search(r'does not fit v5e:1x1: it needs .* MiB .* more', said.err)
  assert 'fsdp.gin' in said.err


def test_layers_that_are_not_compiled_cost_what_the_others_do(
    capsys, tmp_path
):
  flags = '--topology=v5e:2x2', '--gin.models.T5Encoder.num_layers=5'
  few = check(capsys, tmp_path, *flags).out
  whole = check(capsys, tmp_path, *flags, '--whole').out
  assert 'compiled with 2 layers and 1' in few
  assert 'compiled with' not in whole

  def numbers(text):
    step = float(re.search(r'expects it: ([\d.]+) ms', text)[1])
    peak = float(re.search(r'\n  peak +([\d,.]+)', text)[1].replace(',', ''))
    return step, peak

  assert numbers(few) == pytest.approx(numbers(whole), rel=0.25)


def test_no_hop_of_a_ring_is_waited_for():
  """On a slice where JAX's own order has no ring: rows of eight chips."""
  import jax
  import jax.numpy as jnp

  on = slices.find('v5e:8x8')
  partitioner = slices.on_slice(Partitioner(), on)
  similarity = losses.Similarity(implementation='ring')
  size = 64 * 64

  def value(vectors):
    with partitioner.scope():
      batch = losses.Embeddings(**vectors, **{
          f'{name}_ids': jnp.zeros((size, 2), jnp.uint32) for name in vectors
      })
      return losses.evaluate(losses.InBatchSoftmax(), similarity, {}, batch)[0]

  abstract = jax.ShapeDtypeStruct(
      (size, 128), jnp.float32, sharding=partitioner.rows
  )
  vectors = {'query': abstract, 'passage': abstract}
  text = jax.jit(jax.grad(value)).lower(vectors).compile().as_text()
  permutes = [
      each for each in Schedule(text).transfers()
      if each.kind == 'collective-permute'
  ]
  assert permutes and all(each.hidden is not None for each in permutes)
