"""Encoding and search on a slice, by the command."""

import re

import pytest
import tiny_run

from dualenc_jax.cli import main as cli

TOPOLOGY = '--topology=v5e:2x2'


def check(capsys, tmp_path, *flags, status=0):
  argv = tiny_run.flags(tmp_path, '--gin.DROPOUT_RATE=0.0', *flags)
  assert cli.main(['check', *argv]) == status
  return capsys.readouterr()


@pytest.mark.parametrize(('flags', 'message'), [
    (('--topology=',), "there is no such TPU or GPU as ''"),
    (('--program=train,search',), '--program needs --topology'),
    ((TOPOLOGY, '--program=search', '--fit_batch'), '--fit_batch works with'),
])
def test_programs_that_cannot_be(capsys, tmp_path, flags, message):
  assert message in check(capsys, tmp_path, *flags, status=2).err


@pytest.mark.nightly
def test_encoding_and_search(capsys, tmp_path):
  said = check(
      capsys, tmp_path, TOPOLOGY, '--program=encode,search',
      '--gin.BATCH_SIZE=18', '--gin.models.T5Encoder.num_layers=3',
  ).out
  _, encoding, search = re.split('\n(?=Encoding 256|Searching a)', said)
  assert 'compiled with 2 layers and 1' in encoding
  # 4 bytes each of 8,064 embeddings, three layers and the projection.
  assert re.search(r'\n  parameters +5\.9\n', encoding)
  assert encoding.endswith('Encoding fits v5e:2x2.')
  # 2,048 queries by four blocks of 131,072 rows of 16 components, twice.
  assert 'Products: 0.03 TFLOP' in search
  assert re.search(r'\n  block of the corpus +64\.0\n', search)
  assert search.endswith('The search fits v5e:2x2.\n')
