"""What no stage of a recipe may be, found before the first one runs."""

import argparse
from collections.abc import Collection, Iterator, Mapping, Sequence
import functools
import importlib
import pathlib
from typing import Any

import gin

from dualenc_jax import compression
from dualenc_jax.commands import cli, config, rerank, train
from dualenc_jax.errors import UserError
from dualenc_jax.generation import given_queries
from dualenc_jax.interop import model_dirs
from dualenc_jax.recipes import Recipe, runner, Stage
from dualenc_jax.run.experiment import Experiment


def check_line(line: Sequence[str], coming: Collection[str]) -> None:
  """Refuses what a command would before any stage runs, but what is coming."""
  command, rest = cli.split(line)
  if command not in cli.COMMANDS:
    raise UserError(cli.no_command(command))
  module = importlib.import_module(cli.module_name(command))
  parser = module.make_parser()
  takes_gin = parser.get_default('gin_search_paths') is not None
  parse = functools.partial(config.parse_args, parser)
  args = (parse if takes_gin else parser.parse_args)(rest)
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
            given_queries.check(given[stage.name, output], corpus)


def check_training(
    recipe: Recipe, given: runner.Given, lines: Mapping[str, Sequence[str]],
    coming: Mapping[str, Stage], args: argparse.Namespace,
    macros: Mapping[str, Mapping[str, str]],
) -> Iterator[str]:
  """Yields what will be trained and how long, as far as that is known yet.

  A config that cannot be built is refused before any stage runs.
  """
  paths = [f'--gin_search_paths={path}' for path in args.gin_search_paths]
  for stage in recipe.stages:
    outputs = {(stage.name, output) for output in stage.outputs}
    is_given = outputs and outputs <= given.keys()
    if stage.command != 'train' or stage.name not in lines or is_given:
      continue
    line = [*lines[stage.name][1:], *paths]
    asked = config.parse_args(train.make_parser(), line)
    if not coming.keys().isdisjoint(asked.gin_file):
      continue
    try:
      experiment = train.build(asked)
      _check_codes(experiment, coming)
      objective: Any = experiment.objective
      teacher = getattr(objective, 'teacher', None)
      if teacher is not None and teacher not in coming:
        objective.check_teacher(experiment.tokenizer.vocabulary)
    except UserError as e:
      # What is not there yet is no error.
      if not any(path in str(e) for path in coming):
        raise of_stage(stage.name, e, macros) from e
    else:
      steps, size = experiment.steps, experiment.batch_size
      rate = experiment.optimizer.describe(steps)
      yield f'{stage.name}: {steps:,} steps of {size:,} examples, {rate}.'


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
    if name.upper() != macro and (refusal is None or word in refusal):
      shown.append(f'{word} is --gin.{macro}')
  return f' In the recipe its {", ".join(shown)}.' if shown else ''


def of_stage(
    name: str, error: UserError, macros: Mapping[str, Mapping[str, str]]
) -> UserError:
  """An error of a stage, with the macros of the flags that it names."""
  more = hint(macros[name], str(error))
  return UserError(f'Stage {name}: {error}{more}')
