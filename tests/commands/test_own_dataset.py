"""A dataset of the user's own, bound as TASK: checked, trained, evaluated."""

import json

import pytest
import tiny_run

from dualenc_jax.commands import check, data_check, evaluate, train
from dualenc_jax.errors import UserError

MODULE = '''
from dualenc_jax import data


class Mine(data.Dataset):
  """The least that a dataset needs."""

  def __init__(self, name='word'):
    self.name = name

  def splits(self):
    return ('train', 'validation')

  def examples(self, split):
    for i in range(32):
      yield {'query': f'{split} {self.name} {i}', 'passage': f'array {i}'}


class Plain:
  """No dataset."""
'''


def test_it_is_checked_trained_and_evaluated(tmp_path, monkeypatch, capsys):
  (tmp_path / 'my_own_data.py').write_text(MODULE)
  monkeypatch.syspath_prepend(tmp_path)
  own = tmp_path / 'own.gin'
  own.write_text(
      'from __gin__ import dynamic_registration\n'
      'import my_own_data\n'
      'TASK = @my_own_data.Mine()\n'
      "VOCABULARY = 'python_code_8k'\n"
  )
  data_check.main([f'--gin_file={own}', f'--output={tmp_path / "report"}'])
  report = json.loads((tmp_path / 'report' / 'report.json').read_text())
  assert [split['pairs'] for split in report['splits']] == [32, 32]
  flags = [
      '--gin_file=runs/finetune.gin',
      f'--gin_file={own}',
      *tiny_run.small_flags(),
      '--gin.VOCAB_SIZE=8064',
      f'--gin.CACHE_DIR={tmp_path / "tokens"}',
  ]
  check.main([*flags, '--no_compile'])
  assert 'Task Mine: splits train, validation.' in capsys.readouterr().out
  model = f'--model_dir={tmp_path / "model"}'
  train.main([*flags, model])
  evaluate.main([model])
  assert 'Mine, split validation:\n' in capsys.readouterr().out
  with pytest.raises(UserError, match='Plain.*derives from data.Dataset'):
    check.main([*flags, '--gin.TASK=@my_own_data.Plain()'])
