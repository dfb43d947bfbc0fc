"""PROMPTS from training to results, sentence-transformers and back."""

import json
import re
import shlex

import numpy as np
import pytest
import tiny_beir
import tiny_evaluation
import tiny_run

from dualenc_jax import Retriever
from dualenc_jax.commands import convert, encode, evaluate, search, train
from dualenc_jax.errors import UserError
from dualenc_jax.index import Index

TEXTS = ['find map', 'array of bytes', 'x']
PROMPTS = {'find': 'search for: ', 'Retrieval-query': 'question: '}


@pytest.fixture(scope='module')
def model(tmp_path_factory):
  """A model_dir that was trained with prompts."""
  folder = tmp_path_factory.mktemp('run') / 'model'
  train.main([
      *tiny_run.flags(folder.parent), f'--gin.PROMPTS={PROMPTS}',
      '--gin.QUERY_PREFIX=query: ', f'--model_dir={folder}',
  ])
  return folder


def result(folder):
  return json.loads((folder / 'metrics.json').read_text())


def test_a_prompt_is_the_prefix_of_its_text(model, tmp_path):
  """Prompts of a name and a QUERY_PREFIX of that text give the same run."""
  by_name = [f'--model_dir={model}', '--prompt=find', '--baselines=']
  evaluate.main(by_name)
  evaluate.main([
      f'--model_dir={model}', '--gin.QUERY_PREFIX=search for: ',
      f'--output_dir={tmp_path / "prefix"}', '--baselines=',
  ])
  evaluate.main([
      f'--model_dir={model}', f'--output_dir={tmp_path / "none"}',
      '--baselines=',
  ])
  (found,) = (model / 'prompt-find' / 'evaluation').glob('*/metrics.json')
  expected, none = tmp_path / 'prefix', tmp_path / 'none'
  runs = [(f / 'run.trec').read_text() for f in (found.parent, expected, none)]
  assert runs[0] == runs[1] != runs[2]
  assert result(found.parent)['query_prefix'] == 'search for: '
  assert result(none)['query_prefix'] == 'query: '


def test_a_run_of_a_version_without_prompts(tmp_path):
  """It goes on, and prompts may be given to the model."""
  model = tiny_evaluation.copy_model(tmp_path / 'model')
  config = model / 'config.gin'
  lines = config.read_text().splitlines(keepends=True)
  old = [x for x in lines if not re.match(r'PROMPTS|data.Tokenizer.prom', x)]
  assert len(old) == len(lines) - 2
  config.write_text(''.join(old))
  files = tiny_evaluation.shared_model().parent
  train.main([
      *tiny_run.flags(tmp_path), f'--gin.TRAIN_FILE={files / "train.jsonl"}',
      f'--gin.VALIDATION_FILE={files / "test.jsonl"}',
      f'--gin.TEST_FILE={files / "test.jsonl"}', f'--model_dir={model}',
  ])
  evaluate.main([
      f'--model_dir={model}', "--gin.PROMPTS={'a': 'b: '}", '--prompt=a',
      f'--output_dir={tmp_path / "out"}', '--baselines=',
  ])
  assert result(tmp_path / 'out')['query_prefix'] == 'b: '


def test_encode_puts_it_before_what_it_encodes(model, tmp_path):
  corpus = tmp_path / 'corpus.tsv'
  corpus.write_text('1\tarray of bytes\n')
  plain = Retriever.from_dir(model)
  for tower, encode_texts in (
      ('passage', plain.encode_passages), ('query', plain.encode_queries)
  ):
    index = tmp_path / tower
    encode.main([
        f'--model_dir={model}', f'--corpus={corpus}', f'--index_dir={index}',
        f'--tower={tower}', '--prompt=find',
    ])
    found = Index.open(index)
    assert found.header.provenance[f'{tower}_prefix'] == 'search for: '
    expected = encode_texts(['array of bytes'], 'find')
    np.testing.assert_allclose(found.embeddings[:], expected, atol=1e-6)
  index = f'--index_dir={tmp_path / "passage"}'
  with pytest.raises(UserError, match="passage_prefix is 'search for: '"):
    search.main([f'--model_dir={model}', index, 'map'])
  search.main([f'--model_dir={model}', index, 'map', '--passage_prompt=find'])


def test_search_and_retriever_agree(model, capsys):
  search.main([f'--model_dir={model}', '--prompt=find', '--k=1', 'find map'])
  score = capsys.readouterr().out.splitlines()[1].split()[0]
  retriever = Retriever.from_dir(model, index=model / 'index', prompt='find')
  assert score == f'{retriever.search(["find map"], 1).scores[0, 0]:.3f}'
  other = Retriever.from_dir(model)
  np.testing.assert_array_equal(
      retriever.encode_queries(TEXTS), other.encode_queries(TEXTS, 'find')
  )
  np.testing.assert_array_equal(
      retriever.encode_queries(TEXTS, 'query'), other.encode_queries(TEXTS)
  )
  assert np.ptp(
      retriever.encode_queries(TEXTS) - other.encode_queries(TEXTS)
  ) > 0.01


