"""The JSON of a checkpoint: whatever is changed in it is noticed."""

import json

import pytest

from dualenc_jax.utils.tensor_files import (
  checkpoint_meta,
  tensors as tensors_lib,
)
from dualenc_jax.utils.tensor_files.tensors import DamageError, Tensor

META = {
    'step': 3,
    'config': 'a = 1\nb = "ü"',
    'notes': {'best': {'value': 0.1234567890123, 'step': 2}, 'none': None},
    'lengths': (1, 2),
}
DIGESTS = {'params': {'d/a': '0123456789abcdef'}, 'optimizer': {}}
PLAIN = {**META, 'lengths': [1, 2]}


def write(folder, value):
  path = folder / checkpoint_meta.FILE
  path.parent.mkdir(exist_ok=True)
  path.write_text(json.dumps(value))
  return path


def test_any_flipped_bit_is_noticed_or_harmless(tmp_path):
  path = write(tmp_path, checkpoint_meta.seal(META, DIGESTS))
  assert checkpoint_meta.read(tmp_path, step=int) == (PLAIN, DIGESTS)
  content = path.read_bytes()
  noticed = 0
  for i in range(len(content)):
    changed = bytearray(content)
    changed[i] ^= 1 << i % 8
    path.write_bytes(changed)
    try:
      found = checkpoint_meta.read(tmp_path)
    except DamageError as e:
      assert str(path) in str(e)
      noticed += 1
    else:
      assert found == (PLAIN, DIGESTS)
  assert noticed > 0.9 * len(content)


def test_what_is_lost_is_damage(tmp_path):
  whole = checkpoint_meta.seal(META, DIGESTS)
  for lost in ('sha256', 'files'):
    write(tmp_path, {n: x for n, x in whole.items() if n != lost})
    with pytest.raises(DamageError, match='not what was saved: its checksum'):
      checkpoint_meta.read(tmp_path)
  write(tmp_path, whole)
  with pytest.raises(DamageError, match='metadata lacks .model'):
    checkpoint_meta.read(tmp_path, model=dict)
  with pytest.raises(DamageError, match='cannot be read'):
    checkpoint_meta.read(tmp_path / 'none')


def test_one_without_digests_of_files_is_read(tmp_path):
  write(tmp_path, META)
  assert checkpoint_meta.read(tmp_path) == (PLAIN, None)
  # As older versions wrote it.
  old = {**PLAIN, 'digests': {'params': {'a/b': 'float32[2] 0123456789abcdef'}}}
  write(tmp_path, {**old, 'sha256': checkpoint_meta._checksum(old)})
  assert checkpoint_meta.read(tmp_path) == (old, None)


def test_more_layers_than_any_model_has():
  tensor = Tensor('file: e', (10_000, 3), lambda: None)
  with pytest.raises(DamageError, match='10,000 layers; expected at most'):
    tensors_lib.unstack({'e/layers/x': tensor})
