"""Runs a recipe: several commands in order, each only if it is out of date.

  dualenc recipe --gin_file=recipes/pair.gin --output_dir=pair
    --gin.TRAIN_FILE=train.jsonl --gin.UNLABELLED=queries.jsonl ...
  dualenc recipe --gin_file=recipes/pair.gin --output_dir=pair ... --list

Each stage has a folder in --output_dir. When the same command runs again, a
stage whose flags and inputs are the same is skipped, a killed stage continues,
and a stage whose inputs have changed is made anew; its old folder is kept
aside.
--replace puts a file of yours in place of what a stage makes.

SIGTERM, SIGINT and SIGUSR1 are passed on to the running stage, which ends, as
`dualenc train` does, after a checkpoint. The exit status is then 75, after
Ctrl-C 130; if a stage fails, it is that of the stage. With --sweep, or in a
recipe that is a grid, the stages that do not need it run before that; so does a
comparison, which says what is missing.
"""

import argparse
from collections.abc import Collection, Iterator, Sequence
import functools
import importlib
import pathlib
import shlex
import signal
import subprocess
import sys
from typing import Any

import gin

from dualenc_jax.cli import config, flags, main as cli, recipe_macros, runtime
from dualenc_jax.pipelines.recipes import Recipe, runner, sweep
from dualenc_jax.training import stopping
from dualenc_jax.utils import folder_lock
from dualenc_jax.utils.errors import (
  did_you_mean,
  expect,
  INTERRUPTED,
  RUN_AGAIN,
  UserError,
)


def main(argv: Sequence[str] | None = None) -> None:
  args = config.parse_args(make_parser(), argv)
  runtime.start_logging()
  if not args.gin_file:
    shipped = [f for f in config.shipped_files() if f.startswith('recipes/')]
    raise UserError(f'Give --gin_file: {", ".join(shipped)}, or your own.')
  recipe, is_grid = _swept(args)
  until = [] if args.until is None else recipe.copies.get(
      args.until, [args.until]
  )
  expect(
      args.until is None or until and {*until} <= recipe.stages.keys(),
      '--until', args.until,
      f'one of {", ".join(n for n, x in recipe.copies.items() if x)}',
  )
  given, work_dir = _given(args, recipe), pathlib.Path(args.output_dir)
  lines = runner.command_lines(recipe, work_dir, given, until)
  for name, line in lines.items():
    try:
      check_line(line)
    except UserError as e:
      raise UserError(f'Stage {name}: {e}') from e
  if args.list:
    states = runner.idle(recipe, given, until)
    for name in recipe.stages:
      if name in lines:
        print(f'# {name}\ndualenc {shlex.join(lines[name])}')
      elif states[name] == runner.GIVEN:
        print(f'# {name}: given')
    return
  done: list[runner.Done] = []
  width = max(map(len, recipe.stages)) + 2
  another = 'another --output_dir'
  failure = None
  with folder_lock.lock_folder(work_dir, 'runs a recipe', another):
    execute = functools.partial(_execute, args.gin_search_paths)
    try:
      for each in runner.run(recipe, work_dir, execute, given, until, is_grid):
        done.append(each)
        print(_line(each, width), flush=True)
    except runner.StageFailed as e:
      failure = e
  if any(each.state in (runner.RAN, runner.FAILED) for each in done):
    print('\n'.join(_line(each, width) for each in done))
  total = runner.Done('', '', sum(d.seconds or 0.0 for d in done))
  print(_line(total, width), flush=True)
  if failure is not None:
    print(f'error: {failure}', file=sys.stderr)
    for text in _explain_macros(args, recipe, failure.stages):
      print(text, file=sys.stderr)
    status = failure.status
    raise SystemExit(status if status > 0 else 128 - status)  # By a signal.


def check_line(line: Sequence[str]) -> None:
  """Raises UserError unless a command line of `dualenc` can be parsed."""
  command, rest = cli.split(line)
  if command not in cli.COMMANDS:
    raise UserError(cli.no_command(command))
  parser = importlib.import_module(cli.module_name(command)).make_parser()
  if parser.get_default('gin_file') is None:
    parser.parse_args(rest)
  else:
    config.parse_args(parser, rest)


