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
from collections.abc import Sequence
import functools
import os
import pathlib
import shlex
import signal
import subprocess
import sys
from typing import Any

import jax

from dualenc_jax.cli import config, flags, recipe_checks as checks, runtime
from dualenc_jax.pipelines.recipes import Recipe, runner, sweep
from dualenc_jax.training import stopping
from dualenc_jax.utils import folder_lock
from dualenc_jax.utils.errors import expect, INTERRUPTED, RUN_AGAIN, UserError
from dualenc_jax.utils.suggest import did_you_mean


def main(argv: Sequence[str] | None = None) -> None:
  args = config.parse_args(make_parser(), argv)
  runtime.start_logging()
  # The accelerators are for the processes that compute.
  jax.config.update('jax_platforms', 'cpu')
  if not args.gin_file:
    shipped = [f for f in config.shipped_files() if f.startswith('recipes/')]
    raise UserError(f'Give --gin_file: {", ".join(shipped)}, or your own.')
  config.load(
      args.gin_file, args.gin_bindings, args.gin_search_paths, Recipe.__name__
  )
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
  if args.sweep:
    recipe = _swept(args, args.sweep, args.gin_bindings, kept)
  # What is checked below loads configs of its own.
  macros = {stage.name: checks.macros_by_flag(stage) for stage in recipe.stages}
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
        checks.check_line(line, coming)
      except UserError as e:
        raise checks.of_stage(name, e, macros) from e
  if args.list:
    for name, line in lines.items():
      own_line = f'\ndualenc {shlex.join(line)}'
      print(f'# {name}{": given" if name in kept else own_line}')
    return
  checks.check_queries(recipe, given, lines)
  for text in checks.check_stages(
      recipe, given, lines, coming, args, macros
  ):
    print(text, flush=True)
  done: list[runner.Done] = []
  width = max(map(len, macros)) + 2
  with folder_lock.lock_folder(work_dir, 'runs a recipe', 'another --work_dir'):
    execute = functools.partial(_execute, args.gin_search_paths)
    try:
      for each in runner.run(recipe, work_dir, execute, given, args.until):
        done.append(each)
        print(_line(each, width), flush=True)
    except runner.Failed as e:
      more = checks.hint(macros[recipe.stages[len(done)].name])
      raise UserError(f'{e}{more}') from e
  total = runner.Done('', '', sum(d.seconds or 0.0 for d in done))
  if any(each.state == runner.RAN for each in done):
    print('\n'.join(_line(each, width) for each in done))
  print(_line(total, width))


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


def _sweep(text: str) -> tuple[str, Sequence[str]]:
  name, equals, values = text.partition('=')
  if not (name and equals and values):
    raise argparse.ArgumentTypeError(
        f'is {text!r}; expected NAME=VALUE,VALUE, such as QUERY_LAYERS=1,2,4'
    )
  return name, flags.listed(values)


def _swept(
    args: argparse.Namespace, sweeps: Sequence[tuple[str, Sequence[str]]],
    bindings: Sequence[str], kept: Sequence[str],
) -> Recipe:
  """The recipe of bindings, with all values of the macros of sweeps."""
  if not sweeps:
    config.load(args.gin_file, bindings, args.gin_search_paths)
    return config.build(Recipe)
  *others, (macro, values) = sweeps
  try:
    found = {
        value: _swept(
            args, others,
            [*bindings, config.binding(f'--gin.{macro}={value}')], kept,
        )
        for value in values
    }
  except UserError as e:
    raise UserError(f'--sweep={macro}: {e}') from e
  return sweep(macro, found, kept)


def _given(args: argparse.Namespace, recipe: Recipe) -> runner.Given:
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
    child = subprocess.Popen(
        [sys.executable, '-m', 'dualenc_jax', *argv],
        env={**os.environ, runtime.STAGE: '1'},
    )
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
