"""FSDP: which parts of parameters travel between devices, and how often."""

import functools
import re

import hlo
import jax
import numpy as np
import pytest
import test_micro_batches as cases
import tiny_training

from dualenc_jax.errors import UserError
from dualenc_jax.training import Partitioner

pytestmark = pytest.mark.devices(8)

FSDP = (('embed', 'data'),)
SLOW = pytest.mark.slow


def sizes():
  """Numbers of elements of parameters that `embed` splits, and of others."""
  leaves = jax.tree.leaves_with_path(cases.make_params())
  own = [x.size for path, x in leaves if not is_whole(path)]
  return sum(own), sum(x.size for path, x in leaves if is_whole(path))


def is_whole(path):
  return re.search('rel_embedding|loss', jax.tree_util.keystr(path))


# A faster test looks at the traced program.
@SLOW
@pytest.mark.parametrize(
    'model_parallel, size', [(1, None), (2, None), (1, 16)]
)
def test_each_parameter_is_gathered_and_its_gradient_scattered(
    model_parallel, size
):
  """Once for both towers, and scattered by each micro-batch."""
  text = cases.compile_step(
      Partitioner(model_parallel, FSDP), size, 48
  ).as_text()
  split, others = sizes()
  bytes_ = 4 * split / model_parallel
  micro_batches = 1 if size is None else 48 // size
  gathered = hlo.sent_bytes(text, 'all-gather', 'all_gather')
  # The model axis does not split norms.
  assert bytes_ <= gathered < 1.1 * bytes_
  # Of a scatter the result is a device's part.
  scattered = hlo.sent_bytes(text, 'reduce-scatter')
  parts = micro_batches * bytes_ * model_parallel / 8
  assert parts <= scattered < 1.1 * parts
  assert hlo.sent_bytes(text, 'all-to-all') == 0
  # Of gradients, only those that are not split.
  if model_parallel == 1:
    assert hlo.sent_bytes(text, 'all-reduce') < 4 * others + 0.1 * bytes_


def test_gathered_as_products_want_it_and_summed_in_float32():
  text = str(
      cases.trace_step(Partitioner(1, FSDP), None, 48, dtype='bfloat16').jaxpr
  )
  gathered = re.findall(r'(bf16|f32)\[\S* = all_gather\[', text)
  # Kernels of layers and norms; the embeddings and projection are float32.
  assert gathered.count('f32') == 2
  assert gathered.count('bf16') == 7 + 3
  summed = re.findall(r'(bf16|f32)\[\S* = reduce_scatter\[', text)
  assert summed == ['f32'] * 12


@functools.cache
def gradients(partitioner):
  """Of the first step, in bfloat16."""
  model = tiny_training.make_model(dtype='bfloat16')
  abstract, _, step = tiny_training.plan(partitioner, model=model)
  state = tiny_training.make_state(abstract)
  state, _ = step(state, partitioner.to_device(tiny_training.make_batch()))
  return jax.tree.leaves(jax.device_get(state.opt_state))


def errors(got, want):
  return [np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in zip(got, want)]


@SLOW
def test_sums_of_rounded_gradients_are_near():
  """And of others as near to float32 as without FSDP."""
  plain, split, rounded = (
      gradients(each)
      for each in (
          Partitioner(),
          Partitioner(1, FSDP),
          Partitioner(1, FSDP, sum_dtype='bfloat16'),
      )
  )
  assert max(errors(split, plain)) < 2**-7
  assert 0 < max(errors(rounded, split)) < 2**-7


def test_another_dtype_is_refused():
  with pytest.raises(UserError, match="sum_dtype is 'float16'; expected 'flo"):
    Partitioner(sum_dtype='float16')
