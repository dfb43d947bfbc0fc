"""Re-ranking by a cross-encoder and by files, through the commands."""

import dataclasses
import json

import numpy as np
import pytest
import shared_runs
import tiny_beir
import tiny_evaluation

import dualenc_jax
from dualenc_jax.checkpoints import loading
from dualenc_jax.checkpoints.checkpoint_reader import Checkpoint
from dualenc_jax.cli import convert, evaluate, rerank, search
from dualenc_jax.evaluation import teacher_scores
from dualenc_jax.evaluation.trec import read_run
from dualenc_jax.retrieval.encoding.teacher import Teacher
from dualenc_jax.utils.errors import UserError

DEPTH = 7


@pytest.fixture(scope='module')
def tiny(tmp_path_factory):
  """A set, a run over it with lists of ten and one of three, and flags."""
  folder = tmp_path_factory.mktemp('data')
  made = tiny_beir.make(0)
  made.write(folder / 'beir')
  rng = np.random.default_rng(0)
  lines = []
  for number, query in enumerate(made.queries):
    ids = rng.permutation(sorted(made.corpus))[: 3 if number == 1 else 10]
    lines += [f'{query} Q0 {name} 0 {20 - i} x\n' for i, name in enumerate(ids)]
  (folder / 'run.trec').write_text(''.join(lines))
  return folder, made


@pytest.fixture(scope='module')
def teacher():
  return shared_runs.cross_encoder()


@pytest.fixture(scope='module')
def student(tmp_path_factory):
  """A dual encoder, re-ranked by the teacher in tests of their own."""
  return tiny_evaluation.copy_model(tmp_path_factory.mktemp('s') / 'student')


def flags(tiny, output, teacher, *more):
  folder, _ = tiny
  return [
      f'--teacher={teacher}',
      f'--run={folder / "run.trec"}',
      '--tasks=beir',
      f'--gin.BEIR_FOLDER={folder / "beir"}',
      '--split=test',
      f'--depth={DEPTH}',
      f'--output_dir={output}',
      *more,
  ]


def write_scores(tiny, path, score):
  folder, _ = tiny
  run = read_run(folder / 'run.trec')
  lines = [
      f'{q}\t{p}\t{score(q, p)}\n' for q, hits in run.items() for p in hits
  ]
  path.write_text(''.join(lines))
  return path


@pytest.mark.slow
def test_by_a_cross_encoder(tiny, teacher, tmp_path, monkeypatch):
  monkeypatch.setattr(teacher_scores, 'BLOCK', 8)
  output = tmp_path / 'out'
  rerank.main(flags(tiny, output, teacher))
  before, after = read_run(tiny[0] / 'run.trec'), read_run(output / 'run.trec')
  model = loading.load_teacher(teacher)
  for query, hits in before.items():
    names = [*hits]
    texts = [tiny[1].corpus[name] for name in names[:DEPTH]]
    pairs = np.stack([np.zeros(len(texts), int), np.arange(len(texts))], 1)
    scores = model.scores([tiny[1].queries[query]], texts, pairs)
    order = sorted(
        range(len(texts)), key=lambda i: (scores[i], names[i]), reverse=True
    )
    wanted = [*(names[i] for i in order), *names[DEPTH:]]
    assert [*after[query]] == wanted
    assert [*after[query].values()][: len(texts)] == pytest.approx(
        sorted(scores.tolist(), reverse=True), rel=1e-5, abs=1e-6
    )
  # Kept scores are of this data set, whose ids another may have, too.
  header = json.loads((output / 'scores.json').read_text())
  result = json.loads((output / 'metrics.json').read_text())
  assert header['queries'] == result['source']
  assert header['corpus'] == result['corpus']['source']
  # After a kill it goes on from the last whole block.
  scores = output / 'scores.tsv'
  whole = scores.read_text()
  lines = whole.splitlines(keepends=True)
  scores.write_text(''.join(lines[:16]) + lines[16][:5])
  asked = []
  blocks = Teacher.blocks

  def spy(self, queries, passages, pairs, size):
    asked.append(len(pairs))
    return blocks(self, queries, passages, pairs, size)

  monkeypatch.setattr(Teacher, 'blocks', spy)
  rerank.main(flags(tiny, output, teacher))
  assert scores.read_text() == whole
  assert asked == [len(lines) - 16]
  assert read_run(output / 'run.trec') == after
  # Nor are the scores of another teacher taken for its own.
  header['run_id'] = 'another'
  (output / 'scores.json').write_text(json.dumps(header))
  with pytest.raises(UserError, match='another teacher or data set, by run_id'):
    rerank.main(flags(tiny, output, teacher))


