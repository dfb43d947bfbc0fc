"""The folder of a run: its config, and the trained model in it."""

import argparse
from collections.abc import Sequence
import dataclasses
import logging
import os
import pathlib
import re
import tokenize
from typing import Any

import jax

from dualenc_jax.commands import config, flags
from dualenc_jax.errors import UserError
from dualenc_jax.inference.towers import Loaded
from dualenc_jax.interop import loading, model_dirs, truncation
from dualenc_jax.io import files, hub, json_file
from dualenc_jax.parallel.partitioning import HostPartitioner
from dualenc_jax.run.experiment import Experiment

CONFIG = 'config.gin'
VOCABULARY = 'vocabulary.model'
# Names that say how a run is computed and kept: what is learnt is the same, to
# rounding.
FREE_TO_CHANGE = re.compile('|'.join([
    # Where the texts of a batch lie in rows.
    r'LAYOUT|data\.(Grouped|Packed|Padded)\..*',
    # How the same loss and gradient are summed up.
    r'LOSS_IMPLEMENTATION|MICRO_BATCH_SIZE',
    # Which device holds what: the mesh, and FSDP's rules.
    r'MODEL_PARALLEL|(.*[./])?Partitioner\.(model_parallel|rules)',
    # What the backward pass computes again.
    r'(.*[./])?T5Encoder\.remat',
    # How many texts are encoded at once in evaluations; when the state is
    # saved, and how often it is kept.
    r'(.*[./])?Experiment\.(eval_batch_size|checkpoint_every(_hours)?'
    r'|keep_checkpoints)|CHECKPOINT_EVERY(_HOURS)?',
    # Whether a step that is not finite ends the run.
    r'SKIP_NON_FINITE|.*\.skip_non_finite',
    # Names; that queries begin with the same is checked by the data.
    r'PROMPTS|data\.(Tokenizer|Mixture)\.prompts',
    # Where tokens lie; that they are the same is checked by themselves.
    r'CACHE_DIR',
]))
# What a config says of a set of BEIR, with what says nothing.
_OF_SET = {
    'BEIR_SET': None, 'BEIR_FOLDER': None, 'BEIR_PREFIX': '',
    'BEIR_FILES': None, 'BEIR_HARD_NEGATIVES': None, 'BEIR_SCORES': False,
}
# How many differences of a config are shown.
_MOST_CHANGES = 10
# What a saved config lacks, since its run had no use for it, and another task
# may ask for.
_SAVED = 'commands/saved.gin'
_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class TrainedModel(Loaded):
  """A model as its newest (or a chosen) checkpoint has it, and its run."""

  experiment: Experiment


def check(model_dir: str, text: str, allow_change: bool) -> None:
  """Makes the folder of a run, and refuses one of another config.

  The names in `FREE_TO_CHANGE` may differ from the full gin config `text`.
  """
  if '://' in model_dir:
    raise UserError(
        f'MODEL_DIR {model_dir} is not a folder. Mount the bucket (such as with'
        ' gcsfuse) on every host, and give that path.'
    )
  folder = pathlib.Path(model_dir)
  files.make_folder(folder, 'another MODEL_DIR')
  path = folder / CONFIG
  if not path.exists() or not model_dirs.steps(folder):
    return
  differences = config.differences(_saved(path), text)
  changes = [
      change
      for change in differences
      if not FREE_TO_CHANGE.fullmatch(change.partition(':')[0])
  ]
  if changes and not allow_change:
    changes.sort(key=_rank)
    shown, more = changes[:_MOST_CHANGES], len(changes) - _MOST_CHANGES
    shown += [f'and {more} more'] if more > 0 else []
    raise UserError(
        f"{path} has another config. {'; '.join(shown)}. Use another MODEL_DIR,"
        ' or give --allow_config_change to resume with the new values.'
    )
  if differences:
    _LOG.warning('Going on with a changed config: %s', '; '.join(differences))


def _other_set(saved: str, bindings: Sequence[str]) -> list[str]:
  """Takes back what a config says of its BEIR set where flags name another."""
  given = {text.partition(' = ')[0] for text in bindings}
  if not given & {'BEIR_SET', 'BEIR_FOLDER'}:
    return []
  return [
      f'{name} = {none!r}'
      for name, none in _OF_SET.items()
      if name not in given and re.search(rf'^{name} = ', saved, re.MULTILINE)
  ]


