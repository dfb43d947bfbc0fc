"""Converts a model, or an index, to and from other programs.

  dualenc convert my_model --to=sentence_transformers --output_dir=my_st_model
  dualenc convert gtr-t5-base --to=model_dir --output_dir=gtr
  dualenc convert t5x/checkpoint_1000000 --to=hf --output_dir=t5 \
    --vocabulary=sp.model
  dualenc convert light --to=jax_export --tower=query --output_dir=query_tower
  dualenc convert --merge=one_model,another --to=model_dir --output_dir=mean
  dualenc convert my_model --merge=8000,9000 --to=model_dir --output_dir=mean
  dualenc convert my_model/index --to=faiss --output_dir=my_faiss
  dualenc convert my_model/index --to=vectors --output_dir=my_vectors

The source is a model_dir, a T5X checkpoint (legacy or Orbax), a Hugging Face
folder of a T5 or Gemma, a sentence-transformers folder, an output of this
command, or any of them on the Hugging Face hub, hf://org/name. Its content
shows which it is. Before the output appears, its tensors are read back and
compared. Then a few texts are encoded by this library and by
sentence-transformers, where it is installed and source or output is for it, or
by the programs of jax_export; cosines that differ by more than 1e-4 are an
error.

--merge takes the mean, summed in float64 and written in float32, of several
models of one architecture and vocabulary, or of one model_dir at several steps.
The mean of runs that started from the same checkpoint is often better than
each.

The source can also be an index of `dualenc encode`. --to=faiss writes
index.faiss, which faiss.read_index opens, and ids.txt: line i, counted from 0,
has the id of hit i. --to=vectors writes vectors.parquet, one row per passage:
id, name, location, text, vector.
"""

import argparse
from collections.abc import Sequence
import dataclasses
import functools
import pathlib
import signal
import sys
from typing import Any
import uuid

from dualenc_jax.checkpoints import conversion, loading
from dualenc_jax.checkpoints.checkpoint_reader import TRAINED_DIMS
from dualenc_jax.checkpoints.vocabulary import make_tokenizer
from dualenc_jax.checkpoints.weights import (
  OF_GEMMA,
  SIZES,
  VOCABULARY,
  Weights,
)
from dualenc_jax.cli import (
  config,
  flags,
  process,
  runtime,
  saved_config,
  saved_run,
)
from dualenc_jax.objectives import PairObjective
from dualenc_jax.retrieval.compression import model_codec
from dualenc_jax.retrieval.index import conversion as index_conversion
from dualenc_jax.training.checkpoints import Checkpoints, write_vocabulary
from dualenc_jax.utils import hub, untrusted
from dualenc_jax.utils.errors import UserError

_USAGE = ('query_length', 'passage_length', 'query_prefix', 'passage_prefix')
_OF_MODELS = (
    'tower', 'step', 'dim', 'vocabulary', 'verify', *_USAGE,
)

# The run whose values the config gets where the checkpoint says nothing.
_RUN = 'runs/finetune.gin'
_HEAD = (
    '# Made by `dualenc convert`. Sizes, lengths, prefixes are the model\'s;\n'
    '# task, loss and optimizer are defaults, not what it was trained with.\n'
)
_PARTS = 'token_embedder', 'encoder', 'projection'


def main(argv: Sequence[str] | None = None) -> None:
  args = make_parser().parse_args(argv)
  args.source = hub.model(args.source)
  runtime.start_logging()
  # An exception of its own, so that nothing half written is left.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
  out = pathlib.Path(args.output_dir).expanduser().absolute()
  log = functools.partial(print, flush=True)
  merged = merged_sources(args)
  is_index = not merged and index_conversion.is_index(args.source)
  check_source(args, is_index)
  if is_index:
    index_conversion.convert(args.source, args.to, out, log)
    return
  process.return_freed_memory()
  runtime.use_compilation_cache()
  given = {n: x for n in _USAGE if (x := getattr(args, n)) is not None}
  source: Any = conversion.Source(
      args.source, args.step, args.vocabulary, given, args.dim,
  )
  if merged:
    source = conversion.Merge(
        [dataclasses.replace(source, **own) for own in merged]
    )
  conversion.convert(
      source, args.to, forms(out)[args.to], out, log, args.tower == 'query',
      args.verify is None,
  )


def merged_sources(args: argparse.Namespace) -> list[dict[str, Any]]:
  """Path and step of each checkpoint of --merge; none without it."""
  names = args.merge or []
  if not names and args.source is None:
    raise UserError(
        'Give a source, dualenc convert SOURCE, or --merge=A,B.'
    )
  if not names:
    return []
  steps = args.source and args.step is None
  if len(names) < 2 or args.source and not (
      steps and all(map(untrusted.is_digits, names))
  ):
    raise UserError(
        f"--merge={','.join(names)}: expected two or more models and no source;"
        ' or a model_dir as the source and steps of it, without --step.'
    )
  if args.to in index_conversion.FORMS:
    raise UserError(f'--merge takes models, but --to={args.to} takes an index.')
  if args.source:
    return [{'step': int(name)} for name in names]
  return [{'path': name} for name in names]


def forms(out: pathlib.Path | None = None) -> dict[str, conversion.Form]:
  """All forms by name; `out` is what the folder of a model_dir is called."""
  model_dir = conversion.Form(
      'what training writes: to evaluate, encode, search, train from',
      functools.partial(write_model_dir, final=out),
      keeps_codec=True,
      as_bag=lambda weights: weights,
  )
  return {'model_dir': model_dir, **conversion.FORMS}