def test_by_a_file_of_the_judgements(tiny, tmp_path, capsys):
  _, made = tiny
  path = write_scores(
      tiny, tmp_path / 's.tsv', lambda q, p: made.qrels.get(q, {}).get(p, 0)
  )
  deep = flags(tiny, tmp_path / 'out', path, '--metrics=Recall@5,Recall@20')
  with pytest.raises(UserError, match='@20 needs 12 hits.*run.trec gives 10'):
    rerank.main(deep)
  rerank.main(flags(tiny, tmp_path / 'out', path, '--metrics=Recall@5'))
  assert 'WARNING' not in capsys.readouterr().out
  after = read_run(tmp_path / 'out' / 'run.trec')
  run = read_run(tiny[0] / 'run.trec')
  # Those below the depth stay below: no score of one ties with one above.
  for hits in after.values():
    scores = [*hits.values()][DEPTH - 1 :]
    assert all(a > b for a, b in zip(scores, scores[1:]))
  values = []
  for query, grades in made.qrels.items():
    if not any(int(g) > 0 for g in grades.values()):
      continue
    first = [*run.get(query, {})][:DEPTH]
    top = [hit for hit in first if int(grades.get(hit, 0)) > 0]
    values.append(bool(top))
    if top:
      assert int(grades[next(iter(after[query]))]) > 0
  metrics = json.loads((tmp_path / 'out' / 'metrics.json').read_text())
  assert metrics['metrics']['P@1'] == pytest.approx(np.mean(values))
  assert metrics['teacher'] == {'scores': 's.tsv'}
  # A teacher that does not help; a line of names says where scores are.
  path = write_scores(
      tiny, tmp_path / 's.tsv', lambda q, p: -made.qrels.get(q, {}).get(p, 0)
  )
  lines = ['qid\tpid\tscore', *path.read_text().splitlines()]
  cells = [line.split('\t')[::-1] for line in lines]
  path.write_text(''.join('\t'.join(row) + '\n' for row in cells))
  rerank.main(flags(tiny, tmp_path / 'worse', path))
  # A result of another run is not replaced without a word.
  other = f'--run={tmp_path}/out/run.trec'
  with pytest.raises(UserError, match='results of another .*by run_sha256 in'):
    rerank.main(flags(tiny, tmp_path / 'worse', path, other))
  rerank.main(flags(tiny, tmp_path / 'worse', path, other, '--overwrite'))
  assert 'WARNING: the teacher does not beat' in capsys.readouterr().out


@pytest.mark.slow
def test_prompts_are_those_of_the_cross_encoder(
    tiny, teacher, tmp_path, monkeypatch
):
  own, prompts = Checkpoint.tokenizer, {'find': 'search for: '}
  monkeypatch.setattr(
      Checkpoint, 'tokenizer',
      lambda self: dataclasses.replace(own(self), prompts=prompts),
  )

  def run(*args):
    raise KeyboardInterrupt(rerank.evaluate.rerank_facts(args[5]))

  monkeypatch.setattr(rerank.evaluate, 'rerank_run', run)
  with pytest.raises(KeyboardInterrupt, match="'query_prefix': 'search for: '"):
    rerank.main(flags(tiny, tmp_path / 'out', teacher, '--prompt=find'))


def test_what_does_not_go_with_a_file_of_scores(tiny, tmp_path):
  path = write_scores(tiny, tmp_path / 's.tsv', lambda q, p: 1)
  out, new = tmp_path / 'out', tmp_path / 'new'
  out.mkdir()
  (out / 'scores.tsv').write_text('q\tp\t1\n')
  for argv, message in (
      ([out, path], 'scores.tsv has the scores of another'),
      ([new, path, '--prompt=find'], 'scores, which takes no --prompt'),
      ([new, tmp_path], 'is not the model_dir of a cross-enc'),
  ):
    with pytest.raises(UserError, match=message):
      rerank.main(flags(tiny, *argv))


