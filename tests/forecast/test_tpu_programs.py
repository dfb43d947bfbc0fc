"""All programs on a slice, by the command, and what is kept of compiling."""

import os
import re
import subprocess
import sys

import jax
import pytest
import tiny_run

from dualenc_jax.commands import cli
from dualenc_jax.run import fit_batch

TOPOLOGY = '--topology=v5e:2x2'


def check(capsys, tmp_path, *flags, status=0):
  argv = tiny_run.flags(tmp_path, '--gin.DROPOUT_RATE=0.0', *flags)
  assert cli.main(['check', *argv]) == status
  return capsys.readouterr()


@pytest.mark.parametrize(('flags', 'message'), [
    ((TOPOLOGY, '--program=encod'), "no such program. Did you mean 'encode'"),
    (('--program=train,search',), '--program needs --topology'),
    ((TOPOLOGY, '--program=search', '--fit_batch'), '--fit_batch works with'),
    (
        (
            TOPOLOGY, '--program=encode',
            '--gin_file=architectures/cross_encoder.gin',
        ),
        'needs a dual encoder, but this config trains',
    ),
])
def test_programs_that_cannot_be(capsys, tmp_path, flags, message):
  assert message in check(capsys, tmp_path, *flags, status=2).err


@pytest.mark.slow
def test_encoding_and_search(capsys, tmp_path):
  said = check(
      capsys, tmp_path, TOPOLOGY, '--program=encode,search',
      '--gin.BATCH_SIZE=18', '--gin.models.T5Encoder.num_layers=3',
  ).out
  assert 'Step on' not in said
  config, encoding, search = re.split('\n(?=Encoding 256|Searching a)', said)
  # No batch of pairs is looked at.
  assert '\n  batch ' not in config
  assert re.search(
      r'^Encoding 256 passages of 16 tokens a device on v5e:2x2, as libtpu'
      r' 0\S+ expects it: \d', encoding
  )
  assert 'compiled with 2 layers and 1' in encoding
  seconds = float(re.search(r'expects it: ([\d.]+) ms', encoding)[1]) / 1e3
  rate = re.search(r'of 16 tokens a second: ([\d,]+)\.', encoding)[1]
  assert float(rate.replace(',', '')) == pytest.approx(
      4 * 256 / seconds, rel=0.2
  )
  # Fewer than a step of all devices, they are taken to be many.
  real = re.search(
      r'of the training data, of 7 tokens on average, a second: ([\d,]+),',
      encoding,
  )[1]
  assert float(real.replace(',', '')) > float(rate.replace(',', ''))
  assert re.search(r'\n  attention +[\d.]+ ms', encoding)
  assert 'optimizer' not in encoding and 'optimizer' not in search
  # 4 bytes each of 8,064 embeddings, three layers and the projection.
  assert re.search(r'\n  parameters +5\.9\n', encoding)
  assert encoding.endswith('Encoding fits v5e:2x2.')
  assert 'Searching a block of 131,072 passages a device' in search
  assert 'for the 1,000 best of 2,048 queries on v5e:2x2' in search
  for part in ('scores', 'maxima of groups', 'best hits'):
    assert re.search(rf'\n  {part} +[\d.]+ ms +[\d.]+%', search), part
  assert re.search(r'no cycles of .*sorts of [\d,.]+ MiB: they are not', search)
  assert re.search(r'\n  block of the corpus +64\.0\n', search)
  assert re.search(r'A million passages by 2,048 queries: [\d.]+ ms', search)
  assert search.endswith('The search fits v5e:2x2.\n')


@pytest.mark.slow
def test_nothing_is_compiled_twice(capsys, tmp_path, monkeypatch):
  monkeypatch.setenv('DUALENC_CACHE', str(tmp_path / 'cache'))
  flags = TOPOLOGY, '--program=train,encode'
  first = check(capsys, tmp_path, *flags).out
  (encoded, *others) = sorted(
      (tmp_path / 'cache/forecasts').glob('*-all.json'),
      key=lambda file: file.stat().st_mtime, reverse=True,
  )
  # The step; of the loss on its own only the memory is kept.
  assert len(others) == 1

  def fail(*_, **__):
    raise AssertionError('compiled')

  with monkeypatch.context() as patch:
    patch.setattr(jax.stages.Lowered, 'compile', fail)
    again = check(capsys, tmp_path, *flags).out
  kept = 'This is of an earlier compile, kept in '
  assert kept not in first
  lines = again.splitlines(keepends=True)
  assert sum(line.startswith(kept) for line in lines) == 2
  assert ''.join(x for x in lines if not x.startswith(kept)) == first
  whole = encoded.read_bytes()
  encoded.write_bytes(whole[: len(whole) // 2])
  mended = check(capsys, tmp_path, *flags).out
  assert mended.count(kept) == 1
  assert encoded.read_bytes() == whole


@pytest.mark.slow
def test_the_largest_batch_by_few_layers(capsys, tmp_path, monkeypatch):
  # A coarse answer takes fewer compiles.
  monkeypatch.setattr(fit_batch, 'TOLERANCE', 1.0)
  monkeypatch.setenv('DUALENC_CACHE', str(tmp_path / 'cache'))
  said = check(
      capsys, tmp_path, TOPOLOGY, '--fit_batch', '--gin.BATCH_SIZE=48',
      '--gin.models.T5Encoder.num_layers=4', '--gin.LAYOUT=@data.Packed()',
  ).out
  found = re.search(r'Largest batch: ([\d,]+) pairs, ([\d.]+) MiB', said)
  assert "compiled for 'v5e:2x2'" in said
  # The forecast of that batch says the same.
  assert f'Memory a device at {found[1]} pairs, MiB:' in said
  peak = re.search(r'\n  peak +([\d.]+)', said)[1]
  assert float(peak) == pytest.approx(float(found[2]), rel=0.05)
  # Two programs a size, not of all layers, and the loss alone.
  sizes = len(re.findall(r'\n  batch [\d,]+: ', said))
  kept = list((tmp_path / 'cache/forecasts').glob('*-memory.json'))
  assert 2 * sizes <= len(kept) <= 2 * sizes + 1
  assert 'The step fits v5e:2x2.' in said


@pytest.mark.slow
def test_two_processes_compile_at_the_same_time(tmp_path):
  """Nothing but the command is set, as users would run it."""
  unset = {name: os.environ[name] for name in os.environ if not re.match(
      r'TPU_|JAX_|XLA_|ALLOW_MULTIPLE', name
  )}
  argv = [
      sys.executable, '-m', 'dualenc_jax', 'check', TOPOLOGY,
      *tiny_run.flags(tmp_path, '--gin.models.T5Encoder.num_layers=1'),
  ]
  both = [
      subprocess.Popen(
          argv, env=unset | {'DUALENC_CACHE': str(tmp_path / 'cache')},
          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
      )
      for _ in range(2)
  ]
  for process in both:
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert out.endswith('The step fits v5e:2x2.\n')
    assert 'Traceback' not in err
  left = {file.suffix for file in (tmp_path / 'cache/forecasts').iterdir()}
  assert left == {'.json'}
