"""What no stage of a recipe may be, found before the first one runs."""

import argparse
from collections.abc import Collection, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import importlib
import logging
import pathlib
import tempfile
from typing import Any

import gin

from dualenc_jax.checkpoints import model_dirs
from dualenc_jax.cli import (
  config,
  label,
  main as cli,
  model_dir,
  rerank,
  saved_config,
  tasks,
  train,
)
from dualenc_jax.data import Dataset
from dualenc_jax.data.readers import Pairs
from dualenc_jax.evaluation.results import training_evals
from dualenc_jax.evaluation.results.result_files import VALIDATION
from dualenc_jax.pipelines.generation.corpus import check_same_corpus
from dualenc_jax.pipelines.recipes import Recipe, runner, Stage
from dualenc_jax.retrieval import compression
from dualenc_jax.retrieval.encoding import calibration
from dualenc_jax.training.experiment import Experiment
from dualenc_jax.utils.errors import SourceUnavailable, UserError


def _parsed(
    line: Sequence[str], search_paths: Sequence[str] = ()
) -> tuple[Any, argparse.Namespace]:
  """The module of a command line, and its flags."""
  command, rest = cli.split(line)
  if command not in cli.COMMANDS:
    raise UserError(cli.no_command(command))
  module = importlib.import_module(cli.module_name(command))
  parser = module.make_parser()
  if parser.get_default('gin_search_paths') is None:
    return module, parser.parse_args(rest)
  paths = [f'--gin_search_paths={path}' for path in search_paths]
  return module, config.parse_args(parser, [*rest, *paths])


def check_line(line: Sequence[str], coming: Collection[str]) -> None:
  """Refuses what a command would before any stage runs, but what is coming."""
  module, args = _parsed(line)
  if hasattr(module, 'check_flags'):
    # The codec of an index to come is none yet.
    given = {'codec': None, 'codecs': (), **vars(args)}
    if given['codec'] in coming:
      given['codec'] = None
    given['codecs'] = [c for c in given['codecs'] or () if c not in coming]
    module.check_flags(argparse.Namespace(**given))
  generator = getattr(args, 'generator', None) or ''
  made = pathlib.Path(generator)
  if generator not in coming and model_dirs.is_one(made):
    facts = model_dirs.facts_of(made)
    model_dirs.check_kind(facts, model_dirs.GENERATOR, generator)
  teacher = getattr(args, 'teacher', None)
  if teacher is not None and teacher not in coming:
    if args.teacher_form is None and not pathlib.Path(teacher).is_file():
      rerank.check_own(teacher)


def check_queries(
    recipe: Recipe, given: runner.Given, lines: Mapping[str, Sequence[str]]
) -> None:
  """Refuses queries that are given and are of another corpus."""
  for stage in map(recipe.with_flags, recipe.stages):
    if stage.command == 'generate' and stage.name in lines:
      for output, path in stage.outputs.items():
        if path == '.' and (stage.name, output) in given:
          for corpus in stage.values('corpus'):
            check_same_corpus(given[stage.name, output], corpus)


def check_stages(
    recipe: Recipe, given: runner.Given, lines: Mapping[str, Sequence[str]],
    coming: Mapping[str, Stage], args: argparse.Namespace,
    macros: Mapping[str, Mapping[str, str]],
) -> Iterator[str]:
  """Yields what will be trained and how long, as far as that is known yet.

  Before any stage runs, a config that cannot be built is refused, and data that
  lacks what a stage reads of it. What a stage makes is taken to be right.
  """
  # Of models to come: what trains them, and folders with their configs.
  trained: dict[str, Experiment] = {}
  configs: dict[str, str] = {}
  with tempfile.TemporaryDirectory() as temporary:
    for stage in recipe.stages:
      with _of_what_is_there(stage.name, coming, macros):
        runner.check_inputs(recipe.with_flags(stage))
      outputs = {(stage.name, output) for output in stage.outputs}
      if stage.name not in lines or outputs and outputs <= given.keys():
        continue
      module, asked = _parsed(lines[stage.name], args.gin_search_paths)
      if module is not train and not hasattr(asked, 'tasks'):
        continue
      model = module is not train and getattr(asked, 'model_dir', None) or ''
      reads = {model, *asked.gin_file}
      if not coming.keys().isdisjoint(reads - configs.keys()):
        continue
      asked.gin_file = [configs.get(file, file) for file in asked.gin_file]
      if module is label and not _is_calibrated(asked, coming, trained):
        error = label.no_calibration(asked.teacher)
        raise of_stage(stage.name, error, macros)
      with _of_what_is_there(stage.name, coming, macros):
        if module is not train:
          _check_task(asked, configs.get(model, model), coming)
          continue
        experiment = train.build(asked)
        own = pathlib.Path(temporary, stage.name)
        own.mkdir()
        saved_config.write(str(own), config.operative_config())
        place = pathlib.Path(args.work_dir, stage.name)
        trained[str(place)] = experiment
        configs |= {
            str(place): str(own),
            str(place / saved_config.CONFIG): str(own / saved_config.CONFIG),
        }
        _check_codes(experiment, coming)
        objective: Any = experiment.objective
        teacher = getattr(objective, 'teacher', None)
        if teacher is not None and teacher not in coming:
          objective.check_teacher(experiment.tokenizer.vocabulary)
        steps, size = experiment.steps, experiment.batch_size
        rate = experiment.optimizer.describe(steps)
        yield f'{stage.name}: {steps:,} steps of {size:,} examples, {rate}.'
        training_evals.check(experiment)
        for task, _ in experiment.task.parts():
          _check_split(experiment, task, 'train', coming)


