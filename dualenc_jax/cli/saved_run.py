"""The folder of a run: its config, and the trained model in it."""

import argparse
from collections.abc import Sequence
import dataclasses
import logging
import pathlib
import re
from typing import Any

from dualenc_jax.checkpoints import (
  checkpoint_reader,
  foreign_models,
  loading,
  transforms,
)
from dualenc_jax.checkpoints.weights import VOCABULARY
from dualenc_jax.cli import config, data_command, flags, saved_config
from dualenc_jax.data.cache import Cache
from dualenc_jax.data.text.whole_texts import WholeTexts
from dualenc_jax.models import SplitRanker
from dualenc_jax.parallel import hosts
from dualenc_jax.parallel.partitioning import HostPartitioner
from dualenc_jax.retrieval.encoding.embedder import Embedder
from dualenc_jax.retrieval.encoding.split_teacher import SplitScorer
from dualenc_jax.retrieval.encoding.towers import LoadedModel
from dualenc_jax.retrieval.index.build_for_model import default_split
from dualenc_jax.training.experiment import Experiment
from dualenc_jax.utils import hub
from dualenc_jax.utils.errors import missing, UserError

# Defaults that a saved config lacks and another task may ask for.
_SAVED = 'commands/saved.gin'
_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class TrainedModel(LoadedModel):
  """A model as its best, newest or chosen checkpoint has it, and its run.

  A model of another library has `DataInputs`, maybe without a task, in place of
  an `Experiment`.
  """

  experiment: Any

  def own_passages(self) -> Cache:
    """The token cache of all passages of its task."""
    split = default_split(self.experiment.task)
    return self.experiment.passage_cache(split)


def check_is_one(folder: str) -> None:
  """Raises UserError unless a folder is what training wrote, or foreign."""
  if hub.is_foreign(folder):
    return
  if hub.is_on_hub(folder):
    raise UserError(
        f'{folder} is not a folder: a config is a program, which is never run'
        f' from a hub. Convert its weights first: dualenc convert {folder}'
        ' --to=model_dir --output_dir=DIR.'
    )
  path = pathlib.Path(folder) / saved_config.CONFIG
  if not path.parent.exists():
    raise UserError(missing(path.parent))
  if not path.exists():
    if checkpoint_reader.steps(path.parent):
      raise UserError(
          f'{folder} has no {saved_config.CONFIG}: it was trained in Python,'
          ' without gin. Retriever.from_dir opens it as it is. For this'
          f' command, convert it first: dualenc convert {folder} --to=model_dir'
          ' --output_dir=DIR; then name its data by --gin_file and --gin.'
      )
    raise UserError(
        f'{folder} is not a model_dir: there is no {path}. `dualenc train`'
        ' makes one, and `dualenc convert --to=model_dir`.'
    )


def load(
    folder: str, step: int | None = None, files: Sequence[str] = (),
    bindings: Sequence[str] = (), search_paths: Sequence[str] = (),
    per_host: bool = False, before: Sequence[str] = (),
    dim: int | None = None, prompt: str | None = None,
    passage_prompt: str | None = None, passages_alone: bool = False,
) -> TrainedModel:
  """Rebuilds the model of a model_dir and restores its parameters.

  Args:
    folder: the model_dir, or st:FOLDER.
    step: of the checkpoint; None for the best that the run has kept, else the
      newest.
    files: gin files applied after the saved config, then `bindings`.
    bindings: 'NAME = VALUE' strings.
    search_paths: folders to find the files in.
    per_host: every host has the model on its own devices, and computes by
      itself; otherwise one model is on the devices of all hosts.
    before: gin files applied before the saved config, whose values win.
    dim: components that embeddings are cut to; None for all.
    prompt: name of the prompt before queries; None for their prefix.
    passage_prompt: name of the prompt before passages; None for their prefix.
    passages_alone: whether a split re-ranker will do, which embeds no queries.
  """
  if hub.is_foreign(folder):
    if step is not None:
      raise UserError(f'--step: {folder} has no checkpoints. Leave it out.')
    inputs = data_command.read([*before, *files], bindings, search_paths)
    inputs = dataclasses.replace(inputs, tokenizer=WholeTexts())
    towers = foreign_models.load(folder, dim, prompt, passage_prompt)
    return TrainedModel(**vars(towers), experiment=inputs)
  check_is_one(folder)
  # A config is a program: beside another checkpoint it is a stranger's.
  checkpoint_reader.candidate_steps(pathlib.Path(folder), step)
  experiment = saved_experiment(folder, files, bindings, search_paths, before)
  trained_for = experiment.tokenizer
  task: Any = experiment.task
  tokenizer = trained_for.prompted(prompt, passage_prompt, folder)
  if prompt is not None and getattr(task, 'prompts', None):
    # It is for the queries of all tasks then.
    task = dataclasses.replace(task, prompts=None)
  partitioner = experiment.partitioner
  if per_host:
    partitioner = HostPartitioner(partitioner.model_parallel, partitioner.rules)
  experiment = dataclasses.replace(
      experiment, task=task, tokenizer=tokenizer,
      passage_tokenizer=trained_for.prompted(passage=passage_prompt),
      partitioner=partitioner,
  )
  objective: Any = experiment.objective
  split = isinstance(objective.model, SplitRanker)
  if split and passages_alone and dim is not None:
    raise UserError(f'--dim: {folder} has states, of one length. Leave it out.')
  if objective.outputs != 'embeddings' and not (split and passages_alone):
    command = 'rerank --teacher='
    if objective.outputs == 'queries':
      command = 'generate --generator='
    raise UserError(
        f'{folder} is not a dual encoder: it was trained by'
        f' {type(objective).__name__}. Use it in `dualenc {command}{folder}`.'
    )
  objective.check_mesh(partitioner)

  def use_of(checkpoint: checkpoint_reader.Checkpoint) -> TrainedModel:
    checkpoint.check_vocabulary(tokenizer.vocabulary)
    model, tensors = objective.model, checkpoint.tensors
    codec = checkpoint.codec()
    if dim is not None:
      if codec is not None:
        _LOG.warning(
            'The codec %s of %s is for whole embeddings; those of %d components'
            ' are kept without it.', codec.name, folder, dim,
        )
        codec = None
      model, tensors = transforms.truncate_model(
          model, tensors, dim, checkpoint.trained_dims, folder
      )
    embedder: Any
    params, embedder = loading.place(
        model, tensors, folder, partitioner, experiment.eval_batch_size,
        SplitScorer if split else Embedder,
    )
    found = checkpoint.provenance(model, tokenizer, experiment.seed)
    found = transforms.truncate_provenance(found, dim)
    return TrainedModel(
        params, tokenizer, embedder, found, experiment, codec=codec
    )

  path = pathlib.Path(folder)
  model = checkpoint_reader.restore(path, step, use_of)
  used = model.provenance['checkpoint_step']
  newest = checkpoint_reader.steps(path)[-1]
  # Where the newest is damaged an older one may be used that is not the best.
  is_best = used != newest and used == checkpoint_reader.best_step(path)
  best = f', the best (the newest is {newest}),' if is_best else ''
  _LOG.info('Restored step %d%s of %s.', used, best, folder)
  return model


