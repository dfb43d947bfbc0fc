"""`dualenc check`: memory by part, the largest batch, damaged checkpoints."""

import re

from bit_flips import flip_bit
import pytest
import tiny_evaluation
import tiny_run

from dualenc_jax.cli import check, main as cli
from dualenc_jax.training import memory
from dualenc_jax.utils.errors import UserError


def rows(out: str) -> dict[str, float]:
  """The table of memory, MiB by name."""
  table = out.partition('Compiled memory a device')[2]
  found = re.findall(r'^  ([a-z, ]+?) +([\d,]+\.\d)', table, flags=re.MULTILINE)
  return {name: float(value.replace(',', '')) for name, value in found}


@pytest.mark.nightly
def test_fit_batch_finds_a_batch_that_fits(tmp_path, capsys, monkeypatch):
  # A coarse answer takes fewer compiles.
  monkeypatch.setattr(memory, 'TOLERANCE', 1.0)
  flags = tiny_run.flags(
      tmp_path, '--gin_file=optimizers/adamw.gin', '--gin.BATCH_SIZE=512',
      '--gin.LAYOUT=@data.Padded()',
  )
  check.main([*flags, '--fit_batch', '--device_memory_gib=0.06'])
  out = capsys.readouterr().out
  probes = {
      int(size.replace(',', '')): float(mib.replace(',', ''))
      for size, mib in re.findall(r'  batch ([\d,]+): ([\d,.]+) MiB', out)
  }
  usable = 0.95 * 0.06 * 1024
  fitting = [size for size, mib in probes.items() if mib <= usable]
  found = re.search(r'Largest batch: ([\d,]+) pairs, ([\d.]+) MiB a d', out)
  largest = int(found[1].replace(',', ''))
  assert 512 in probes
  assert largest == max(fitting)
  above = min(probes.keys() - set(fitting))
  assert 0 < above - largest <= largest
  assert f'; {above:,} do not fit' in out and "of kind 'cpu'" in out
  # The table is that of the batch found, and adds up.
  table = rows(out)
  assert table['peak'] == float(found[2]) == probes[largest]
  parts = sum(table.values()) - table['peak'] - table['device']
  assert parts == pytest.approx(table['peak'], abs=0.31)


@pytest.mark.nightly
def test_no_more_than_the_examples_that_a_layout_looks_at(tmp_path, capsys):
  flags = tiny_run.flags(
      tmp_path, f'--gin.CACHE_DIR={tmp_path}', '--gin.LAYOUT=@data.Packed()'
  )
  tiny_run.write_pairs(tmp_path / 'train.jsonl', 16)
  check.main([*flags, '--fit_batch', '--device_memory_gib=4'])
  out = capsys.readouterr().out
  assert 'Largest batch: 16 pairs' in out
  assert 'no larger one was tried' in out


@pytest.mark.parametrize('value', ['0', 'nan', 'inf'])
def test_a_memory_that_cannot_be_is_refused(tmp_path, value):
  flags = tiny_run.flags(tmp_path)
  with pytest.raises(UserError, match='--device_memory_gib is .* above 0'):
    check.main([*flags, '--no_compile', f'--device_memory_gib={value}'])


def test_a_bit_that_flips_in_a_checkpoint(tmp_path, capsys):
  model = tiny_evaluation.copy_model(tmp_path / 'model')
  argv = ['verify', f'--model_dir={model}']
  assert cli.main(argv) == 0
  assert 'Checkpoint 2: as it was saved.' in capsys.readouterr().out
  name = 'encoder.layers_0.mlp.wo.kernel'
  flip_bit(model / 'checkpoints/2/params', name, (3, 1), 30)
  assert cli.main(argv) == 2
  told = capsys.readouterr()
  said = 'checkpoints/2/params/manifest.ocdbt is not what was saved'
  assert said in told.out and '1 of 1 checkpoints' in told.err
