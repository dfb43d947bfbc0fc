"""Makes a model_dir, as training writes it, out of any checkpoint."""

import pathlib
import uuid

from dualenc_jax.checkpoints import loading
from dualenc_jax.checkpoints.checkpoint_reader import TRAINED_DIMS
from dualenc_jax.checkpoints.vocabulary import make_tokenizer
from dualenc_jax.checkpoints.weights import SIZES, VOCABULARY, Weights
from dualenc_jax.cli import config, model_dir, saved_config
from dualenc_jax.objectives.of_towers import OfTowers
from dualenc_jax.retrieval.compression import model_codec
from dualenc_jax.training.checkpoints import Checkpoints, write_vocabulary

# The run whose values the config gets where the checkpoint says nothing.
_RUN = 'runs/finetune.gin'
_HEAD = (
    '# Made by `dualenc convert`. Sizes, lengths, prefixes are the model\'s;\n'
    '# task, loss and optimizer are defaults, not what it was trained with.\n'
)
_PARTS = 'token_embedder', 'encoder', 'projection'


def write(
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
      "DTYPE = 'float32'",
      *of_model(weights),
  ]
  experiment = model_dir.build_experiment([_RUN], bindings, [])
  text = config.operative_config().replace(
      repr(str(tokenizer.vocabulary.file)),
      repr(str(final / VOCABULARY)),
  )
  objective = experiment.objective
  assert isinstance(objective, OfTowers)
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
          **tokenizer.named,
      },
  }
  Checkpoints(folder).save_params(params, weights.step or 0, meta)
  write_vocabulary(folder, tokenizer.vocabulary)
  saved_config.write(str(folder), _HEAD + text)


def of_model(weights: Weights) -> list[str]:
  """Bindings that build the towers of a checkpoint."""
  model = weights.model()
  bindings = [f'VOCAB_SIZE = {model.token_embedder.vocab_size}']
  for name in (*_PARTS, *(f'passage_{name}' for name in _PARTS)):
    part = getattr(model, name)
    if part is None:
      continue
    target = f'models.{type(part).__name__}'
    if name.startswith('passage_'):
      target = f'passage/{target}'
      bindings.append(f'models.DualEncoder.{name} = @{target}()')
    bindings += [
        f'{target}.{size} = {getattr(part, size)!r}'
        for size in (*SIZES, 'num_buckets', 'vocab_size', 'features')
        if hasattr(part, size)
    ]
  return bindings