def saved_experiment(
    folder: str, files: Sequence[str], bindings: Sequence[str],
    search_paths: Sequence[str], before: Sequence[str] = (),
) -> Experiment:
  """The experiment of a model_dir's config; arguments of `load`."""
  path = pathlib.Path(folder) / saved_config.CONFIG
  saved = saved_config.read(path)
  own = saved_config.own_beir_folder(saved, bindings)
  if own and 'tasks/beir.gin' in before:
    _LOG.warning(
        'Task beir is the folder %s of the config of %s. For the benchmark give'
        ' --gin.BEIR_FOLDER=None.', own, folder,
    )
  of_folder = [
      f'MODEL_DIR = {folder!r}',
      *saved_config.unset_beir_set(saved, bindings),
  ]
  vocabulary = path.with_name(VOCABULARY)
  if vocabulary.exists():
    of_folder.append(f'data.Vocabulary.path = {str(vocabulary)!r}')
  return build_experiment(
      [_SAVED, *before, str(path), *files], [*of_folder, *bindings],
      search_paths,
  )


def load_from_args(
    args: argparse.Namespace,
    per_host: bool = False,
    before: Sequence[str] = (),
    folder: str | None = None,
    passages_alone: bool = False,
) -> TrainedModel:
  """`load` with the flags of `add_flags` and of gin.

  `folder` is one of several in --model_dir. With `per_host` it raises UserError
  where hosts that have joined find different models.
  """
  model = load(
      folder or args.model_dir, args.step, args.gin_file, args.gin_bindings,
      args.gin_search_paths, per_host, before, args.dim, args.prompt,
      args.passage_prompt, passages_alone,
  )
  if per_host:
    hosts.agree('models', hosts.lines(model.provenance))
  return model


def results_dir(
    folder: str, dim: int | None = None, *prompts: str | None
) -> pathlib.Path:
  """The folder for indexes and results: MODEL_DIR/dim-<dim>/prompt-<name>.

  A part is left out where embeddings have all components, or no prompt.
  UserError for st:FOLDER, to which nothing is written.
  """
  if hub.is_foreign(folder):
    raise UserError(
        f'{folder} has no place for indexes and results: give --index_dir to'
        ' encode and search, else --output_dir.'
    )
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
    raise UserError(f'Give --gin_file, such as one of {", ".join(runs)}.')
  config.load(files, bindings, search_paths)
  experiment = config.build(Experiment)
  config.check_effect(bindings)
  return experiment


def add_flags(
    parser: argparse.ArgumentParser,
    help: str = 'folder of a trained model, or st:FOLDER, a model of'
    ' sentence-transformers', **options: Any,
) -> None:
  """Adds the flags of a command that reads a trained model.

  `help` and `options` are of --model_dir.
  """
  add = parser.add_argument
  add('--model_dir', required=True, help=help, **options)
  add('--step', type=flags.whole(0),
      help='checkpoint (default the best, if KEEP_BEST kept one, else the'
      ' newest)')
  flags.add_dim(parser)
  flags.add_prompts(parser)
