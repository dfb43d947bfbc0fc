"""Prefixes and PROMPTS from training to results and to other libraries."""

import json

import numpy as np
import pytest
import tiny_evaluation
import tiny_run

from dualenc_jax import Retriever
from dualenc_jax.cli import (
  analyze,
  check,
  convert,
  encode,
  evaluate,
  latency,
  search,
  train,
)
from dualenc_jax.retrieval.index import Index
from dualenc_jax.utils.errors import UserError

TEXTS = ['find map', 'array of bytes', 'x']
PROMPTS = {'find': 'search for: ', 'Retrieval-query': 'question: '}


@pytest.fixture(scope='module')
def model(tmp_path_factory):
  """A model_dir whose texts have prefixes and prompts."""
  return tiny_evaluation.write_random(
      tmp_path_factory.mktemp('run') / 'model', query_prefix='query: ',
      passage_prefix='passage: ', prompts=PROMPTS,
  )


def result(folder):
  return json.loads((folder / 'metrics.json').read_text())


def test_every_result_tells_what_was_put_before_texts(model, tmp_path):
  """Prompts of a name and a QUERY_PREFIX of that text give the same run."""
  evaluate.main([f'--model_dir={model}', '--prompt=find', '--no_baselines'])
  (found,) = (model / 'prompt-find' / 'evaluation').glob('*/metrics.json')
  folders = [found.parent]
  for prefix in 'search for: ', '':
    folders.append(tmp_path / f'of_{len(prefix)}')
    evaluate.main([
        f'--model_dir={model}', f'--output_dir={folders[-1]}', '--no_baselines',
        f'--gin.QUERY_PREFIX={prefix}',
    ])
  runs = [(folder / 'run.trec').read_text() for folder in folders]
  assert runs[0] == runs[1] != runs[2]
  found = [result(folder) for folder in folders]
  assert [x['query_prefix'] for x in found] == ['search for: '] * 2 + ['']
  assert [x['passage_prefix'] for x in found] == ['passage: '] * 3


def test_encode_puts_it_before_what_it_encodes(model, tmp_path):
  corpus = tmp_path / 'corpus.tsv'
  corpus.write_text('1\tarray of bytes\n')
  plain = Retriever.from_dir(model)
  for tower, flag, encode_texts in (
      ('passage', '--passage_prompt=find', plain.encode_passages),
      ('query', '--prompt=find', plain.encode_queries),
  ):
    index = tmp_path / tower
    encode.main([
        f'--model_dir={model}', f'--corpus={corpus}', f'--index_dir={index}',
        f'--tower={tower}', flag,
    ])
    found = Index.open(index)
    assert found.header.provenance[f'{tower}_prefix'] == 'search for: '
    expected = encode_texts(['array of bytes'], 'find')
    np.testing.assert_allclose(found.embeddings[:], expected, atol=1e-6)
  index = f'--index_dir={tmp_path / "passage"}'
  with pytest.raises(UserError, match="passage_prefix is 'search for: '"):
    search.main([f'--model_dir={model}', index, 'map'])
  search.main([f'--model_dir={model}', index, 'map', '--passage_prompt=find'])


def test_search_and_retriever_agree(model, tmp_path, capsys):
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
  retriever.save(tmp_path / 'saved')
  again = Retriever.from_dir(tmp_path / 'saved')
  for name in (None, *PROMPTS):
    np.testing.assert_allclose(
        again.encode_queries(TEXTS, name), other.encode_queries(TEXTS, name),
        atol=1e-6,
    )


def test_prompts_of_what_a_run_starts_from_are_named(model, tmp_path, capsys):
  initial = f'--gin.INITIAL_CHECKPOINT_PATH={model}'
  check.main([*tiny_run.flags(tmp_path), initial, '--no_compile'])
  said = capsys.readouterr().err
  assert 'has prompts' in said and '"find": ' in said


@pytest.mark.parametrize(
    'command, module, name', [
        (analyze, analyze, 'analyse'), (latency, latency.latency, 'measure')
    ],
)
def test_other_commands_measure_with_the_prompt(
    model, monkeypatch, command, module, name
):
  def measure(*args, **_):
    found = args[1] if command is analyze else args[0]['model']
    raise KeyboardInterrupt(found.tokenizer.query_prefix)

  monkeypatch.setattr(module, name, measure)
  given = [str(model) if command is latency else f'--model_dir={model}']
  with pytest.raises(KeyboardInterrupt, match='search for: '):
    command.main([*given, '--prompt=find'])
  with pytest.raises(UserError, match="model has no prompt 'fnid'. Did .*find"):
    command.main([*given, '--prompt=fnid'])


