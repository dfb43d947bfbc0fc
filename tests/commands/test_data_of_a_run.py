"""What is wrong with the data of a run, told before anything is made."""

import csv
import json

import jax
import numpy as np
import pyarrow as pa
import pytest
import tiny_beir
import tiny_run

from dualenc_jax.commands import cli, config, train as train_lib


def train(folder, *flags):
  return cli.main(
      ['train', *tiny_run.flags(folder), f'--model_dir={folder / "m"}', *flags]
  )


@pytest.mark.parametrize('task', ['pairs', 'beir'])
def test_a_batch_larger_than_the_data(task, tmp_path, capfd, monkeypatch):
  monkeypatch.setenv('DUALENC_CACHE', str(tmp_path / 'cache'))
  flags, most = ['--gin.BATCH_SIZE=128'], 96
  if task == 'beir':
    tiny = tiny_beir.make(0).write(tmp_path / 'set', 'train')
    most = sum(g > 0 for own in tiny.qrels.values() for g in own.values())
    run = [
        '--gin_file=runs/finetune.gin', '--gin_file=tasks/beir.gin',
        f'--gin.BEIR_FOLDER={tmp_path / "set"}',
        '--gin.VOCABULARY=python_code_8k', '--gin.VOCAB_SIZE=8064',
        *tiny_run.small_flags(), *flags,
    ]
    assert cli.main(['train', *run, f'--model_dir={tmp_path / "m"}']) == 2
  else:
    assert train(tmp_path, *flags) == 2
  told = capfd.readouterr().err
  assert f'--gin.BATCH_SIZE={most}, or fewer' in told
  assert 'Parameters: ' not in told
  assert not list((tmp_path / 'cache').glob('tokens/*'))


def test_a_missing_train_file(tmp_path, capfd):
  assert train(tmp_path, '--gin.TRAIN_FILE=nowhere.jsonl') == 2
  told = capfd.readouterr().err
  assert 'there is no file nowhere.jsonl' in told and 'TRAIN_FILE' in told
  assert 'Parameters: ' not in told


def test_the_same_batches_whatever_form_the_pairs_have(tmp_path):
  words = tiny_run.WORDS
  rows = [
      {'query': f'find "{a}"', 'passage': f'{a}, {b}\nand "{c}"',
       'negatives_1': c}
      for a, b, c in zip(words, words[1:], words[2:])
  ]
  lines = ''.join(json.dumps(row) + '\n' for row in rows)
  (tmp_path / 'a.jsonl').write_text(lines)
  (tmp_path / 'a.json').write_text(json.dumps(rows))
  with (tmp_path / 'a.csv').open('w', newline='') as f:
    writer = csv.DictWriter(f, rows[0])
    writer.writeheader()
    writer.writerows(rows)
  folder = tmp_path / 'arrow'
  folder.mkdir()
  table = pa.Table.from_pylist(rows)
  name = 'data-00000-of-00001.arrow'
  with pa.ipc.new_stream(str(folder / name), table.schema) as stream:
    stream.write_table(table)
  state = json.dumps({'_data_files': [{'filename': name}]})
  (folder / 'state.json').write_text(state)
  (folder / 'dataset_info.json').write_text('{}')
  found = []
  for form in ('a.jsonl', 'a.json', 'a.csv', 'arrow'):
    args = config.parse_args(train_lib.make_parser(), [
        *tiny_run.flags(tmp_path), f'--gin.TRAIN_FILE={tmp_path / form}',
        '--gin.NUM_NEGATIVES=1', f'--model_dir={tmp_path / "model"}',
    ])
    found.append(train_lib.build(args).batches(0))
  for other in found[1:]:
    jax.tree.map(np.testing.assert_array_equal, found[0], other)
