"""Runs a recipe: several commands in order, each only if it is out of date.

  dualenc recipe --gin_file=recipes/pair.gin --work_dir=pair
    --gin.TRAIN_FILE=train.jsonl --gin.UNLABELLED=queries.jsonl ...
  dualenc recipe --gin_file=recipes/pair.gin --work_dir=pair ... --list

Each stage has a folder in WORK_DIR. When the same command runs again, a stage
whose flags and inputs are the same is skipped, a killed stage continues, and a
stage whose inputs have changed is made anew; its old folder is kept aside.
--replace puts a file of yours in place of what a stage makes.

SIGTERM, SIGINT and SIGUSR1 are passed on to the running stage, which ends, as
`dualenc train` does, after a checkpoint. The exit status is then 75, after
Ctrl-C 130; if a stage fails, it is that of the stage.
"""

import argparse
from collections.abc import Collection, Iterator, Mapping, Sequence
import functools
import importlib
import pathlib
import shlex
import signal
import subprocess
import sys
from typing import Any

import gin
import jax

from dualenc_jax import compression
from dualenc_jax.commands import cli, config, flags, rerank, runtime, train
from dualenc_jax.errors import expect, INTERRUPTED, RUN_AGAIN, UserError
from dualenc_jax.generation import given_queries
from dualenc_jax.interop import model_dirs
from dualenc_jax.io import files, writer
from dualenc_jax.recipes import Recipe, runner, Stage, sweep
from dualenc_jax.run import stopping
from dualenc_jax.run.experiment import Experiment
from dualenc_jax.suggest import did_you_mean

# Files of the user's by stage and output.
Given = Mapping[tuple[str, str], pathlib.Path]


def main(argv: Sequence[str] | None = None) -> None:
  args = config.parse_args(make_parser(), argv)
  runtime.start_logging()
  # The accelerators are for the processes that compute.
  jax.config.update('jax_platforms', 'cpu')
  if not args.gin_file:
    shipped = [f for f in config.shipped_files() if f.startswith('recipes/')]
    raise UserError(f'Give --gin_file: {", ".join(shipped)}, or your own.')
  config.load(args.gin_file, args.gin_bindings, args.gin_search_paths)
  recipe = config.build(Recipe)
  config.check_effect(args.gin_bindings, macros=True)
  replaced = {text.partition('=')[0] for text in args.replace}
  kept = [
      stage.name
      for stage in recipe.stages
      if stage.name in replaced
      or stage.outputs
      and {f'{stage.name}.{output}' for output in stage.outputs} <= replaced
  ]
  for macro, values in args.sweep:
    recipe = sweep(recipe, macro, values, kept)
  # What is checked below loads configs of its own.
  macros = {stage.name: macros_by_flag(stage) for stage in recipe.stages}
  expect(
      args.until is None or args.until in macros, '--until', args.until,
      f'one of {", ".join(macros)}',
  )
  given, work_dir = _given(args, recipe), pathlib.Path(args.work_dir)
  # The stages that make what is not given, by the paths of that.
  coming = {
      str(work_dir / stage.name / path): recipe.with_flags(stage)
      for stage in recipe.stages
      for output, path in stage.outputs.items()
      if (stage.name, output) not in given
  }
  lines = dict(runner.command_lines(recipe, work_dir, given, args.until))
  for name, line in lines.items():
    if name not in kept:
      try:
        _check(line, coming)
      except UserError as e:
        raise _of_stage(name, e, macros) from e
  if args.list:
    for name, line in lines.items():
      own_line = f'\ndualenc {shlex.join(line)}'
      print(f'# {name}{": given" if name in kept else own_line}')
    return
  _check_queries(recipe, given, lines)
  training = _check_training(recipe, given, lines, coming, args, macros)
  for text in training:
    print(text, flush=True)
  files.make_folder(work_dir, 'another --work_dir')
  done: list[runner.Done] = []
  width = max(map(len, macros)) + 2
  with writer.alone(work_dir, 'runs a recipe', 'another --work_dir'):
    execute = functools.partial(_execute, args.gin_search_paths)
    try:
      for each in runner.run(recipe, work_dir, execute, given, args.until):
        done.append(each)
        print(_line(each, width), flush=True)
    except runner.Failed as e:
      more = _hint(macros[recipe.stages[len(done)].name])
      raise UserError(f'{e}{more}') from e
  total = runner.Done('', '', sum(d.seconds or 0.0 for d in done))
  print('\n'.join(_line(each, width) for each in (*done, total)))


