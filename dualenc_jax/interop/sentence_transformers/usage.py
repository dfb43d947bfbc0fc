"""Prompts and lengths: how a folder wants its texts."""

from collections.abc import Mapping, Sequence
import pathlib
from typing import Any

from dualenc_jax.errors import UserError
from dualenc_jax.interop.sentence_transformers.modules import (
  check_settings,
  Module,
)
from dualenc_jax.io import json_file

CONFIG = 'config_sentence_transformers.json'
TRANSFORMER_CONFIG = 'sentence_bert_config.json'
# Names of prompts, those that the library itself asks for first.
QUERY_PROMPTS = ('query',)
PASSAGE_PROMPTS = ('document', 'passage', 'corpus')
_TRANSFORMER_SETTINGS = {
    'max_seq_length': None,
    'query_length': None,
    'document_length': None,
    'do_lower_case': (False,),
    'transformer_task': ('feature-extraction',),
    'module_output_name': ('token_embeddings',),
    'processing_kwargs': (None, {}),
    'query_expansion': (None,),
    'modality_config': None,
    'unpad_inputs': None,
    'backend': None,
    **{
        f'{what}_{kind}': None
        for what in ('model', 'tokenizer', 'processor', 'config')
        for kind in ('args', 'kwargs')
    },
}


def read_length(transformer: Module, task: str) -> int | None:
  """Most tokens of a text, EOS included; None where its file says none.

  Versions of the library since 5.4 leave it to the tokenizer's own file.

  Args:
    transformer: the module that tokenises.
    task: 'query' or 'document'.

  Raises:
    UserError: it prepares texts in a way that is not known here.
  """
  file = transformer.folder / TRANSFORMER_CONFIG
  settings = check_settings(file, 'Transformer', _TRANSFORMER_SETTINGS)
  lengths = (
      settings.get(f'{task}_length'),
      *(
          (settings.get(name) or {}).get('model_max_length')
          for name in ('processor_kwargs', 'tokenizer_args')
      ),
      settings.get('max_seq_length'),
  )
  return next(filter(None, lengths), None)


def read_prompts(path: pathlib.Path) -> tuple[str, str]:
  """What is put in front of queries and of passages.

  The default prompt is that of a side without one of its own.

  Raises:
    UserError: the names of a side have different prompts.
  """
  file = path / CONFIG
  config = json_file.read(file) if file.is_file() else {}
  prompts = config.get('prompts') or {}
  default = prompts.get(config.get('default_prompt_name')) or ''
  return (
      _prompt(prompts, QUERY_PROMPTS, default, file),
      _prompt(prompts, PASSAGE_PROMPTS, default, file),
  )


def similarity(path: pathlib.Path) -> str:
  """How vectors are to be compared; the library's default is the cosine."""
  file = path / CONFIG
  config = json_file.read(file) if file.is_file() else {}
  return config.get('similarity_fn_name') or 'cosine'


def _prompt(
    prompts: Mapping[str, Any],
    names: Sequence[str],
    default: str,
    file: pathlib.Path,
) -> str:
  given = {name: prompts[name] or '' for name in names if name in prompts}
  if len(set(given.values())) > 1:
    listed = ', '.join(f'{name} = {text!r}' for name, text in given.items())
    raise UserError(
        f'{file} has different prompts for passages: {listed}. Keep the one'
        ' that the model was trained with.'
    )
  return next(iter(given.values()), default)