@contextlib.contextmanager
def _of_what_is_there(
    name: str, coming: Collection[str], macros: Mapping[str, Mapping[str, str]]
) -> Iterator[None]:
  """Raises an error as a stage's, unless it is of what is not there yet."""
  try:
    yield
  except UserError as e:
    if not any(path in str(e) for path in coming):
      raise of_stage(name, e, macros) from e


def _check_task(
    args: argparse.Namespace, model: str, coming: Collection[str]
) -> None:
  """Refuses a task without the split that is read of it, '' for no model."""
  names = args.tasks or ()
  inputs: Any
  if model:
    inputs = model_dir.saved_experiment(
        model, args.gin_file, args.gin_bindings, args.gin_search_paths,
        tasks.gin_files(names),
    )
    chosen = tasks.chosen(inputs, names, args.split)
  else:
    inputs, chosen = tasks.without_model(args)
  if names:
    chosen = tasks.available(chosen, getattr(args, 'skip_missing', False))
  for task, split in chosen:
    if getattr(args, 'queries', None):
      split = task.corpus_split(split) or split
    _check_split(inputs, task, split, coming)


def _check_split(
    inputs: Any, task: Dataset, split: str, coming: Collection[str]
) -> None:
  """Refuses a split that is not there, and whose first rows are bad."""
  try:
    task.check_split(split)
    task.most_examples(split, 1)
    if isinstance(task, Pairs):
      logging.disable()  # What it warns of the stage will say.
      next(task.examples(split))
  except SourceUnavailable as e:
    # A token cache may serve, but not that of another run.
    if not any(path in str(e) for path in coming):
      dataclasses.replace(inputs, task=task).cache(split)
  finally:
    logging.disable(logging.NOTSET)


def _is_calibrated(
    args: argparse.Namespace, coming: Collection[str],
    trained: Mapping[str, Experiment],
) -> object:
  """Whether the scores of a teacher become probabilities, as far as known."""
  place = pathlib.Path(args.teacher)
  if args.calibration is not None:
    return True
  if args.teacher in coming:
    run = trained.get(args.teacher)
    return run is None or run.eval_every and VALIDATION in run.task.splits()
  if not model_dirs.is_one(place):
    return False
  return calibration.of_step(place, model_dirs.wanted(place, None)[0])


def _check_codes(experiment: Experiment, coming: Mapping[str, Stage]) -> None:
  """Refuses a codec of a stage to come whose centroids cannot be trained."""
  objective: Any = experiment.objective
  stage = coming.get(getattr(objective, 'codec_from', None) or '')
  if stage is None or stage.flags.get('codec') is None:
    return
  codec = compression.spec(stage.flags['codec'])
  codec.check(objective.model.projection.features)
  if not codec.is_product:
    raise UserError(
        f'Stage {stage.name} makes codes by {codec.name}, but JPQ trains'
        ' centroids. Expected a product quantiser, such as --gin.CODEC=opq:96.'
    )


def macros_by_flag(stage: Stage) -> dict[str, str]:
  """Macros by the flags of a stage, as long as gin holds the recipe."""

  def bound(key: str) -> Any:
    try:
      return gin.query_parameter(key)
    except ValueError:  # Not bound, or a stage of a sweep.
      return None

  def macro_of(value: Any) -> str | None:
    scope, _, name = getattr(value, 'scoped_selector', '').rpartition('/')
    return scope if name == 'gin.macro' else None

  def by_flag(value: Any) -> dict[str, str]:
    """In dicts, lists and macros of them; what comes later wins."""
    if macro := macro_of(value):
      return by_flag(bound(f'{macro}/gin.macro.value'))
    found: dict[str, str] = {}
    if isinstance(value, (list, tuple)):
      for each in value:
        found |= by_flag(each)
    elif isinstance(value, dict):
      named = {flag: macro_of(each) for flag, each in value.items()}
      found = {flag: macro for flag, macro in named.items() if macro}
    return found

  keys = (f'{stage.name}/recipes.Stage.{n}' for n in ('flags', 'changes'))
  return by_flag([bound(key) for key in keys])


def hint(macros: Mapping[str, str], refusal: str | None = None) -> str:
  """What to give for flags that a stage has by a macro of another name.

  Those that a refusal names, or all; ' ' and a sentence, or ''.
  """
  shown = []
  for flag, macro in macros.items():
    name = flag.removeprefix('gin.')
    word = f'--{flag}' if name == flag else name
    is_other = name.upper() != macro
    if is_other if refusal is None else macro != name and word in refusal:
      shown.append(f'{word} is --gin.{macro}')
  return f' In the recipe its {", ".join(shown)}.' if shown else ''


def of_stage(
    name: str, error: UserError, macros: Mapping[str, Mapping[str, str]]
) -> UserError:
  """An error of a stage, with the macros of the flags that it names."""
  more = hint(macros[name], str(error))
  return UserError(f'Stage {name}: {error}{more}')