def make_parser() -> flags.Parser:
  parser = config.make_parser('recipe', __doc__)
  add = parser.add_argument
  add('--work_dir', required=True, help='folder of the stages')
  add_shared_flags(parser)
  add('--sweep', action='append', default=[], metavar='NAME=VALUE,VALUE',
      type=_sweep,
      help='run the stages that use the macro NAME, and those that depend on'
      ' them, once for each value; repeatable')
  add('--until', metavar='STAGE',
      help='last stage to run; stages that only later ones need are left out')
  return parser


def add_shared_flags(parser: flags.Parser) -> None:
  """Adds --replace and --list."""
  add = parser.add_argument
  add('--replace', action='append', default=[], metavar='STAGE[.OUTPUT]=FILE',
      help='use your file or folder in place of what a stage makes;'
      ' repeatable')
  add('--list', action='store_true',
      help='print the commands without running them')


def _check(line: Sequence[str], coming: Collection[str]) -> None:
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


def _check_queries(
    recipe: Recipe, given: Given, lines: Mapping[str, Sequence[str]]
) -> None:
  """Refuses queries that are given and are of another corpus."""
  for stage in map(recipe.with_flags, recipe.stages):
    if stage.command == 'generate' and stage.name in lines:
      for output, path in stage.outputs.items():
        if path == '.' and (stage.name, output) in given:
          for corpus in stage.values('corpus'):
            given_queries.check(given[stage.name, output], corpus)


def _check_training(
    recipe: Recipe, given: Given, lines: Mapping[str, Sequence[str]],
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
        raise _of_stage(stage.name, e, macros) from e
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


def _sweep(text: str) -> tuple[str, Sequence[str]]:
  name, equals, values = text.partition('=')
  if not (name and equals and values):
    raise argparse.ArgumentTypeError(
        f'is {text!r}; expected NAME=VALUE,VALUE, such as QUERY_LAYERS=1,2,4'
    )
  return name, flags.listed(values)


def _given(args: argparse.Namespace, recipe: Recipe) -> Given:
  outputs = {stage.name: stage.outputs for stage in recipe.stages}
  given: dict[tuple[str, str], pathlib.Path] = {}
  for text in args.replace:
    name, equals, path = text.partition('=')
    stage, dot, output = name.partition('.')
    expect(
        equals and stage and path and (output or not dot), '--replace', text,
        'STAGE.OUTPUT=FILE, such as labels.pairs=mine.jsonl, or STAGE=FOLDER'
        ' for all outputs of a stage',
    )
    if not dot and stage not in outputs:
      raise UserError(
          f'--replace={text}: there is no stage'
          f' {stage!r}.{did_you_mean(stage, outputs)}'
      )
    place = flags.path(path)
    given |= {(stage, output): place} if dot else {
        (stage, o): place / part for o, part in outputs[stage].items()
    }
  return given


def _execute(search_paths: Sequence[str], argv: Sequence[str]) -> int:
  """Runs a command in a process of its own, which gives its memory back.

  Where this process gets a signal, the command does, and both end.
  """
  argv = [*argv, *(f'--gin_search_paths={path}' for path in search_paths)]
  print(f'$ dualenc {shlex.join(argv)}', flush=True)
  signals: list[int] = []

  def pass_on(number: int, frame: Any) -> None:
    del frame
    signals.append(number)
    if child is not None:
      child.send_signal(number)

  child = None
  before = {each: signal.signal(each, pass_on) for each in stopping.SIGNALS}
  try:
    child = subprocess.Popen([sys.executable, '-m', 'dualenc_jax', *argv])
    for number in signals:
      child.send_signal(number)
    status = child.wait()
  finally:
    for each, handler in before.items():
      signal.signal(each, handler)
    if child is not None and child.poll() is None:
      child.terminate()
      child.wait()
  if signals and status <= 0:
    # A stage that waits for no step.
    status = INTERRUPTED if signal.SIGINT in signals else RUN_AGAIN
  if status in (RUN_AGAIN, INTERRUPTED):
    print(
        'Stopped: run the same command again, and the recipe goes on from'
        ' here.',
        file=sys.stderr,
    )
    raise SystemExit(status)
  return status


def _line(done: runner.Done, width: int) -> str:
  shown = ''
  if done.seconds is not None:
    minutes, seconds = divmod(round(done.seconds), 60)
    shown = f'{minutes // 60}:{minutes % 60:02}:{seconds:02}'
  return f'{done.name:<{width}}{done.state:<12}{shown:>10}'


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


def _hint(macros: Mapping[str, str], refusal: str | None = None) -> str:
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


def _of_stage(
    name: str, error: UserError, macros: Mapping[str, Mapping[str, str]]
) -> UserError:
  more = _hint(macros[name], str(error))
  return UserError(f'Stage {name}: {error}{more}')