@pytest.mark.parametrize(
    'change, message',
    [
        (lambda s: s.replace('\t1\n', '\tnan\n'), r's.tsv:1: the score is nan'),
        (lambda s: s + s[: s.index('\n') + 1], 'has two scores'),
        (lambda s: f'q p\n{s}', "s.tsv:1: 'q p'; expected query id, passage"),
    ],
)
def test_bad_files_of_scores(tiny, tmp_path, change, message):
  path = write_scores(tiny, tmp_path / 's.tsv', lambda q, p: 1)
  path.write_text(change(path.read_text()))
  with pytest.raises(UserError, match=message):
    rerank.main(flags(tiny, tmp_path / 'out', path))


def test_a_run_of_unknown_ids(tiny, tmp_path):
  path, run = tmp_path / 's.tsv', tmp_path / 'bad.trec'
  write_scores(tiny, path, lambda q, p: 1)
  first = (tiny[0] / 'run.trec').read_text().splitlines()[0].split()
  run.write_text(' '.join([*first[:2], 'elsewhere', *first[3:]]) + '\n')
  with pytest.raises(UserError, match="no passage 'elsewhere'. Is the run"):
    rerank.main(flags(tiny, tmp_path / 'out', path, f'--run={run}'))


@pytest.mark.slow
def test_evaluate_re_ranks(student, teacher, capsys, tmp_path):
  asked = [f'--model_dir={student}', '--split=test', '--no_baselines']
  evaluate.main([*asked, f'--rerank={teacher}', '--rerank_depth=5'])
  said = capsys.readouterr().out
  assert 'rerank' in said and 'Re-ranking: MRR@10' in said
  (folder,) = (student / 'evaluation').glob('*-test')
  own, new = (read_run(folder / part / 'run.trec') for part in ('', 'rerank'))
  for query, hits in own.items():
    assert {*[*hits][:5]} == {*[*new[query]][:5]}
    assert [*hits][5:] == [*new[query]][5:]
    scores = [*new[query].values()]
    assert all(a > b for a, b in zip(scores[4:], scores[5:]))
  # What is wrong with scores replaces no result.
  before = tiny_evaluation.tree(folder / 'rerank')
  few = tmp_path / 'few.tsv'
  few.write_text('q\tp\t0.5\n')
  with pytest.raises(UserError, match='has the scores of another teacher'):
    evaluate.main([*asked, f'--rerank={few}'])
  assert before == tiny_evaluation.tree(folder / 'rerank')
  # Nor does an evaluation of the same model without a teacher.
  evaluate.main(asked)
  assert before == tiny_evaluation.tree(folder / 'rerank')


@pytest.mark.slow
def test_search_re_ranks(student, teacher, capsys):

  def found(*more):
    search.main([f'--model_dir={student}', '--k=3', *more, 'find xml'])
    lines = capsys.readouterr().out.splitlines()[1::2]
    return [line.split(maxsplit=1) for line in lines]

  again = found(f'--rerank={teacher}', '--rerank_depth=4')
  scores = [float(score) for score, _ in again]
  assert len(scores) == 3 and scores == sorted(scores, reverse=True)
  # What is not scored stays where it is, below.
  kept = found(f'--rerank={teacher}', '--rerank_depth=1')
  assert [name for _, name in kept] == [name for _, name in found()]
  with pytest.raises(UserError, match='is a dual encoder, not a cross-encoder'):
    found(f'--rerank={student}')


@pytest.mark.slow
def test_a_cross_encoder_where_a_dual_encoder_is_expected(teacher, tmp_path):
  with pytest.raises(UserError, match='not a dual encoder: .*rerank --teach'):
    search.main([f'--model_dir={teacher}', 'a'])
  with pytest.raises(UserError, match='is a cross-encoder, which scores pairs'):
    output = f'--output_dir={tmp_path / "x"}'
    convert.main([str(teacher), '--to=hf', output])
  with pytest.raises(UserError, match='is a cross-encoder, which scores pairs'):
    dualenc_jax.Retriever.from_dir(teacher)


@pytest.mark.slow
def test_a_teacher_whose_score_is_nan(tiny, teacher, tmp_path, monkeypatch):
  real = Teacher.blocks

  def blocks(*args):
    for pairs, scores in real(*args):
      yield pairs, np.where(np.arange(len(scores)) == 1, np.nan, scores)

  monkeypatch.setattr(Teacher, 'blocks', blocks)
  out = tmp_path / 'out'
  with pytest.raises(UserError, match='The teacher gives query .* not finite'):
    rerank.main(flags(tiny, out, teacher))
  monkeypatch.undo()
  assert 'nan' not in (out / 'scores.tsv').read_text()
  rerank.main(flags(tiny, out, teacher))
  assert read_run(out / 'run.trec')
