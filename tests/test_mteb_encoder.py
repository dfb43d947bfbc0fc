"""mteb's own evaluation of our towers, on local data, beside ours."""

import dataclasses
import json
import random

import numpy as np
import pytest
import tiny_beir
import tiny_evaluation
import tiny_run
import tiny_towers

from dualenc_jax.retriever import Retriever
from dualenc_jax.utils.errors import UserError

pytestmark = pytest.mark.slow

TEXTS = tiny_towers.TEXTS


@pytest.fixture(scope='module', autouse=True)
def import_mteb():
  """In the one worker that runs these tests: it takes some 300 MB."""
  global datasets, MtebEncoder, mteb, torch
  with pytest.MonkeyPatch.context() as patch:
    # Nothing is fetched, nothing is kept.
    patch.setenv('HF_HUB_OFFLINE', '1')
    patch.setenv('HF_DATASETS_OFFLINE', '1')
    import datasets
    import mteb
    import mteb.abstasks.task_metadata
    import mteb.models.models_protocols
    import mteb.types
    import torch.utils.data

    from dualenc_jax.mteb_encoder import MtebEncoder
    yield


@pytest.fixture(autouse=True)
def no_network(monkeypatch, tmp_path):
  """Any connection is an error; what is cached goes to tmp_path."""

  def connect(*args):
    raise AssertionError(f'mteb connects to {args[1:]}')

  monkeypatch.setattr('socket.socket.connect', connect)
  monkeypatch.setenv('MTEB_CACHE', str(tmp_path / 'mteb'))
  monkeypatch.setattr(
      datasets.config, 'HF_DATASETS_CACHE', tmp_path / 'datasets'
  )


@pytest.fixture(scope='module')
def retriever() -> Retriever:
  towers = tiny_towers.loaded(apart=True, prefixes=('find: ', 'code: '))
  return Retriever(towers)


def make_metadata(kind, main_score):
  return mteb.abstasks.task_metadata.TaskMetadata(
      name=f'Tiny{kind}', description='words', type=kind, category='t2t',
      dataset={'path': 'nobody/nothing', 'revision': '1'},
      eval_splits=['test'], eval_langs=['eng-Latn'], main_score=main_score,
  )


def make_task(tiny):
  """A task of mteb: words to find words by."""

  class TinyRetrieval(mteb.abstasks.AbsTaskRetrieval):
    metadata = make_metadata('Retrieval', 'ndcg_at_10')

    def load_data(self, **kwargs):
      # The first two words of a passage are its title.
      corpus = {
          name: dict(zip(('title', 'text'), (text[:9], text[10:])))
          for name, text in tiny.corpus.items()
      }
      self.corpus = {'test': corpus}
      self.queries = {'test': dict(tiny.queries)}
      self.relevant_docs = {
          'test': {q: dict(grades) for q, grades in tiny.qrels.items()}
      }
      self.data_loaded = True

  return TinyRetrieval()


def make_set() -> tiny_beir.TinySet:
  """Different passages of five words, the first two of four letters each."""
  rng = random.Random(3)
  short = [word for word in tiny_run.WORDS if len(word) == 4]
  texts = {
      ' '.join([*rng.sample(short, 2), *rng.sample(tiny_run.WORDS, 3)])
      for _ in range(130)
  }
  corpus = {f'd{i}': text for i, text in enumerate(sorted(texts))}
  queries = {
      f'q{i}': ' '.join(rng.sample(tiny_run.WORDS, 3)) for i in range(20)
  }
  qrels = {
      query: {
          name: 2 - (text.split()[0] in words)
          for name, text in corpus.items()
          if len(set(text.split()) & set(words.split())) > 1
      }
      | {rng.choice(sorted(corpus)): 1}
      for query, words in queries.items()
  }
  return tiny_beir.TinySet(corpus, queries, qrels)


def test_retrieval_scores_are_those_of_our_own_evaluation(tmp_path):
  tiny = make_set().write(tmp_path / 'data/beir/scifact')
  model = tiny_evaluation.link_model(tmp_path)
  output = tiny_evaluation.run(model, tmp_path / 'results')
  ours = json.loads((output / 'metrics.json').read_text())
  encoder = MtebEncoder(Retriever.from_dir(model), 'test/tiny')
  result = mteb.evaluate(
      encoder, make_task(tiny), cache=None, co2_tracker=False,
      show_progress_bar=False,
  )
  theirs = result.task_results[0].scores['test'][0]
  found = ours['metrics']
  assert 0.05 < found['nDCG@10'] < 0.95
  for mine, name in (
      ('nDCG@10', 'ndcg_at_10'), ('Recall@100', 'recall_at_100')
  ):
    np.testing.assert_allclose(found[mine], theirs[name], atol=1e-5)


def encoded(encoder, prompt_type, inputs):
  return encoder.encode(
      inputs, task_metadata=make_metadata('STS', 'cosine_spearman'),
      hf_split='test', hf_subset='default', prompt_type=prompt_type,
      batch_size=3,
  )


@pytest.mark.parametrize(
    'prompt_type, tower, prompt',
    [
        ('query', 'query', 'query'),
        ('document', 'passage', None),
        (None, 'passage', 'sts'),
    ],
)
def test_towers_and_prompts_of_tasks(retriever, prompt_type, tower, prompt):
  """mteb's own choice of a name, which is not put in front of documents."""
  if prompt_type is not None:
    prompt_type = mteb.types.PromptType[prompt_type]
  encoder = MtebEncoder(retriever, 'test/tiny')
  protocol = mteb.models.models_protocols.EncoderProtocol
  assert isinstance(encoder, protocol)
  rows = datasets.Dataset.from_dict({'text': TEXTS})
  loader = torch.utils.data.DataLoader(rows, batch_size=3)
  found = encoded(encoder, prompt_type, loader)
  expected = tiny_towers.embed(retriever.towers, tower, TEXTS)
  np.testing.assert_allclose(found, expected, atol=1e-6)
  np.testing.assert_allclose(
      encoder.similarity(found, found), expected @ expected.T, atol=1e-5
  )
  np.testing.assert_allclose(
      encoder.similarity_pairwise(found, found[::-1].copy()),
      np.sum(expected * expected[::-1], axis=1), atol=1e-5,
  )
  texts = {'query': 'ask: ', 'sts': 'compare: '}

  def with_tokenizer(**fields):
    tokenizer = dataclasses.replace(retriever.towers.tokenizer, **fields)
    return dataclasses.replace(retriever.towers, tokenizer=tokenizer)

  prompts = {'TinySTS-query': texts['query'], 'STS': texts['sts']}
  encoder = MtebEncoder(Retriever(with_tokenizer(prompts=prompts)), 'test/tiny')
  found = encoded(encoder, prompt_type, [{'text': list(TEXTS)}])
  prefix = {f'{tower}_prefix': texts[prompt]} if prompt else {}
  expected = tiny_towers.embed(with_tokenizer(**prefix), tower, TEXTS)
  np.testing.assert_allclose(found, expected, atol=1e-6)


def test_what_it_says_of_itself(retriever):
  meta = MtebEncoder(retriever, 'my-lab/tiny', revision='7').mteb_model_meta
  assert (meta.name, meta.revision) == ('my-lab/tiny', '7')
  assert (meta.embed_dim, meta.max_tokens) == (tiny_towers.DIM, 40)
  with pytest.raises(UserError, match='TinySTS has inputs of image'):
    encoded(MtebEncoder(retriever, 'test/tiny'), None, [{'image': [0]}])
