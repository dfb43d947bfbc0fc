"""Folders as sentence-transformers and transformers write them, without us."""

import inspect
import json
import textwrap

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import (
  Dense,
  Normalize,
  Router,
  Transformer,
)
from sentence_transformers.sentence_transformer.modules import Pooling
import small_vocabulary
import torch
import transformers

TEXTS = [
    'How do I wrap a paragraph of text?',
    'dedent',
    *(inspect.getdoc(f) for f in (textwrap.wrap, textwrap.dedent)),
    inspect.getsource(textwrap.shorten),
]
LENGTH = 40
WIDTH, DIM = 16, 12
PIECES = small_vocabulary.SIZE


def save_t5(folder, vocabulary, feed_forward='relu', depth=1, seed=0):
  """A random T5EncoderModel with its tokenizer, saved by transformers."""
  folder.mkdir(parents=True)
  config = transformers.T5Config(
      vocab_size=PIECES, d_model=WIDTH, num_layers=depth, num_heads=2, d_kv=8,
      d_ff=32, feed_forward_proj=feed_forward,
  )
  config.save_pretrained(folder)
  (folder / 'spiece.model').write_bytes(vocabulary.read_bytes())
  tokenizer = transformers.T5Tokenizer.from_pretrained(folder, extra_ids=0)
  tokenizer.save_pretrained(folder)
  torch.manual_seed(seed)
  model = transformers.T5EncoderModel(config)
  with torch.no_grad():
    for name, weight in model.named_parameters():
      if 'layer_norm' in name:
        weight += 0.1 * torch.randn_like(weight)
      elif 'shared' in name:
        weight.copy_(torch.randn_like(weight))
  model.save_pretrained(folder)
  return folder


def dense(seed=0, **options):
  torch.manual_seed(seed)
  settings = {'bias': False, 'activation_function': torch.nn.Identity()}
  return Dense(WIDTH, DIM, **(settings | options))


def transformer(folder, **options):
  return Transformer(str(folder), max_seq_length=LENGTH, **options)


def modules(folder, seed=0):
  return [
      transformer(folder),
      Pooling(WIDTH, pooling_mode='mean'),
      dense(seed),
      Normalize(),
  ]


def save(model_modules, folder, **options):
  """Saves a model of modules as the installed version does."""
  model = SentenceTransformer(modules=model_modules, device='cpu', **options)
  model.save_pretrained(str(folder))
  return folder


def router(query, document):
  return Router.for_query_document(query, document)


def open_model(folder):
  """In single precision, whatever the files have."""
  options = {'local_files_only': True, 'model_kwargs': {'dtype': torch.float32}}
  return SentenceTransformer(str(folder), device='cpu', **options)


def encode(folder, texts=TEXTS):
  """Vectors of the library for texts as queries and as documents."""
  model = open_model(folder)
  return [
      function(list(texts), show_progress_bar=False)
      for function in (model.encode_query, model.encode_document)
  ]


def edit(file, **changes):
  """Changes settings of a JSON file; a setting of ... is removed."""
  settings = json.loads(file.read_text()) if file.exists() else {}
  settings = {
      name: value for name, value in (settings | changes).items()
      if value is not ...
  }
  file.write_text(json.dumps(settings))


def as_published(folder, vocabulary):
  """Gives a folder the form of GTR's and Sentence-T5's, of version 2.2."""
  kinds = ('Transformer', 'Pooling', 'Dense', 'Normalize')
  paths = ('', '1_Pooling', '2_Dense', '3_Normalize')
  entries = [
      {'idx': i, 'name': str(i), 'path': path,
       'type': f'sentence_transformers.models.{kind}'}
      for i, (path, kind) in enumerate(zip(paths, kinds))
  ]
  versions = {
      'sentence_transformers': '2.2.0', 'transformers': '4.7.0',
      'pytorch': '1.9.0+cu102',
  }
  modes = 'cls_token', 'max_tokens', 'mean_sqrt_len_tokens'
  for name, content in {
      'modules.json': entries,
      'sentence_bert_config.json': {
          'max_seq_length': LENGTH, 'do_lower_case': False
      },
      'config_sentence_transformers.json': {'__version__': versions},
      '1_Pooling/config.json': {
          'word_embedding_dimension': WIDTH,
          'pooling_mode_mean_tokens': True,
          **{f'pooling_mode_{mode}': False for mode in modes},
      },
      '2_Dense/config.json': {
          'in_features': WIDTH, 'out_features': DIM, 'bias': False,
          'activation_function': 'torch.nn.modules.linear.Identity',
      },
  }.items():
    (folder / name).write_text(json.dumps(content))
  # Git keeps no empty folder.
  (folder / '3_Normalize' / 'config.json').unlink()
  (folder / '3_Normalize').rmdir()
  (folder / 'spiece.model').write_bytes(vocabulary.read_bytes())
  return folder