def test_a_prompt_of_queries_leaves_passages_as_they_are(model, tmp_path):
  cache = f'--gin.CACHE_DIR={tmp_path / "tokens"}'

  def made():
    found = [*tmp_path.glob('tokens/*'), model / 'index' / 'header.json']
    return {path: path.stat().st_mtime_ns for path in found}

  flags = [f'--model_dir={model}', cache]
  search.main([*flags, 'map'])
  before = made()
  for prompt in PROMPTS:
    search.main([*flags, 'map', f'--prompt={prompt}'])
    assert made() == before
  search.main([*flags, 'map', '--passage_prompt=find'])
  assert len(made()) == len(before) + 1
  # Nor is a corpus of its own tokenised again.
  tiny_beir.make(0).write(tmp_path / 'data' / 'beir' / 'scifact')
  for prompt in ('query', 'find'):
    tiny_evaluation.run(
        model, tmp_path / prompt, f'--prompt={prompt}', cache,
        data=tmp_path / 'data',
    )
  names = [path.name for path in tmp_path.glob('tokens/beir-*')]
  assert sum('-corpus-' in name for name in names) == 1, names
  assert sum('-test-' in name for name in names) == 2, names


@pytest.mark.parametrize('own', [(), ("--gin.PROMPTS={'own': 'x: '}",)])
def test_prompts_of_what_a_run_starts_from(model, tmp_path, capsys, own):
  flags = [*tiny_run.flags(tmp_path), f'--gin.INITIAL_CHECKPOINT_PATH={model}']
  train.main([*flags, *own, f'--model_dir={tmp_path / "on"}'])
  err = capsys.readouterr().err
  lines = [x for x in err.splitlines() if 'has prompts' in x]
  if own:
    assert not lines
    return
  (line,) = lines
  assert "('find', 'Retrieval-query')" in line
  (flag,) = shlex.split(line.partition('To keep them: ')[2])
  train.main([*flags, flag, f'--model_dir={tmp_path / "kept"}'])
  assert 'has prompts' not in capsys.readouterr().err
  kept = Retriever.from_dir(tmp_path / 'kept').towers.tokenizer
  assert kept.prompts == PROMPTS


@pytest.mark.parametrize('command', [evaluate, encode, search])
def test_an_unknown_prompt_is_refused_by_name(model, command):
  flags = [f'--model_dir={model}', '--prompt=fnid']
  with pytest.raises(UserError, match="prompt 'fnid'. Did you mean 'find'?"):
    command.main(flags)


def test_what_is_saved_has_the_prompts(model, tmp_path):
  retriever = Retriever.from_dir(model, prompt='find')
  retriever.save(tmp_path / 'saved')
  again = Retriever.from_dir(tmp_path / 'saved')
  for name in (None, *PROMPTS):
    np.testing.assert_allclose(
        again.encode_queries(TEXTS, name),
        Retriever.from_dir(model).encode_queries(TEXTS, name),
        atol=1e-6,
    )


@pytest.mark.slow
def test_sentence_transformers_and_back(model, tmp_path):
  sentence_transformers = pytest.importorskip('sentence_transformers')
  folder, back = tmp_path / 'st', tmp_path / 'back'
  convert.main([str(model), '--to=sentence_transformers', f'--out={folder}'])
  theirs = sentence_transformers.SentenceTransformer(str(folder), device='cpu')
  ours = Retriever.from_dir(model)
  assert PROMPTS.items() <= theirs.prompts.items()
  for name in PROMPTS:
    for found, expected in (
        (ours.encode_queries(TEXTS, name), theirs.encode_query),
        (ours.encode_passages(TEXTS, name), theirs.encode_document),
    ):
      np.testing.assert_allclose(
          found, expected(TEXTS, prompt_name=name), atol=1e-5
      )
  # What another program adds is taken over, too, as it was written.
  theirs.prompts['other'] = 'another: '
  theirs.default_prompt_name = 'other'
  theirs.save_pretrained(str(tmp_path / 'edited'))
  convert.main([
      str(tmp_path / 'edited'), '--to=model_dir', f'--out={back}',
      f'--vocabulary={model / "vocabulary.model"}',
  ])
  again = Retriever.from_dir(back)
  for name in (*PROMPTS, 'other'):
    np.testing.assert_allclose(
        again.encode_queries(TEXTS, name),
        theirs.encode_query(TEXTS, prompt_name=name),
        atol=1e-5,
    )
  assert again.towers.tokenizer.prompts.keys() == {*PROMPTS, 'other'}
