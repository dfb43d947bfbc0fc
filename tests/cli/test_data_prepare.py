"""The data of a run, prepared or not, and what is wrong with it."""

import json
import pathlib

import pytest
import tiny_run

from dualenc_jax.cli import config, data_prepare, main as cli, saved_run
from dualenc_jax.data import Cache, cache as cache_lib, prepare
from dualenc_jax.data.dataset import Mixture
from dualenc_jax.data.readers import Pairs
from dualenc_jax.utils.errors import UserError

LENGTHS = ['--gin.QUERY_LENGTH=8', '--gin.PASSAGE_LENGTH=16']


def write(path: pathlib.Path, count: int) -> str:
  rows = [{'query': f'q {i}', 'passage': 'a b c'} for i in range(count)]
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  return str(path)


@pytest.fixture
def files(tmp_path):
  return [write(tmp_path / 'a.jsonl', 30), write(tmp_path / 'b.jsonl', 7)]


def test_all_splits_by_default_and_a_summary(files, tmp_path, capsys):
  folder = tmp_path / 'tokens'
  data_prepare.main([*files, f'--gin.CACHE_DIR={folder}', *LENGTHS])
  found = [p for p in folder.iterdir() if p.name != cache_lib.BUILDING]
  headers = [Cache.open(path).header for path in found]
  assert {header['split']: header['examples'] for header in headers} == {
      'train': 30, 'validation': 7
  }
  settings, first, second = capsys.readouterr().out.splitlines()
  assert settings.startswith('Vocabulary python_code_8k, up to 8 tokens')
  cache = Cache.open(first.split()[-1])
  assert first.startswith('pairs, train: 30 examples: ') and len(cache) == 30
  assert second.startswith('pairs, validation: 7 examples: ')


def test_a_run_takes_what_was_prepared(files, tmp_path, monkeypatch):
  flags = [
      '--gin_file=runs/finetune.gin', f'--gin.TRAIN_FILE={files[0]}',
      f'--gin.CACHE_DIR={tmp_path / "tokens"}',
      '--gin.VOCABULARY=python_code_8k', '--gin.VOCAB_SIZE=8064', *LENGTHS,
  ]
  data_prepare.main([*flags, '--split=train'])
  bindings = [*map(config.binding, flags[1:]), "MODEL_DIR = 'unused'"]
  experiment = saved_run.build_experiment(['runs/finetune.gin'], bindings, [])

  def unread(*unused_args):
    raise AssertionError('the source was read again')

  monkeypatch.setattr(Pairs, 'examples', unread)
  cache = prepare(
      experiment.task, 'train', experiment.tokenizer, experiment.cache_dir
  )
  assert len(cache) == 30


def test_the_tasks_of_a_mixture():
  first, second = Pairs(train='a'), Pairs(train='b')
  other = Pairs(validation='c', test='d')
  mixture = Mixture((first, second), validation=other)
  train = [(first, 'train'), (second, 'train')]
  both = [*train, (other, 'validation')]
  assert data_prepare.chosen_splits(mixture, None) == both
  assert data_prepare.chosen_splits(mixture, ['train']) == train


@pytest.mark.parametrize('flag, message', [
    ('--split=tran', "Did you mean 'train'"),
    ('--gin.PASSAGE_LENGTH=1', r'Tokenizer\.passage_length .* is 1'),
])
def test_bad_flags(files, tmp_path, flag, message):
  with pytest.raises(UserError, match=message):
    data_prepare.main([*files, f'--gin.CACHE_DIR={tmp_path}', flag])
  with pytest.raises(UserError, match="Task 'pairs' has no splits"):
    data_prepare.main(['pairs'])


def train(folder, *flags):
  return cli.main(
      ['train', *tiny_run.flags(folder), f'--model_dir={folder / "m"}', *flags]
  )


def test_a_batch_larger_than_the_data_and_no_data(tmp_path, capfd, monkeypatch):
  monkeypatch.setenv('DUALENC_CACHE', str(tmp_path / 'cache'))
  assert train(tmp_path, '--gin.BATCH_SIZE=128') == 2
  assert 'is 128; expected 1 to 96' in capfd.readouterr().err
  assert train(tmp_path, '--gin.TRAIN_FILE=nowhere.jsonl') == 2
  told = capfd.readouterr().err
  assert 'there is no file nowhere.jsonl' in told and 'TRAIN_FILE' in told
