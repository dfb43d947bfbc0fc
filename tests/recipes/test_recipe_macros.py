"""Macros and sweeps of shipped recipes: what they set, and what is said."""

import re
import shlex

import pytest
from test_shipped_recipes import pair_flags
import tiny_evaluation

from dualenc_jax.cli import config, main as cli, recipe as command, train


def test_small_indexes_over_sets_of_beir(tmp_path, capsys):
  """One source, BPR and JPQ; each row of the table has the results of all."""
  model = tiny_evaluation.shared_model()
  command.main([
      '--gin_file=recipes/gpl_small_beir.gin', f'--output_dir={tmp_path}',
      *(f'--replace={n}={model}' for n in ('source', 'generator', 'teacher')),
      '--gin.DATA_ROOT=/data', '--gin.CORPUS=s3://data/beir/{SET}',
      '--gin.CORPUS_FILE=s3://data/beir/{SET}/corpus.jsonl',
      '--gin.TIME_CODECS=True', '--sweep=SET=scifact,cqadupstack/tex', '--list',
  ])
  said = capsys.readouterr().out.splitlines()
  lines = dict(zip(said, map(shlex.split, said[1:])))
  for name in ('bpr', 'jpq', 'gpl_scifact', 'gpl_cqadupstack_tex'):
    assert lines[f'# {name}'][1] == 'train'
  measured = lines['# bpr_gpl_bits_cqadupstack_tex']
  assert {'--time_codecs', '--gin.BEIR_SET=cqadupstack/tex'} <= {*measured}
  generated = lines['# queries_cqadupstack_tex']
  assert '--corpus=s3://data/beir/cqadupstack/tex/corpus.jsonl' in generated
  compared = lines['# comparison']
  names, of_lines = (
      next(w for w in compared if w.startswith(flag)).partition('=')[2]
      for flag in ('--names', '--lines')
  )
  assert names == (
      'dense,dense,{codec},{codec},GenQ,GenQ,GenQ+{codec},GenQ+{codec},GPL,GPL,'
      'GPL+{codec},GPL+{codec},BPR,BPR,BPR+GenQ,BPR+GenQ,BPR+GPL,BPR+GPL,JPQ,'
      'JPQ,JPQ+GenQ,JPQ+GenQ,JPQ+GPL,JPQ+GPL'
  )
  assert len([w for w in compared if w[:2] != '--'][2:]) == 24
  assert of_lines == names.replace('{codec}', 'PQ')


def test_the_teacher_of_pair_is_as_its_file_has_it(tmp_path, capsys):
  """By the flags in the head of the file: nothing after it sets it again."""
  text = (config.gin_root() / 'runs/papers/pair_teacher.gin').read_text()
  lines = re.findall(r'^#   (--gin.*)$', text, re.MULTILINE)
  command.main([
      '--gin_file=recipes/pair.gin', f'--output_dir={tmp_path}/x',
      *pair_flags(tmp_path), '--gin.NUM_NEGATIVES=4',
      *shlex.split(' '.join(lines)), '--list',
  ])
  said = capsys.readouterr().out.splitlines()
  line = shlex.split(said[said.index('# teacher') + 1])
  built = train.build(config.parse_args(train.make_parser(), line[2:]))
  objective = built.objective
  assert (objective.num_negatives, objective.num_others) == (4, 0)
  assert objective.template.length == 160
  assert built.optimizer.learning_rate(20_000) == pytest.approx(1e-5)


def test_a_recipe_has_its_own_names_of_macros(tmp_path, capfd, monkeypatch):
  """They stand where a stage fails, and where a flag has the stage's."""
  monkeypatch.setattr(command, '_execute', lambda *_: 3)
  model = tiny_evaluation.shared_model()
  given = ['recipe', '--gin_file=recipes/daft_ablations.gin', '--until=daft']
  given += [f'--output_dir={tmp_path}', '--sweep=QUERY_LAYERS=2,3']
  given += [f'--replace={name}={model}' for name in ('teacher', 'matched_2')]
  with pytest.raises(SystemExit):
    cli.main(given)
  said = capfd.readouterr().err.splitlines()
  (of_aligned,) = (x for x in said if 'of stage aligned: ' in x)
  assert 'STEPS is ALIGNMENT_STEPS' in of_aligned
  assert 'training.UntilAligned.share is SHARE' in of_aligned
  assert 'SEED' not in of_aligned
  # A place of a sweep is no macro.
  assert 'QUERY_LAYERS' not in of_aligned
  for flag, told in (
      ('STEPS', 'calls it ALIGNMENT_STEPS or FINETUNE_STEPS or MATCHING_STEPS'),
      ('CLIP_NORM', """.Stage.overrides="{'gin.CLIP_NORM': VALUE}"."""),
  ):
    assert cli.main([*given, f'--gin.{flag}=1']) == 2
    assert told in capfd.readouterr().err.replace('\n', ' ')


def test_a_sweep_says_what_it_leaves_out(tmp_path, capfd):
  model = tiny_evaluation.shared_model()
  command.main([
      '--gin_file=recipes/daft_ablations.gin', f'--output_dir={tmp_path}',
      f'--replace=teacher={model}', '--sweep=QUERY_LAYERS=1', '--list',
  ])
  assert (
      '--sweep=QUERY_LAYERS=1 leaves out what is for QUERY_LAYERS=2 alone:'
      ' unaligned, aligned_unshared, unshared, aligned_scratch, scratch,'
      ' ablations.'
  ) in capfd.readouterr().err