def _rank(change: str) -> tuple[bool, bool]:
  """What matters first: another loss before what it is made of."""
  name, _, values = change.partition(': ')
  is_choice = re.fullmatch(r'[A-Z]\w*', name) and '@' in values
  return not is_choice, 'not set' in values.split(' -> ')


def write(model_dir: str, text: str, vocabulary: pathlib.Path) -> None:
  """Puts the config and the vocabulary into the folder of a run.

  An earlier config that differs is kept as `config.<n>.gin`. Only the first
  host writes.
  """
  if jax.process_index():
    return
  folder = pathlib.Path(model_dir)
  path = folder / CONFIG
  with files.writing(path, 'another MODEL_DIR'):
    if path.exists() and config.differences(_saved(path), text):
      number = 1
      while (folder / f'config.{number}.gin').exists():
        number += 1
      path.rename(folder / f'config.{number}.gin')
    content = vocabulary.read_bytes()
  files.write(folder / VOCABULARY, content, 'another MODEL_DIR')
  files.write(path, text, 'another MODEL_DIR')


def _saved(path: pathlib.Path) -> str:
  """The config of a run, whose syntax is right."""
  again = (
      'Put back what training wrote; or remove it and train with the flags of'
      ' before, which nothing is compared with then.'
  )
  text = json_file.read_text(path, again)
  try:
    config.check_syntax(text)
  except (SyntaxError, tokenize.TokenError) as e:
    line = e.lineno if isinstance(e, SyntaxError) else e.args[1][0]
    raise UserError(f'{path}, line {line}: gin cannot read it. {again}') from e
  return text


def check_is_one(folder: str) -> None:
  """Raises UserError unless a folder is what training wrote."""
  if hub.is_on_hub(folder):
    raise UserError(
        f'{folder} is not a folder: the config of a model_dir is a program,'
        ' which is never run from a hub. Convert its weights first: dualenc'
        f' convert {folder} --to=model_dir --out=DIR.'
    )
  if not (pathlib.Path(folder) / CONFIG).exists():
    what = f'has no {CONFIG}' if os.path.isdir(folder) else 'is not there'
    raise UserError(
        f'{folder} is no model_dir: it {what}. Give the folder that'
        ' `dualenc train` wrote (its MODEL_DIR).'
    )


