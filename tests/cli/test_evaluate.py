"""`dualenc evaluate`: which sets it measures, and what it refuses."""

import dataclasses
import pathlib
import re
import shlex

import numpy as np
import pytest
import small_vocabulary
import tiny_beir
import tiny_evaluation
from tiny_evaluation import result_of
import tiny_run
import tiny_towers
import tiny_weights

from dualenc_jax.cli import (
  config,
  convert,
  evaluate,
  saved_run,
  task_selection,
  train,
)
from dualenc_jax.data.readers import beir
from dualenc_jax.data.readers.python_code import split_of
from dualenc_jax.data.text.tokenizer import Vocabulary
from dualenc_jax.models import TokenEmbedder
from dualenc_jax.utils.errors import UserError


@pytest.fixture(scope='module')
def model(tmp_path_factory) -> pathlib.Path:
  """A model_dir after two steps, to write results to."""
  return tiny_evaluation.copy_model(tmp_path_factory.mktemp('run') / 'model')


@pytest.fixture
def data(tmp_path) -> pathlib.Path:
  """A DATA_ROOT with two of BEIR's names."""
  for seed, name in enumerate(('scifact', 'nfcorpus')):
    tiny_beir.make(seed).write(tmp_path / 'data' / 'beir' / name)
  return tmp_path / 'data'


def run(model, tmp_path, *flags, data=None):
  """Evaluates into a folder of the test's own, which it returns."""
  evaluate.main([
      f'--model_dir={model}',
      f'--output_dir={tmp_path / "results"}',
      f'--gin.DATA_ROOT={data or tmp_path / "data"}',
      *flags,
  ])
  return tmp_path / 'results'


def names_in(folder):
  return sorted(path.name for path in folder.iterdir())


def test_several_sets_and_the_papers_table(model, data, capsys):
  for part in beir.CQADUPSTACK_PARTS:
    folder = data / 'beir' / part
    tiny_beir.make(len(part), passages=7, queries=2).write(folder)
  evaluate.main([
      f'--model_dir={model}', f'--gin.DATA_ROOT={data}',
      '--tasks=beir/scifact,beir/cqadupstack,beir/scifact',
      '--metrics=Recall@3,MRR@100',
  ])
  folder = model / 'evaluation'
  parts = [part.replace('/', '-') for part in beir.CQADUPSTACK_PARTS]
  written = [f'beir-{name}-test' for name in ('scifact', *parts)]
  assert names_in(folder) == sorted([*written, 'tables.md', 'tables.tex'])
  printed = capsys.readouterr().out
  assert printed.count('beir-scifact, split test:') == 1
  values = [
      result_of(folder / f'beir-{part}-test')['metrics']['nDCG@10']
      for part in parts
  ]
  table = (folder / 'tables.md').read_text()
  (shown,) = re.findall(r'CQADupStack[ |*]+([0-9.]+)', table)
  assert float(shown) == pytest.approx(100 * np.mean(values), abs=0.0501)
  # What is asked for has a table, in which the order of the flag is no matter.
  further = table[table.index('Further metrics') :]
  assert re.search(r'Model +\| +MRR@100 \| +Recall@3', further)
  own = result_of(folder / 'beir-scifact-test')['metrics']
  for name in ('MRR@100', 'Recall@3'):
    assert f'{100 * own[name]:.1f}' in re.search('SciFact.*', further)[0]
    assert re.search(rf'{name} +{own[name]:.4f}', printed)


def test_output_dir_of_one_set_and_of_several(model, data, tmp_path):
  folder = run(model, tmp_path, '--tasks=beir/scifact')
  written = sorted([*tiny_evaluation.FILES, 'bm25', 'hybrid'])
  assert names_in(folder) == written
  alone = result_of(folder)
  both = '--tasks=beir/scifact,beir/nfcorpus'
  index = tmp_path / 'index'
  folder = run(
      model, tmp_path / 'two', f'--index_dir={index}', both, data=data
  )
  parts = ['beir-nfcorpus-test', 'beir-scifact-test']
  assert names_in(folder) == parts == names_in(index)
  one = result_of(folder / 'beir-scifact-test')
  assert shlex.split(one.pop('command'))[-1] == both
  assert shlex.split(alone.pop('command')) == [
      'dualenc', 'evaluate', f'--model_dir={model}',
      f'--output_dir={tmp_path / "results"}', f'--gin.DATA_ROOT={data}',
      '--tasks=beir/scifact',
  ]
  assert one == alone
  assert names_in(folder / 'beir-nfcorpus-test') == written


def test_what_is_missing_is_told_before_anything_is_computed(
    model, data, tmp_path, capsys
):
  flags = [f'--gin.CACHE_DIR={tmp_path / "tokens"}']
  tasks = '--tasks=beir/scifact,beir/fiqa,msmarco'
  with pytest.raises(UserError) as error:
    run(model, tmp_path, tasks, *flags)
  for part in (
      'beir/fiqa: there is no file', 'fiqa.zip', '--skip_missing',
      'Missing: beir-fiqa, msmarco.',
  ):
    assert part in str(error.value)
  assert not (tmp_path / 'results').exists()
  assert not (tmp_path / 'tokens').exists()
  # A corpus alone may be missing, too.
  lost = data / 'beir' / 'nfcorpus' / 'corpus.jsonl'
  lost.unlink()
  with pytest.raises(UserError, match='nfcorpus.*corpus.jsonl'):
    run(model, tmp_path, '--tasks=beir/scifact,beir/nfcorpus', *flags)
  folder = run(model, tmp_path, f'{tasks},beir/nfcorpus', '--skip_missing')
  told = capsys.readouterr().err
  assert 'missing: beir-fiqa, msmarco, beir-nfcorpus.' in told
  assert result_of(folder)['label'] == 'beir-scifact'