def test_a_default_prompt_is_kept(model, tmp_path):
  """By every form that a folder of sentence-transformers passes through."""
  def convert_to(source, form, name):
    argv = [f'--to={form}', f'--output_dir={tmp_path / name}', '--no-verify']
    convert.main([str(source), *argv])
    return tmp_path / name

  def settings(folder, **changed):
    file = folder / 'config_sentence_transformers.json'
    found = json.loads(file.read_text()) | changed
    file.write_text(json.dumps(found))
    return found

  folder = convert_to(model, 'sentence_transformers', 'st')
  assert settings(folder)['default_prompt_name'] is None
  shared = dict.fromkeys(('query', 'document'), 'text: ')
  for number, (default, prompts) in enumerate((
      ('find', PROMPTS), (None, shared), ('query', shared)
  )):
    given = settings(folder, default_prompt_name=default, prompts=prompts)
    source = folder
    for form in 'model_dir', 'sentence_transformers':
      source = convert_to(source, form, f'{form}{number}')
    found = settings(source)
    assert found['default_prompt_name'] == given['default_prompt_name']
    assert prompts.items() <= found['prompts'].items()


@pytest.mark.slow
def test_sentence_transformers_and_back(model, tmp_path):
  sentence_transformers = pytest.importorskip('sentence_transformers')
  folder, back = tmp_path / 'st', tmp_path / 'back'
  convert.main(
      [str(model), '--to=sentence_transformers', f'--output_dir={folder}']
  )
  theirs = sentence_transformers.SentenceTransformer(str(folder), device='cpu')
  # What another program adds is taken over, too, as it was written.
  theirs.prompts['other'] = 'another: '
  theirs.default_prompt_name = 'other'
  theirs.save_pretrained(str(tmp_path / 'edited'))
  convert.main([
      str(tmp_path / 'edited'), '--to=model_dir', f'--output_dir={back}',
      f'--vocabulary={model / "vocabulary.model"}',
  ])
  convert.main([
      str(back), '--to=sentence_transformers',
      f'--output_dir={tmp_path / "again"}',
  ])
  other = sentence_transformers.SentenceTransformer(
      str(tmp_path / 'again'), device='cpu'
  )
  for call in 'encode', 'encode_query', 'encode_document':
    np.testing.assert_allclose(
        getattr(other, call)(TEXTS), getattr(theirs, call)(TEXTS), atol=1e-5
    )
  ours, again = Retriever.from_dir(model), Retriever.from_dir(back)
  assert again.towers.tokenizer.prompts.keys() == {*PROMPTS, 'other'}
  for name in (*PROMPTS, 'other'):
    own = [again] if name == 'other' else [ours, again]
    queries = theirs.encode_query(TEXTS, prompt_name=name)
    passages = theirs.encode_document(TEXTS, prompt_name=name)
    for each in own:
      np.testing.assert_allclose(
          each.encode_queries(TEXTS, name), queries, atol=1e-5
      )
      np.testing.assert_allclose(
          each.encode_passages(TEXTS, name), passages, atol=1e-5
      )


def test_a_run_keeps_its_prompts_and_prefixes(tmp_path):
  flags = [
      *tiny_run.flags(tmp_path), f'--gin.PROMPTS={PROMPTS}', '--gin.STEPS=1',
      '--gin.QUERY_PREFIX=query: ', '--gin.PASSAGE_PREFIX=passage: ',
      f'--model_dir={tmp_path / "model"}',
  ]
  train.main(flags)
  tokenizer = Retriever.from_dir(tmp_path / 'model').towers.tokenizer
  assert tokenizer.prompts == PROMPTS
  assert tokenizer.prefixes == {
      'query_prefix': 'query: ', 'passage_prefix': 'passage: '
  }
  for name, text in ('QUERY_PREFIX', ''), ('PASSAGE_PREFIX', 'passage:'):
    with pytest.raises(
        UserError, match=rf"{name}: '\w+: ' -> '{text}'.*allow_config_change"
    ):
      train.main([*flags, f'--gin.{name}={text}'])