def load(
    folder: str, step: int | None = None, files: Sequence[str] = (),
    bindings: Sequence[str] = (), search_paths: Sequence[str] = (),
    hosts_apart: bool = False, before: Sequence[str] = (),
    dim: int | None = None, prompt: str | None = None,
    passage_prompt: str | None = None,
) -> TrainedModel:
  """Rebuilds the model of a model_dir and restores its parameters.

  Args:
    folder: what training wrote.
    step: of the checkpoint; None for the best that the run has kept, else the
      newest.
    files: gin files applied after the saved config, then `bindings`.
    bindings: 'NAME = VALUE' strings.
    search_paths: folders to find the files in.
    hosts_apart: every host has the model on its own devices, and computes by
      itself; otherwise one model is on the devices of all hosts.
    before: gin files applied before the saved config, whose values win.
    dim: components that embeddings are cut to; None for all.
    prompt: name of what is put in front of queries; None for their prefix.
    passage_prompt: the same of passages.
  """
  check_is_one(folder)
  path = pathlib.Path(folder) / CONFIG
  # A config is a program: beside another checkpoint it is a stranger's.
  model_dirs.wanted(path.parent, step)
  of_folder = [f'MODEL_DIR = {folder!r}', *_other_set(_saved(path), bindings)]
  vocabulary = path.with_name(VOCABULARY)
  if vocabulary.exists():
    of_folder.append(f'data.Vocabulary.path = {str(vocabulary)!r}')
  experiment = build_experiment(
      [_SAVED, *before, str(path), *files],
      [*of_folder, *bindings],
      search_paths,
  )
  trained_for = experiment.tokenizer
  task: Any = experiment.task
  tokenizer = trained_for.prompted(prompt, passage_prompt)
  if prompt is not None and getattr(task, 'prompts', None):
    # It is for the queries of all tasks then.
    task = dataclasses.replace(task, prompts=None)
  partitioner = experiment.partitioner
  if hosts_apart:
    local = HostPartitioner(partitioner.model_parallel, partitioner.rules)
    partitioner = local
  experiment = dataclasses.replace(
      experiment, task=task, tokenizer=tokenizer,
      passage_tokenizer=trained_for.prompted(passage=passage_prompt),
      partitioner=partitioner,
  )
  objective: Any = experiment.objective
  if not hasattr(objective, 'embedder'):
    use = (
        f'A cross-encoder re-ranks: `dualenc rerank --teacher={folder}`, or'
        f' --rerank={folder} of evaluate and search.'
    )
    if hasattr(objective, 'likelihood'):
      use = 'A generator writes queries: `dualenc generate`.'
    raise UserError(
        f'{folder} is no dual encoder: it was trained by'
        f' {type(objective).__name__}, so it embeds nothing. {use}'
    )
  objective.check_mesh(partitioner)

  def use_of(checkpoint: model_dirs.Checkpoint) -> TrainedModel:
    checkpoint.check_vocabulary(tokenizer.vocabulary)
    model, tensors = objective.model, checkpoint.tensors
    codec = checkpoint.codec()
    if dim is not None:
      if codec is not None:
        _LOG.warning(
            '%s, the codec that was trained with %s, is for whole embeddings:'
            ' cut to %d components, they are kept without it.',
            codec.name, folder, dim,
        )
        codec = None
      model, tensors = truncation.of_model(
          model, tensors, dim, checkpoint.trained_dims, folder
      )
    embedder: Any
    params, embedder = loading.place(
        model, tensors, folder, partitioner, experiment.eval_batch_size
    )
    found = checkpoint.provenance(model, tokenizer, experiment.seed)
    found = truncation.of_provenance(found, dim)
    return TrainedModel(
        params, tokenizer, embedder, found, experiment, codec=codec
    )

  model = model_dirs.restore(path.parent, step, use_of)
  used = model.provenance['checkpoint_step']
  newest = model_dirs.steps(path.parent)[-1]
  # Where the newest is damaged an older one may be used that is not the best.
  is_best = used != newest and used == model_dirs.best_step(path.parent)
  best = f', the best (the newest is {newest}),' if is_best else ''
  _LOG.info('Restored step %d%s of %s.', used, best, folder)
  return model


def load_from_args(
    args: argparse.Namespace,
    hosts_apart: bool = False,
    before: Sequence[str] = (),
) -> TrainedModel:
  """`load` with the flags of `add_flags` and of gin."""
  return load(
      args.model_dir, args.step, args.gin_file, args.gin_bindings,
      args.gin_search_paths, hosts_apart, before, args.dim, args.prompt,
      args.passage_prompt,
  )


def home(
    folder: str, dim: int | None = None, *prompts: str | None
) -> pathlib.Path:
  """Where commands write by default: a model_dir, or a folder in it.

  What is made of embeddings of `dim` components is in MODEL_DIR/dim-<dim>, in
  the folders that it has in MODEL_DIR else: index, evaluation, analysis; what
  is made with prompts in MODEL_DIR/prompt-<name> or below dim-<dim>.
  """
  path = pathlib.Path(folder)
  path = path if dim is None else path / f'dim-{dim}'
  for name in filter(None, prompts):
    path /= 'prompt-' + re.sub(r'[^\w.-]', '_', name)
  return path


def build_experiment(
    files: Sequence[str], bindings: Sequence[str], search_paths: Sequence[str]
) -> Experiment:
  """The experiment of gin files and bindings."""
  if not files:
    runs = [f for f in config.shipped_files() if f.startswith('runs/')]
    raise UserError(
        'Give --gin_file; for example --gin_file=runs/quickstart.gin. Runs'
        f' shipped: {", ".join(runs)}.'
    )
  config.load(files, bindings, search_paths)
  experiment = config.build(Experiment)
  config.check_effect(bindings)
  return experiment


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the flags of a command that reads a trained model."""
  add = parser.add_argument
  add('--model_dir', required=True, help='folder of a trained model')
  add('--step', type=int,
      help='checkpoint (default the best, if KEEP_BEST kept one, else the'
      ' newest)')
  flags.add_dim(parser)
  flags.add_prompts(parser)
