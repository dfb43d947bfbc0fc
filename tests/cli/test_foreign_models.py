"""Models of sentence-transformers in commands, against the library alone."""

import json
import pathlib
import shutil
import string

from hugging_face_models import change
import numpy as np
import pytest
import pytrec_eval
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
import tiny_beir
import tiny_evaluation
import tiny_run
import torch
import transformers

from dualenc_jax.checkpoints import foreign_models, verification
from dualenc_jax.cli import (
  analyze,
  encode,
  evaluate,
  label,
  mine,
  recipe,
  rerank,
  search,
)
from dualenc_jax.pipelines.recipes import runner
from dualenc_jax.retrieval.index import Index
from dualenc_jax.utils.errors import UserError

pytestmark = pytest.mark.slow
WIDTH, LENGTH = 16, 400
TITLE = 'a title'


class Models:
  """A set with titles and a long passage, and random models for it."""

  def __init__(self, folder):
    self.folder = folder
    made = tiny_beir.make(3, passages=20, queries=12)
    # Longer than the passages of our own models; its end decides.
    long = ' '.join([*'ab' * 150, *tiny_run.WORDS])
    self.made = made._replace(corpus={**made.corpus, 'd3': long})
    self.made.write(folder / 'beir')
    rows = [
        {'_id': name, 'title': TITLE, 'text': text}
        for name, text in self.made.corpus.items()
    ]
    lines = ''.join(json.dumps(row) + '\n' for row in rows)
    (folder / 'beir' / 'corpus.jsonl').write_text(lines)
    letters = string.ascii_lowercase
    pieces = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', ':', *letters]
    pieces += [f'##{letter}' for letter in letters]
    (folder / 'vocab.txt').write_text('\n'.join(pieces))
    self.bert = self._save('bert', 'BertModel', len(pieces))
    self.scorer = self._save('scorer', 'BertForSequenceClassification', 58, 1)
    self.classes = self._save('classes', 'BertForSequenceClassification', 58, 3)
    self.cosine = self.save_towers('cosine')
    self.dot = self.save_towers('dot', similarity_fn_name='dot')

  def _save(self, name, kind, size, labels=2):
    torch.manual_seed(0)
    model = getattr(transformers, kind)(transformers.BertConfig(
        vocab_size=size, hidden_size=WIDTH, num_hidden_layers=1,
        num_attention_heads=2, intermediate_size=32, num_labels=labels,
        max_position_embeddings=LENGTH,
    ))
    with torch.no_grad():
      for weight in model.parameters():
        weight += 0.3 * torch.randn_like(weight)
    tokenizer = transformers.BertTokenizer(str(self.folder / 'vocab.txt'))
    for saved in (model, tokenizer):
      saved.save_pretrained(self.folder / name)
    return self.folder / name

  def save_towers(self, name, **options):
    prompts = {'query': 'ask: ', 'document': '', 'facts': 'find: '}
    SentenceTransformer(
        modules=[
            Transformer(str(self.bert), max_seq_length=LENGTH),
            Pooling(WIDTH, pooling_mode='mean'),
        ],
        device='cpu', prompts=prompts, **options,
    ).save_pretrained(str(self.folder / name))
    return self.folder / name

  def texts(self):
    return [f'{TITLE} {text}' for text in self.made.corpus.values()]

  def flags(self, model, output, *more):
    return [
        f'--model_dir=st:{model}', '--tasks=beir',
        f'--gin.BEIR_FOLDER={self.folder / "beir"}', f'--output_dir={output}',
        *more,
    ]


@pytest.fixture(scope='module')
def models(tmp_path_factory):
  return Models(tmp_path_factory.mktemp('foreign'))


def read(folder):
  """Hard negatives by query id."""
  lines = (folder / 'hard-negatives.jsonl').read_text().splitlines()
  return {row['qid']: row['neg'] for row in map(json.loads, lines)}


def vectors(model, *texts, **options):
  """Those of the library for queries and documents, of length one."""
  opened = SentenceTransformer(str(model), device='cpu')
  encoders = opened.encode_query, opened.encode_document
  found = [f(each, **options) for f, each in zip(encoders, texts)]
  return [v / np.linalg.norm(v, axis=1, keepdims=True) for v in found]