@pytest.mark.parametrize(
    'flags, message',
    [
        (['--tasks=beir/scifcat'], "'scifcat'.* Did you mean 'scifact'"),
        (['--tasks=bier/scifact'], "no task 'bier'.*mean 'beir'"),
        (['--tasks=msmarco/x'], "'msmarco' has no data sets to choose 'x'"),
        (['--metrics=Recal@5'], "no metric 'Recal@5'. Did you mean 'Recall@5"),
        (['--metrics=MRR@2000'], 'MRR@2000 needs 2,000 hits.*Give --k=2000'),
        (['--k=0'], '--k is 0; expected at least 1'),
    ],
)
def test_bad_flags(model, data, tmp_path, flags, message):
  with pytest.raises(UserError, match=message):
    run(model, tmp_path, *flags)
  assert not (tmp_path / 'results').exists()


def test_a_task_whose_gin_file_changes_the_model(tmp_path):
  """tasks/python_code.gin has VOCABULARY and VOCAB_SIZE; the model's win."""
  words = small_vocabulary.write(tmp_path / 'words.model')
  towers = dataclasses.replace(
      tiny_towers.model(), token_embedder=TokenEmbedder(320, 32)
  )
  usage = dataclasses.replace(tiny_weights.USAGE, vocabulary=words)
  weights = tiny_weights.random(towers, usage)
  convert.write_model_dir(weights, tmp_path / 'model')
  # By a macro, as training writes it.
  saved, size = tmp_path / 'model' / 'config.gin', 'TokenEmbedder.vocab_size = '
  text = saved.read_text().replace(f'{size}320', f'{size}%VOCAB_SIZE')
  saved.write_text(f'{text}\nVOCAB_SIZE = 320\n')
  names = [f'module_{i}' for i in range(60)]
  (tmp_path / 'code').mkdir()
  held_out = [name for name in names if split_of(name) == 'test']
  assert len(held_out) > 2
  for name in names:
    (tmp_path / 'code' / f'{name}.py').write_text(
        f'def {name}(text):\n  """Find the {name} of a text."""\n'
        f'  return text[{names.index(name)}]\n'
    )
  roots = f"--gin.ROOTS=('{tmp_path / 'code'}',)"
  folder = run(tmp_path / 'model', tmp_path, '--tasks=python_code', roots)
  result = result_of(folder)
  assert (result['label'], result['split']) == ('python_code', 'test')
  assert result['queries'] == len(held_out)
  assert result['vocabulary'] == Vocabulary(str(words)).sha256


def test_each_task_has_a_split_that_is_measured():
  for task, split in (
      ('msmarco', 'validation'), ('open_nq', 'validation_questions'),
      ('multireqa/BioASQ', 'test'), ('multireqa/SQuAD', 'validation'),
  ):
    config.load(
        ['commands/data.gin', *task_selection.gin_files([task])],
        ["MODEL_DIR = 'x'"],
    )
    selected = task_selection.select(None, [task], None)
    assert [found for _, found in selected] == [split]


def test_a_set_and_a_folder_in_place_of_each_other(model, data, tmp_path):
  """A folder that the saved config names is none of the benchmark's sets."""
  own = f'--gin.BEIR_FOLDER={data / "beir" / "nfcorpus"}'
  folder = run(model, tmp_path, '--tasks=beir/scifact', own)
  assert result_of(folder)['dataset'] == 'scifact'
  # The same model, as if it had learnt from a set.
  learnt = tiny_evaluation.copy_model(tmp_path / 'learnt')
  flags = [
      flag for flag in tiny_run.flags(tmp_path) if 'pairs' not in flag
      and '_FILE' not in flag
  ]
  train.build(config.parse_args(train.make_parser(), [
      *flags, '--gin_file=tasks/beir.gin', '--gin.BEIR_SET=scifact',
      f'--gin.DATA_ROOT={data}',
      f'--model_dir={learnt}',
  ]))
  (learnt / 'config.gin').write_text(config.operative_config())
  for number, more in enumerate(([], ['--tasks=beir'])):
    folder = run(learnt, tmp_path / str(number), own, *more, data=data)
    assert result_of(folder)['label'] == 'beir-folder-nfcorpus'
    assert result_of(folder)['queries'] == 4


def test_a_folder_of_the_saved_config_is_told(data, tmp_path, caplog):
  flags = [f for f in tiny_run.flags(tmp_path) if 'pairs' not in f]
  own = data / 'beir' / 'nfcorpus'
  train.build(config.parse_args(train.make_parser(), [
      *(f for f in flags if '_FILE' not in f), '--gin_file=tasks/beir.gin',
      f'--gin.BEIR_FOLDER={own}', f'--model_dir={tmp_path}',
  ]))
  (tmp_path / 'config.gin').write_text(config.operative_config())
  before = task_selection.gin_files(['beir'])
  for bindings, files, told in (
      ([], before, True), ([], [], False),
      ([f"BEIR_FOLDER = '{own}'"], before, False),
  ):
    caplog.clear()
    found = saved_run.saved_experiment(str(tmp_path), [], bindings, [], files)
    assert found.task.label == 'beir-folder-nfcorpus'
    assert (f'Task beir is the folder {own}' in caplog.text) is told