def make_parser() -> flags.Parser:
  parser = config.make_parser('recipe', __doc__)
  add = parser.add_argument
  add('--output_dir', required=True, help='folder of the stages')
  add('--replace', action='append', default=[], metavar='STAGE[.OUTPUT]=FILE',
      help='use your file or folder in place of what a stage makes;'
      ' repeatable')
  add('--list', action='store_true',
      help='print the commands without running them')
  add('--sweep', action='append', default=[], metavar='NAME=VALUE,VALUE',
      type=_sweep,
      help='run the stages that use the macro NAME, and those that depend on'
      ' them, once for each value, in place of the values of the recipe, if it'
      ' has some; repeatable')
  add('--until', metavar='STAGE',
      help='last stage to run; stages that only later ones need are left out')
  return parser


def _sweep(text: str) -> tuple[str, Sequence[str]]:
  name, equals, values = text.partition('=')
  if not (name and equals and values):
    raise argparse.ArgumentTypeError(
        f'is {text!r}; expected NAME=VALUE,VALUE, such as QUERY_LAYERS=1,2,4'
    )
  return name, flags.listed(values)


def _swept(args: argparse.Namespace) -> tuple[Recipe, bool]:
  """The recipe with the values of all sweeps, and whether there are any."""
  recipe = _build(args, args.gin_bindings)
  config.check_effect(args.gin_bindings, macros=True)
  known, asked = config.macros(), dict(args.sweep)
  if len(asked) < len(args.sweep):
    raise UserError(
        f'--sweep is given for {", ".join(name for name, _ in args.sweep)};'
        ' expected each macro once, with all its values.'
    )
  for name in asked:
    if name not in known | recipe.sweeps.keys():
      near = did_you_mean(name, known | recipe.sweeps.keys())
      raise UserError(f'--sweep={name}: the recipe has no macro {name}.{near}')
  sweeps = {**recipe.sweeps, **asked}
  if not sweeps:
    return recipe, False
  once = runner.idle(recipe, _given(args, recipe, strict=False))
  # One recipe, with places for the values, is built for all of them.
  places = [f"{name} = '{{{name}}}'" for name in sweeps if name in known]
  recipe = _build(args, [*args.gin_bindings, *places])
  return sweep(recipe, sweeps, once), True


def _build(args: argparse.Namespace, bindings: Sequence[str]) -> Recipe:
  config.load(
      args.gin_file, bindings, args.gin_search_paths, is_recipe=True
  )
  return config.build(Recipe)


def _explain_macros(
    args: argparse.Namespace, recipe: Recipe, failed: Collection[str]
) -> Iterator[str]:
  """Returns what the recipe calls the macros that errors of stages name."""
  by_own = recipe_macros.of_stages(gin.config_str())
  macros = sorted({macro for each in by_own.values() for macro in each})
  places = [f"{name} = '{{{name}}}'" for name in macros]
  plain = _build(args, [*args.gin_bindings, *places])
  names = [n for n, each in recipe.copies.items() if {*each} & {*failed}]
  return recipe_macros.explain(plain.stages, names, macros)


def _given(
    args: argparse.Namespace, recipe: Recipe, strict: bool = True
) -> dict[tuple[str, str], pathlib.Path]:
  """The paths of --replace; unless `strict`, of stages of the recipe alone."""
  given: dict[tuple[str, str], pathlib.Path] = {}
  for text in args.replace:
    name, equals, path = text.partition('=')
    stage, dot, output = name.partition('.')
    expect(
        equals and stage and path and (output or not dot), '--replace', text,
        'STAGE=FOLDER or STAGE.OUTPUT=FILE, such as labels.pairs=mine.jsonl',
    )
    place = flags.path(path)
    if stage not in recipe.stages:
      if strict:
        near = did_you_mean(stage, recipe.stages)
        raise UserError(f'--replace={text}: there is no stage {stage!r}.{near}')
    elif dot:
      given[stage, output] = place
    else:
      outputs = recipe.stages[stage].outputs
      given |= {(stage, o): place / part for o, part in outputs.items()}
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