def check_source(args: argparse.Namespace, is_index: bool) -> None:
  """Raises UserError where form and flags do not suit the source."""
  takes_index = args.to in index_conversion.FORMS
  if is_index != takes_index:
    kinds = ['a model', 'an index']
    raise UserError(
        f'{args.source} is {kinds[is_index]}, but --to={args.to} takes'
        f' {kinds[takes_index]}. `dualenc encode` makes indexes.'
    )
  given = [name for name in _OF_MODELS if getattr(args, name) is not None]
  if is_index and given:
    raise UserError(
        f'--{given[0]} needs a model, but {args.source} is an index. Leave it'
        ' out.'
    )


def make_parser() -> flags.Parser:
  parser = flags.Parser('convert', __doc__)
  add = parser.add_argument
  add('source', nargs='?',
      help='a checkpoint (folder or file) or an index')
  add('--merge', type=flags.listed, metavar='A,B',
      help='convert the mean of these models, without a source, or of these'
      ' steps of the source, a model_dir; one named twice counts twice')
  known: dict[str, Any] = {**forms(), **index_conversion.FORMS}
  add('--to', choices=known, required=True,
      help='; '.join(f'{name}: {form.text}' for name, form in known.items()))
  add('--tower', choices=['query'],
      help='write only the query tower, to search an existing index; for'
      ' jax_export')
  add('--output_dir', required=True, help='folder to make')
  add('--step', type=flags.whole(0),
      help='checkpoint of a model_dir (default the best kept, else the newest)')
  flags.add_dim(parser)
  add('--vocabulary',
      help='SentencePiece file, if the source has none (T5X) or only a'
      ' tokenizer.json')
  for tower in ('query', 'passage'):
    parser.add_argument(
        f'--{tower}_length', type=flags.whole(),
        help=f'maximum tokens of a {tower} (default that of the source)',
    )
    parser.add_argument(
        f'--{tower}_prefix',
        help=f'text before every {tower} (default that of the source)',
    )
  add('--no-verify', dest='verify', action='store_const', const=False,
      help='compare no embeddings with sentence-transformers or jax_export')
  return parser


def write_model_dir(
    weights: Weights, folder: pathlib.Path, final: pathlib.Path | None = None
) -> None:
  """Writes config, vocabulary and one checkpoint without optimizer state.

  All of the parameters are in memory once. The model computes in float32;
  --gin.DTYPE=bfloat16 of the commands that use it is faster. `final` is what
  the folder will be called, if it is moved.
  """
  tokenizer = make_tokenizer(weights)
  final = (final or folder).absolute()
  bindings = [
      f'MODEL_DIR = {str(final)!r}',
      f'VOCABULARY = {str(tokenizer.vocabulary.file)!r}',
      f'QUERY_LENGTH = {tokenizer.query_length}',
      f'PASSAGE_LENGTH = {tokenizer.passage_length}',
      f'QUERY_PREFIX = {tokenizer.query_prefix!r}',
      f'PASSAGE_PREFIX = {tokenizer.passage_prefix!r}',
      f'PROMPTS = {dict(tokenizer.prompts)!r}',
      f'data.Tokenizer.default_prompt = {tokenizer.default_prompt!r}',
      *(
          f'data.Vocabulary.{name} = {value}'
          for name, value in tokenizer.vocabulary.special_tokens.items()
      ),
      "DTYPE = 'float32'",
      *_model_bindings(weights),
  ]
  experiment = saved_run.build_experiment([_RUN], bindings, [])
  text = config.operative_config().replace(
      repr(str(tokenizer.vocabulary.file)),
      repr(str(final / VOCABULARY)),
  )
  objective = experiment.objective
  assert isinstance(objective, PairObjective)
  params, _ = loading.place(objective.model, weights.tensors, weights.path)
  facts, codec = objective.facts, weights.codec
  if codec is not None:
    facts |= {model_codec.GROUP: model_codec.facts(codec)}
    params = {**params, model_codec.GROUP: model_codec.arrays(codec)}
  if weights.trained_dims:
    facts = {**facts, TRAINED_DIMS: list(weights.trained_dims)}
  meta = {
      'run_id': uuid.uuid4().hex,
      'model': facts,
      'config': text,
      'converted_from': f'{weights.kind} {pathlib.Path(weights.path).name}',
      'data': {
          'vocabulary': tokenizer.vocabulary.sha256,
          'query_length': tokenizer.query_length,
          'passage_length': tokenizer.passage_length,
          'seed': experiment.seed,
          **tokenizer.prefixes,
          **tokenizer.own_facts,
      },
  }
  Checkpoints(folder).save_params(params, weights.step or 0, meta)
  write_vocabulary(folder, tokenizer.vocabulary)
  saved_config.write(str(folder), _HEAD + text)


def _model_bindings(weights: Weights) -> list[str]:
  """Bindings that build the towers of a checkpoint."""
  model = weights.model()
  bindings = [f'VOCAB_SIZE = {model.token_embedder.vocab_size}']
  for name in (*_PARTS, *(f'passage_{name}' for name in _PARTS)):
    part = getattr(model, name)
    if part is None:
      continue
    target = f'models.{type(part).__name__}'
    if name == 'encoder':
      bindings.append(f'ENCODER = @{target}()')
    if name.startswith('passage_'):
      target = f'passage/{target}'
      bindings.append(f'models.DualEncoder.{name} = @{target}()')
    bindings += [
        f'{target}.{size} = {getattr(part, size)!r}'
        for size in (
            *SIZES, *OF_GEMMA, 'num_buckets', 'bias_per_layer', 'vocab_size',
            'features', 'hidden',
        )
        if hasattr(part, size)
    ]
  return bindings
