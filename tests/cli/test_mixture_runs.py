"""A mixture through the program: check, train, evaluate."""

import pytest
import tiny_beir
import tiny_evaluation
import tiny_run

from dualenc_jax.cli import check, evaluate, train
from dualenc_jax.utils.errors import UserError

MIXTURE = '''
from __gin__ import dynamic_registration
from dualenc_jax import data
from dualenc_jax.data import readers

include 'runs/finetune.gin'
include 'tasks/pairs.gin'
include 'tasks/beir.gin'

TASK = @data.Mixture()
data.Mixture:
  tasks = [@readers.Pairs(), @readers.Beir()]
  rates = [3, 1]
  validation = @readers.Pairs()
'''


@pytest.fixture
def flags(tmp_path):
  """Flags of a mixture of pairs and a small folder in BEIR's layout."""
  words = {f'd{i}': word for i, word in enumerate(tiny_run.WORDS)}
  made = tiny_beir.TinySet(words, words, {name: {name: 1} for name in words})
  made.write(tmp_path / 'mine')
  qrels = tmp_path / 'mine' / 'qrels'
  (qrels / 'train.tsv').write_text((qrels / 'test.tsv').read_text())
  (tmp_path / 'mixture.gin').write_text(MIXTURE)
  small = [*tiny_run.pairs_flags(tmp_path), *tiny_run.small_flags()]
  return [
      f'--gin_file={tmp_path / "mixture.gin"}',
      *(flag for flag in small if flag != '--gin_file=tasks/pairs.gin'),
      f'--gin.BEIR_FOLDER={tmp_path / "mine"}', '--gin.EVAL_EVERY=1',
      f'--gin.CACHE_DIR={tmp_path / "tokens"}',
  ]


@pytest.mark.nightly
def test_a_mixture_is_checked_trained_and_used(flags, tmp_path, capsys):
  check.main([*flags, '--no_compile'])
  assert 'Task pairs+beir: splits train, validation.' in capsys.readouterr().out
  model = f'--model_dir={tmp_path / "model"}'
  train.main([*flags, model])
  # On again, which compares the data of the mixture with that of before.
  train.main([*flags, model])
  evaluate.main([model])
  assert 'pairs, split validation:\n' in capsys.readouterr().out
  with pytest.raises(UserError, match='mixture pairs.beir has no split'):
    evaluate.main([model, '--split=test'])


def test_a_model_of_pairs_is_evaluated_on_another_task(flags, tmp_path, capsys):
  """Its saved config has no DATA_ROOT, since its task asked for none."""
  folder = next(f for f in flags if 'BEIR_FOLDER' in f)
  model = tiny_evaluation.copy_model(tmp_path / 'model')
  evaluate.main([f'--model_dir={model}', '--gin_file=tasks/beir.gin', folder])
  assert 'nDCG@10' in capsys.readouterr().out
