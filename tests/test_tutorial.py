"""The commands of docs/tutorial.md one after the other, as they stand there."""

import csv
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
from test_docs import blocks

pytestmark = pytest.mark.nightly
PAGE = pathlib.Path(__file__).parents[1] / 'docs' / 'tutorial.md'


def test_the_whole_day(shared, tmp_path):
  source = shared / 'data' / 'scifact'
  if not source.is_dir():
    pytest.skip('no scifact in ../shared/data')
  data = tmp_path / 'my_data'
  data.mkdir()
  for path in source.iterdir():
    (data / path.name).symlink_to(path)
  programs = pathlib.Path(sys.executable).parent
  environment = {
      **os.environ,
      'PATH': f'{programs}{os.pathsep}{os.environ["PATH"]}',
      'JAX_PLATFORMS': 'cpu',
  }
  said = []
  for language, text in blocks(PAGE):
    if language in ('bash', 'python'):
      words = ['bash', '-euc'] if language == 'bash' else [sys.executable, '-c']
      done = subprocess.run(
          [*words, text], cwd=tmp_path, env=environment,
          capture_output=True, text=True,
      )
      assert done.returncode == 0, f'{text}\n{done.stderr[-3000:]}'
      said.append(done.stdout + done.stderr)
  whole = '\n'.join(said)
  # What the page shows is what stands before numbers and paths, at least.
  for language, text in blocks(PAGE):
    if not language:
      for line in text.splitlines():
        start = re.split(r'\d|\[\.\.\.]', line)[0].strip(' |')
        assert start in whole, line
  # Of the judged queries each has hits; trec_eval's nDCG beats chance by far.
  with (source / 'qrels' / 'test.tsv').open() as f:
    judged = {row['query-id'] for row in csv.DictReader(f, delimiter='\t')}
  for model, least in (('first', 0.4), ('second', 0.5)):
    folder = tmp_path / model / 'evaluation' / 'beir-folder-my_data-test'
    found = json.loads((folder / 'metrics.json').read_text())
    assert found['metrics']['nDCG@10'] > least, model
    run = (folder / 'run.trec').read_text().splitlines()
    assert {line.split()[0] for line in run} == judged
  assert (tmp_path / 'second' / 'report.html').stat().st_size > 100_000
  with (source / 'corpus.jsonl').open() as f:
    assert f'{sum(1 for _ in f):,} passages in {tmp_path}/second/index' in whole
