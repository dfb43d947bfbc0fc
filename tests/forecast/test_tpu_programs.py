"""Encoding and search on a slice, by the command."""

import re

import pytest
import tiny_run

from dualenc_jax.commands import cli

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
  seconds = float(re.search(r'expects it: ([\d.]+) ms', encoding)[1]) / 1e3
  rate = re.search(r'of 16 tokens a second: ([\d,]+)\.', encoding)[1]
  assert float(rate.replace(',', '')) == pytest.approx(
      4 * 256 / seconds, rel=0.2
  )
  # 4 bytes each of 8,064 embeddings, three layers and the projection.
  assert re.search(r'\n  parameters +5\.9\n', encoding)
  assert encoding.endswith('Encoding fits v5e:2x2.')
  for part in ('scores', 'maxima of groups', 'best hits'):
    assert re.search(rf'\n  {part} +[\d.]+ ms +[\d.]+%', search), part
  assert re.search(r'\n  block of the corpus +64\.0\n', search)
  assert search.endswith('The search fits v5e:2x2.\n')
