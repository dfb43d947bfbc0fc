"""The page's commands for pairs and no checkpoint, as they stand there."""

import pathlib
import re

import tiny_evaluation
import tiny_run

from dualenc_jax.cli import main as cli

PAGE = pathlib.Path(__file__).parents[2] / 'docs/training.md'


def test_the_block_of_the_page(tmp_path, monkeypatch):
  block = PAGE.read_text().partition('With pairs of query and passage:')[2]
  lines = re.search(r'```bash\n(.*?)```', block, re.DOTALL)[1]
  commands = [
      line.split()[1:] for line in lines.replace('\\\n', '').splitlines()
  ]
  assert [words[0] for words in commands] == ['data', 'train', 'evaluate']
  monkeypatch.chdir(tmp_path)
  tiny_run.write_pairs(tmp_path / 'train.jsonl', 200)
  tiny_run.write_pairs(tmp_path / 'dev.jsonl', 24, seed=1)
  assert cli.main(commands[0]) == 0
  assert cli.main([*commands[1], '--gin.STEPS=2']) == 0
  assert cli.main(commands[2]) == 0
  found = tiny_evaluation.result_of(
      tmp_path / 'mine' / 'evaluation' / 'pairs-validation'
  )
  assert found['metrics']['MRR'] > 0