def test_evaluation(models, tmp_path):
  queries, passages = vectors(
      models.cosine, [*models.made.queries.values()], models.texts()
  )
  wanted = {
      query: dict(zip(models.made.corpus, scores.tolist()))
      for query, scores in zip(models.made.queries, queries @ passages.T)
  }
  # The mean of all tokens is nearly that of any other text.
  spread = [max(own.values()) - min(own.values()) for own in wanted.values()]
  assert min(spread) > 0.01
  out = tmp_path / 'out'
  evaluate.main(models.flags(models.cosine, out, '--no_baselines'))
  found = tiny_evaluation.run_of(out)
  for query, own in wanted.items():
    assert dict(found[query]) == pytest.approx(own, abs=1e-6)
  result = tiny_evaluation.result_of(out)
  qrels = {
      q: {p: g for p, g in own.items() if g >= 0}
      for q, own in models.made.qrels.items()
  }
  judge = pytrec_eval.RelevanceEvaluator(qrels, {'ndcg_cut.10', 'recip_rank'})
  measured = judge.evaluate(
      {q: {p: float(np.float32(s)) for p, s in own} for q, own in found.items()}
  )
  for name, theirs in (('nDCG@10', 'ndcg_cut_10'), ('MRR', 'recip_rank')):
    mean = np.mean([own[theirs] for own in measured.values()])
    assert result['metrics'][name] == pytest.approx(mean, abs=1e-6)
  opened = SentenceTransformer(str(models.cosine), device='cpu')
  sizes = [weight.numel() for weight in opened.parameters()]
  assert result['parameters'] == sum(sizes)
  assert result['query_prefix'] == 'ask: ' and result['similarity'] == 'cosine'


def test_analysis(models, tmp_path, monkeypatch):
  found, figures = [], analyze.figures
  monkeypatch.setattr(figures, 'write', lambda all, *_: found.extend(all))
  flags = models.flags(models.cosine, tmp_path, '--split=test', '--sample=10')
  analyze.main(flags)
  assert 'test; cosine; seed 0.' in figures._describe_source(found)
  queries, passages = vectors(
      models.cosine, [*models.made.queries.values()], models.texts()
  )
  best = np.median((queries @ passages.T).max(axis=1))
  top = found[0].numbers['median_top1_cosine']
  assert top == pytest.approx(best, abs=1e-6)


def test_recipes_take_them(models, tmp_path, capsys):
  corpus, out = models.folder / 'beir', tmp_path / 'out'
  source = tmp_path / 'source'
  source.mkdir()
  for name in ('config.gin', 'vocabulary.model'):
    (source / name).touch()
  given = [
      '--gin_file=recipes/gpl.gin', f'--output_dir={out}', '--list',
      f'--gin.CORPUS={corpus}', f'--gin.CORPUS_FILE={corpus / "corpus.jsonl"}',
      f'--replace=source={source}',
      f'--replace=queries={corpus}', '--until=labels',
      f"--gin.MINERS=['st:{models.cosine}']",
  ]
  recipe.main([*given, f'--replace=teacher=st:{models.scorer}'])
  said = capsys.readouterr().out
  assert f' --model_dir=st:{models.cosine} ' in said
  assert f' --teacher=st:{models.scorer} ' in said
  with pytest.raises(UserError, match='st:absent, in place of teacher.model'):
    recipe.main([*given, '--replace=teacher=st:absent'])
  # A stage runs again if the model changes.
  path = pathlib.Path(f'st:{models.scorer}')
  assert runner.content(path) == runner.content(models.scorer)


