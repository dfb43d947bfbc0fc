"""Writes towers as a folder that sentence-transformers opens."""

from collections.abc import Mapping
import dataclasses
import json
import pathlib
from typing import Any

from dualenc_jax.checkpoints import (
  hugging_face,
  hugging_face_gemma,
  sentence_transformers as modules,
  static_embedding,
  transforms,
)
from dualenc_jax.checkpoints.weights import PROJECTION, Usage, Weights
from dualenc_jax.utils import files, table
from dualenc_jax.utils.tensor_files import safetensors_file
from dualenc_jax.utils.tensor_files.tensors import Tensor

# All versions of the library know its modules by these names.
_PACKAGE = 'sentence_transformers.models'

_CARD = """---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
tags:
- sentence-transformers
- sentence-similarity
- feature-extraction
---

# Dual encoder

Embeds queries and passages as vectors of {dim} numbers and norm one; their
inner product is their cosine. Written by dualenc_jax from a {kind}.

```python
from sentence_transformers import SentenceTransformer
model = SentenceTransformer('path/to/this/folder')
scores = model.encode_query(queries) @ model.encode_document(passages).T
```

| | queries | passages |
|---|---|---|
| maximum tokens | {query_length} | {passage_length} |
| prompt | {query_prompt} | {passage_prompt} |
| layers of the encoder | {query_layers} | {passage_layers} |
"""


def write(weights: Weights, folder: pathlib.Path) -> list[str]:
  """Writes a new folder whose `encode_query` and `encode_document` are ours.

  Towers that differ are two routes of a Router. Weights are written one tensor
  at a time. Returns notes for the user, a sentence or two each.
  """
  files.make_folder(folder)
  if not weights.encoder.num_layers:
    return _write_static(weights, folder)
  if weights.is_shared:
    kinds = _kinds(weights)
    names = ['', *(f'{i}_{kind}' for i, kind in enumerate(kinds) if i)]
    _write_tower(weights, folder, names)
    _write_modules(folder, dict(zip(names, kinds)))
  else:
    _write_router(weights, folder)
  notes = _make_notes(weights)
  files.write_json(folder / modules.CONFIG, _make_config(weights.usage))
  files.write(folder / 'README.md', _model_card(weights, notes))
  return notes


def _write_static(weights: Weights, folder: pathlib.Path) -> list[str]:
  notes = static_embedding.write(weights, folder)
  _write_modules(folder, {'': 'StaticEmbedding', '1_Normalize': 'Normalize'})
  files.make_folder(folder / '1_Normalize')
  files.write_json(folder / modules.CONFIG, _make_config(weights.usage))
  files.write(folder / 'README.md', _model_card(weights, notes))
  return notes


def _write_router(weights: Weights, folder: pathlib.Path) -> None:
  structure: dict[str, list[str]] = {}
  types: dict[str, str] = {}
  for route, tower in zip(
      ('query', 'document'), transforms.split_towers(weights)
  ):
    kinds = _kinds(tower)
    names = [f'{route}_{i}_{kind}' for i, kind in enumerate(kinds)]
    _write_tower(tower, folder, names)
    structure[route] = names
    types |= {n: f'{_PACKAGE}.{kind}' for n, kind in zip(names, kinds)}
  _write_modules(folder, {'': 'Router'})
  parameters = {'default_route': 'document', 'allow_empty_key': True}
  router = {'types': types, 'structure': structure, 'parameters': parameters}
  files.write_json(folder / modules.ROUTER_CONFIG, router)


def _kinds(tower: Weights) -> list[str]:
  """The kinds of a tower's modules: a Dense for each map of a chain."""
  first, pooling, dense, last = modules.KINDS
  return [first, pooling, *[dense] * len(_maps(tower)), last]


def _maps(tower: Weights) -> list[Tensor]:
  """The maps that are a Dense: none where the encoder's files have it."""
  inside = hugging_face_gemma.holds_projection(tower.encoder)
  return [] if inside else tower.projections()


