"""A model in every form, and that a damaged one is refused."""

import shutil

import numpy as np
import pytest
import small_folders
import t5x_files

from dualenc_jax.checkpoints import formats
from dualenc_jax.cli import convert
from dualenc_jax.utils.errors import UserError


@pytest.fixture(scope='module')
def small_forms(tmp_path_factory):
  folder = tmp_path_factory.mktemp('small_forms')
  small_folders.write(folder)
  return folder


@pytest.fixture
def refused(small_forms, tmp_path):
  """Damages a copy of a form, and converts it, which has to fail."""

  def check(form, damage, *words):
    folder = shutil.copytree(small_forms / form, tmp_path / 'model')
    damage(folder)
    out = tmp_path / 'out'
    with pytest.raises(UserError) as caught:
      convert.main([
          str(folder), '--to=hf', f'--output_dir={out}',
          f'--vocabulary={small_forms / "spiece.model"}',
      ])
    message = str(caught.value)
    for word in words:
      assert word in message, message
    assert len(message) < 2000, message
    # Nothing half written is left.
    assert sorted(p.name for p in tmp_path.iterdir()) == ['model']

  return check


@pytest.fixture(scope='module', params=['1.0', '1.1'])
def version(request):
  return request.param


@pytest.fixture(scope='module')
def theirs(version, request):
  """A random T5 of transformers, with ROWS embeddings of the module."""
  import hugging_face_models

  # Of 1.0 the head is the token embeddings.
  make, feed_forward = {
      '1.0': (hugging_face_models.model, 'relu'),
      '1.1': (hugging_face_models.untied, 'gated-gelu'),
  }[version]
  return make(
      'T5ForConditionalGeneration', feed_forward=feed_forward,
      vocab_size=request.module.ROWS, decoder_start_token_id=0,
  )


@pytest.fixture(scope='module')
def folder(theirs, spiece, tmp_path_factory):
  """The whole T5, as transformers writes it."""
  made = tmp_path_factory.mktemp('hugging_face')
  theirs.save_pretrained(made)
  shutil.copy(spiece, made / 'spiece.model')
  return made


@pytest.fixture(scope='module')
def legacy(folder, tmp_path_factory):
  """The same tensors as T5X writes them."""
  weights = formats.read(folder)
  tensors = weights.tensors | weights.read_decoder()
  arrays = {n: t.read() for n, t in tensors.items()}
  made = tmp_path_factory.mktemp('t5x') / 'checkpoint_1004000'
  t5x_files.write_legacy(made, arrays, {'step': np.int32(1004000)})
  return made