def test_index_and_search(models, tmp_path, capsys, monkeypatch):
  corpus, folder = models.folder / 'beir', tmp_path / 'index'
  asked = [f'--model_dir=st:{models.dot}', f'--index_dir={folder}']
  shards = [*asked, f'--corpus={corpus}', '--shard_size=8']
  embed = foreign_models.TextTowers.batches
  seen = []

  def batches(self, method, params, tokens, rows=None):
    seen.append(len(rows))
    if len(seen) == 3:
      raise KeyboardInterrupt
    return embed(self, method, params, tokens, rows)

  monkeypatch.setattr(foreign_models.TextTowers, 'batches', batches)
  with pytest.raises(KeyboardInterrupt):
    encode.main(shards)
  # The shards before are kept.
  encode.main(shards)
  assert seen == [8, 8, 4, 4]
  monkeypatch.undo()
  index = Index.open(folder)
  opened = SentenceTransformer(str(models.dot), device='cpu')
  wanted = opened.encode_document(models.texts())
  np.testing.assert_allclose(np.asarray(index.embeddings), wanted, atol=1e-6)
  assert not index.header.normalised and [*index.ids] == [*models.made.corpus]
  capsys.readouterr()
  search.main([*asked, '--k=3', '--format=json', 'find xml'])
  hits = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
  scores = opened.encode_query(['find xml'])[0] @ wanted.T
  top = sorted(scores.tolist(), reverse=True)[:3]
  assert [hit['score'] for hit in hits] == pytest.approx(top, rel=1e-5)
  # Another model, and another prompt of passages.
  asked[0] = f'--model_dir=st:{models.cosine}'
  with pytest.raises(UserError, match='by another passage tower'):
    search.main([*asked, 'find xml'])
  with pytest.raises(UserError, match="passage_prefix is '', expected 'find:"):
    search.main([
        f'--model_dir=st:{models.dot}', asked[1], '--passage_prompt=facts', 'a'
    ])


def test_dim_and_prompts(models, tmp_path):
  out = tmp_path / 'out'
  evaluate.main(models.flags(
      models.cosine, out, '--no_baselines', '--dim=6', '--prompt=facts'
  ))
  queries = [f'find: {text}' for text in models.made.queries.values()]
  opened = SentenceTransformer(str(models.cosine), device='cpu')
  both = [opened.encode(texts)[:, :6] for texts in (queries, models.texts())]
  a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in both)
  found = tiny_evaluation.run_of(out)
  for query, scores in zip(models.made.queries, a @ b.T):
    own = dict(zip(models.made.corpus, scores.tolist()))
    assert dict(found[query]) == pytest.approx(own, abs=1e-6)


def test_mining_and_labels_of_pairs(models, tmp_path, monkeypatch):
  """Logits of the classifier itself, through transformers alone."""
  tokenizer = transformers.AutoTokenizer.from_pretrained(models.scorer)
  classifier = transformers.AutoModelForSequenceClassification.from_pretrained(
      models.scorer
  ).eval()

  def logit(query, passage):
    texts = models.made.queries[query], f'{TITLE} {models.made.corpus[passage]}'
    tokens = tokenizer(
        *texts, truncation=True, max_length=LENGTH, return_tensors='pt'
    )
    with torch.no_grad():
      return classifier(**tokens).logits.item()

  sources = ['--bm25', '--split=test', '--depth=9']
  teacher = f'--teacher=st:{models.scorer}'
  out = tmp_path / 'mined'
  mine.main(models.flags(models.cosine, out, *sources, teacher))
  names, checked = set(), 0
  for query, negatives in read(out).items():
    for name, entries in negatives.items():
      names.add(name)
      for entry in entries:
        wanted = logit(query, entry['pid'])
        assert entry['ce-score'] == pytest.approx(wanted, abs=1e-5)
        checked += 1
  assert names == {'model', 'bm25'} and checked > 20
  # Both forms that the library has written: with its own files and without.
  other = tmp_path / 'saved'
  CrossEncoder(str(models.scorer), device='cpu').save_pretrained(str(other))
  assert (other / 'modules.json').exists()
  out = tmp_path / 'labels'
  asked = models.flags(models.cosine, out, *sources, f'--teacher=st:{other}')
  with pytest.raises(UserError, match='has no calibration.*1,0 if the scores'):
    label.main(asked)
  thresholds = ['--calibration=1,0', '--above=0.6', '--below=0.5']
  label.main([*asked, *thresholds])
  lines = (out / 'scores.tsv').read_text().splitlines()
  for query, passage, score in (line.split('\t') for line in lines):
    assert float(score) == pytest.approx(logit(query, passage), abs=1e-5)
  # Kept scores are those of this folder alone.
  change(other, **{'architectures': ['BertForSequenceClassification', '']})
  with pytest.raises(UserError, match='another teacher or data set, by run_id'):
    label.main([*asked, *thresholds])


def test_beside_our_own_model(models, tmp_path):
  """Each reads the texts in its own tokens, whichever comes first."""
  own = tiny_evaluation.shared_model()
  found = []
  for order in ((f'st:{models.cosine}', own), (own, f'st:{models.cosine}')):
    out = tmp_path / str(len(found))
    _, *flags = models.flags(models.cosine, out, '--split=test', '--depth=5')
    mine.main([*(f'--model_dir={each}' for each in order), *flags])
    found.append(read(out))
  assert {*found[0]['q0']} == {'cosine', 'model'}
  # All that either has found is taken, by one source or the other.
  for query in found[0]:
    taken = [sum(each[query].values(), []) for each in found]
    assert {*taken[0]} == {*taken[1]}