def _write_tower(
    tower: Weights, folder: pathlib.Path, names: list[str]
) -> None:
  """Writes the modules of a tower into their folders."""
  transformer, pooling, *maps, normalize = (folder / name for name in names)
  for module in (transformer, pooling, *maps, normalize):
    files.make_folder(module)
  kernels = _maps(tower)
  rest = {n: t for n, t in tower.tensors.items() if t not in kernels}
  last = tower.tensors[PROJECTION]
  hugging_face.write(dataclasses.replace(tower, tensors=rest), transformer)
  files.write_json(
      transformer / modules.TRANSFORMER_CONFIG, _length_settings(tower.usage)
  )
  files.write_json(pooling / 'config.json', {
      # After the projection if it is inside of the encoder.
      'word_embedding_dimension':
          kernels[0].shape[0] if kernels else last.shape[1],
      'pooling_mode': 'mean',
      'include_prompt': True,
  })
  for dense, kernel in zip(maps, kernels):
    files.write_json(dense / 'config.json', {
        'in_features': kernel.shape[0],
        'out_features': kernel.shape[1],
        'bias': False,
        'activation_function': modules.IDENTITY,
    })
    hugging_face.write_tensors(
        dense / safetensors_file.FILE,
        {hugging_face.LINEAR: kernel.transposed()},
    )


def _write_modules(folder: pathlib.Path, kinds: Mapping[str, str]) -> None:
  entries = [
      {'idx': i, 'name': str(i), 'path': name, 'type': f'{_PACKAGE}.{kind}'}
      for i, (name, kind) in enumerate(kinds.items())
  ]
  files.write_json(folder / modules.MODULES, entries)


def _length_settings(usage: Usage) -> dict[str, Any]:
  """Settings of a Transformer: one length, or one of each side.

  The library knows the latter since its version 6.0.
  """
  sides = {
      'query_length': usage.query_length,
      'document_length': usage.passage_length,
  }
  longest = max(filter(None, sides.values()), default=None)
  own = {name: n for name, n in sides.items() if n and n != longest}
  return {'max_seq_length': longest, 'do_lower_case': False, **own}


def _make_config(usage: Usage) -> dict[str, Any]:
  default = usage.default_prompt
  if default is None:
    default = modules.implied_default(usage.query_prefix, usage.passage_prefix)
  return {
      'model_type': 'SentenceTransformer',
      'prompts': {
          'query': usage.query_prefix, 'document': usage.passage_prefix,
          **usage.prompts,
      },
      # For `encode`, which knows no side.
      'default_prompt_name': default or None,
      'similarity_fn_name': 'cosine',
  }


def _make_notes(weights: Weights) -> list[str]:
  notes, usage = [], weights.usage
  if not weights.is_shared:
    notes.append(
        'Queries and passages have their own towers; `encode` takes that of'
        ' passages. sentence-transformers 5.0 or later is needed.'
    )
  lengths = {usage.query_length, usage.passage_length}
  if weights.is_shared and len(lengths) == 2:
    notes.append(
        f'Queries are cut at {usage.query_length} tokens, and passages at'
        f' {usage.passage_length}; sentence-transformers 6.0 or later is'
        ' needed. For older ones remove query_length and document_length from'
        f' {modules.TRANSFORMER_CONFIG}: both are then cut at the longer one.'
    )
  if dims := weights.trained_dims:
    notes.append(
        f'It was trained for the dims {", ".join(map(str, dims))}:'
        ' SentenceTransformer(folder, truncate_dim=...) takes any of them;'
        ' compare by cosine then.'
    )
  return notes


def _model_card(weights: Weights, notes: list[str]) -> str:
  usage = weights.usage
  passage_encoder = weights.passage_encoder or weights.encoder
  card = _CARD.format(
      kind=weights.kind,
      dim=weights.tensors[PROJECTION].shape[1],
      query_length=usage.query_length,
      passage_length=usage.passage_length,
      query_prompt=_quote(usage.query_prefix),
      passage_prompt=_quote(usage.passage_prefix),
      query_layers=weights.encoder.num_layers,
      passage_layers=passage_encoder.num_layers,
  )
  return card + ''.join(f'\n{note}\n' for note in notes)


def _quote(prompt: str) -> str:
  """A prompt as JSON, which shows its spaces, for a cell of a table."""
  return table.escape_markdown(json.dumps(prompt, ensure_ascii=False))
