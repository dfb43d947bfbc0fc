"""A model in every form, and that a damaged one is refused."""

import shutil

import pytest
import small_folders

from dualenc_jax.commands import convert
from dualenc_jax.errors import UserError


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
          str(folder), '--to=safetensors', f'--out={out}',
          f'--vocabulary={small_forms / "spiece.model"}',
      ])
    message = str(caught.value)
    for word in words:
      assert word in message, message
    assert len(message) < 2000, message
    # Nothing half written is left.
    assert sorted(p.name for p in tmp_path.iterdir()) == ['model']

  return check
