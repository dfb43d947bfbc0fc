"""Conversion of an index that is killed."""

import os
import signal
import time

import index_files
import pytest

from dualenc_jax.cli import main as cli
from dualenc_jax.retrieval.index import conversion


@pytest.mark.parametrize('form', sorted(conversion.FORMS))
def test_a_kill_leaves_nothing(tmp_path, monkeypatch, form):
  index_files.write(tmp_path / 'index')
  before = signal.getsignal(signal.SIGTERM)

  def blocks(rows):
    yield rows[:4]
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)

  monkeypatch.setattr(conversion, 'blocks', blocks)
  source, out = tmp_path / 'index', tmp_path / 'out'
  try:
    with pytest.raises(SystemExit):
      cli.main(['convert', str(source), f'--to={form}', f'--output_dir={out}'])
  finally:
    signal.signal(signal.SIGTERM, before)
  assert os.listdir(tmp_path) == ['index']