@pytest.mark.parametrize(
    'command, flags, message',
    [
        (evaluate, ['--model_dir=st:{cosine}', '--output_dir=x'],
         'no task of its own. Give --tasks'),
        (analyze, ['--model_dir=st:{cosine}'], 'else --output_dir'),
        (evaluate, ['--model_dir=st:{cosine}'],
         'place for indexes and results: give --index_dir to .* --output'),
        (search, ['--model_dir=st:{cosine}', 'a'], 'give --index_dir to'),
        (encode, ['--model_dir=st:{cosine}', '--index_dir=x'],
         'has no task of its own'),
        (search, ['--model_dir=st:{cosine}', '--step=3', 'a'],
         '--step: st:.* has no checkpoints'),
        (search, ['--model_dir=st:{cosine}', '--dim=17', 'a'],
         '--dim is 17, but .* has 16 components'),
        (search, ['--model_dir=st:{cosine}', '--prompt=fact', 'a'],
         "no prompt 'fact'. Did you mean 'facts'"),
        (search, ['--model_dir=st:{folder}/absent', 'a'], 'absent does not'),
        (search, ['--model_dir=st:{bert}', 'a'], 'has no modules.json. Expe'),
        (search, ['--model_dir=st:{scorer}', 'a'],
         'is a CrossEncoder; expected a Sent.*dualenc rerank --teacher=st'),
        (search, ['--model_dir=st:{far}', 'a'],
         "similarity_fn_name is 'euclidean'; expected 'cosine' or 'dot'"),
        (search, ['--model_dir=st:{empty}', 'a'],
         'sentence-transformers cannot read .*in safetensors'),
    ],
)
def test_models_and_flags_that_do_not_fit(
    models, tmp_path, monkeypatch, command, flags, message
):
  monkeypatch.chdir(tmp_path)
  far, empty = tmp_path / 'far', tmp_path / 'empty'
  shutil.copytree(models.cosine, far)
  settings = far / 'config_sentence_transformers.json'
  content = json.loads(settings.read_text())
  content['similarity_fn_name'] = 'euclidean'
  settings.write_text(json.dumps(content))
  shutil.copytree(models.cosine, empty)
  (empty / 'model.safetensors').unlink()
  places = {**vars(models), 'far': far, 'empty': empty}
  with pytest.raises(UserError, match=message):
    command.main([flag.format(**places) for flag in flags])


@pytest.mark.parametrize(
    'teacher, more, message',
    [
        ('cosine', [], 'is a SentenceTransformer; expected a Cr.*give --mod'),
        ('bert', [], 'it has no modules.json'),
        ('classes', [], 'num_labels is 3; expected 1, a score of relevance'),
        ('scorer', ['--teacher_length=9'], 'Leave out --teacher_length'),
        ('scorer', ['--prompt=facts'], 'Leave out --prompt and --passage_prom'),
    ],
)
def test_teachers_that_do_not_fit(models, tmp_path, teacher, more, message):
  flags = models.flags(models.cosine, tmp_path / 'out')[1:]
  path = getattr(models, teacher)
  with pytest.raises(UserError, match=message):
    rerank.main([f'--teacher=st:{path}', '--run=none.trec', *flags, *more])


def test_the_library_absent(models, tmp_path, monkeypatch):
  monkeypatch.setattr(verification, 'missing', lambda names: ['torch'])
  with pytest.raises(UserError, match=r"torch cannot be .*dualenc-jax\[conv"):
    evaluate.main(models.flags(models.cosine, tmp_path / 'out'))


def test_vectors_that_are_not_numbers(models, tmp_path):
  broken = tmp_path / 'broken'
  shutil.copytree(models.cosine, broken)
  weights = {'embeddings.LayerNorm.bias': torch.full((WIDTH,), torch.nan)}
  change(broken, weights)
  with pytest.raises(UserError, match='query embeddings of .*NaN, infin'):
    evaluate.main(models.flags(broken, tmp_path / 'out'))
  assert not (tmp_path / 'out' / 'run.trec').exists()
