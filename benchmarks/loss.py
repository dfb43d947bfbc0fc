"""Times the loss and its gradient; see benchmarks/README.md.

Dense and ring, and sentence-transformers' MultipleNegativesRankingLoss and its
Cached form (st, st_cached), where --peer_python or this Python has them. Every
side is a process of its own, and they take turns in every round.
"""

import argparse
import json
import pathlib
import sys
from typing import Any

import alternate
import loss_work
import sides

HERE = pathlib.Path(__file__).parent
MAX_CALLS = 50
_HEADER = (
    'B | side | ms | core ms | executed, of the ceiling | times the floor'
    ' | the same by cores | compiled plan | peak | cores busy elsewhere'
)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument(
      '--batches',
      type=int,
      nargs='+',
      default=[2**i for i in range(10, 18)],
      help='B of each size, in ascending order',
  )
  parser.add_argument(
      '--sides',
      nargs='+',
      choices=loss_work.EXECUTED,
      default=list(loss_work.EXECUTED),
  )
  parser.add_argument('--peer_python', metavar='FILE')
  parser.add_argument('--rounds', type=int, default=3)
  parser.add_argument(
      '--min_seconds', type=float, default=0.5, help='of a turn, about'
  )
  parser.add_argument(
      '--limit_gib',
      type=float,
      help='a side that needs more is left out; default 80%% of what is free',
  )
  parser.add_argument(
      '--precisions',
      action='store_true',
      help='compare precisions of the products in the ring instead',
  )
  parser.add_argument('--json', action='store_true', help='print JSON only')
  loss_work.add_flags(parser)
  args = parser.parse_args()
  if args.batches != sorted(args.batches):
    parser.error('--batches must ascend: a side knows its largest peak only')
  if args.precisions:
    import loss_precisions  # And with it JAX.

    result = loss_precisions.compare(args)
  else:
    result = compare(args)
  print(json.dumps({'flags': vars(args), **result}))


def compare(args: argparse.Namespace) -> dict[str, Any]:
  """Measures all sides at all sizes and prints a table.

  Returns:
    ceiling: best rates of a large product, of whichever library is faster.
    sides: what runs there, by name.
    results: a list, one for each size and side.
  """
  running, described, ceiling = sides.start(_commands(args))
  if not args.json:
    rates = {key: f'{rate / 1e9:.0f}' for key, rate in ceiling.items()}
    print(
        f'{json.dumps(described)}\n'
        f'ceiling {rates["flops_per_second"]} GFLOP/s,'
        f' {rates["flops_per_core_second"]} a core\n\n'
        + sides.table(_HEADER, []),
    )
  results = []
  for batch in args.batches:
    found = _one_size(args, batch, running)
    for name, figures in found.items():
      if 'seconds' in figures:
        _add_shares(args, figures, ceiling)
      else:
        # What does not fit will not at a larger size.
        running.pop(name).close()
      if not args.json:
        print(_row(figures), flush=True)
    results += found.values()
  for side in running.values():
    side.close()
  return {'ceiling': ceiling, 'sides': described, 'results': results}


def _commands(args: argparse.Namespace) -> dict[str, list[str]]:
  """What runs each side."""
  names = ('loss', 'dim', 'temperature', 'mini_batch', 'no_mask', 'tile')
  shared = sides.flags(args, names)
  ours = [sys.executable, str(HERE / 'loss_ours.py'), *shared]
  commands = {
      name: [*ours, f'--implementation={name}'] for name in ('dense', 'ring')
  }
  peer_python = alternate.peer_python(args.peer_python)
  if peer_python and args.loss == 'softmax':
    peer = [peer_python, str(HERE / 'loss_peer.py'), *shared]
    commands |= {'st': peer, 'st_cached': [*peer, '--cached']}
  return {name: commands[name] for name in args.sides if name in commands}


def _one_size(
    args: argparse.Namespace, batch: int, running: dict[str, sides.Side]
) -> dict[str, dict[str, Any]]:
  """Figures of each side, or why there are none."""
  limit = args.limit_gib and args.limit_gib * 2**30
  found = {name: {'batch': batch, 'side': name} for name in running}
  rounds = {}

  def ask(name, *order):
    try:
      return running[name].ask(*order)
    except sides.SideError as e:
      found[name]['left_out'] = str(e)
      rounds.pop(name, None)
      return None

  for name in running:
    if prepared := ask(name, 'prepare', batch, limit):
      calls = int(args.min_seconds / prepared.pop('seconds'))
      rounds[name] = []
      found[name] |= prepared | {'calls': min(max(calls, 1), MAX_CALLS)}
  for _ in range(args.rounds):
    for name in list(rounds):
      if times := ask(name, 'time', found[name]['calls']):
        rounds[name].append(times)
  for name, turns in list(rounds.items()):
    found[name] |= {'rounds': turns, **sides.medians(turns)}
    found[name]['peak_bytes'] = ask(name, 'peak_bytes')
    ask(name, 'release')
  values = [found[name]['value'] for name in rounds]
  if values and max(values) > min(values) * 1.0001:
    raise ValueError(f'The sides do not compute the same loss: {found}')
  return found


def _add_shares(
    args: argparse.Namespace, figures: dict[str, Any], ceiling: dict[str, float]
) -> None:
  """Adds what the figures mean beside the ceiling."""
  product = loss_work.product_flops(figures['batch'], args.dim)
  needed = loss_work.NEEDED[args.loss] * product
  executed = loss_work.EXECUTED[figures['side']][args.loss] * product
  seconds, cores = figures['seconds'], figures['core_seconds']
  rate, core_rate = (
      ceiling[key] for key in ('flops_per_second', 'flops_per_core_second')
  )
  figures |= {
      'needed_flops': needed,
      'executed_flops': executed,
      'executed_share': executed / seconds / rate,
      'times_the_floor': seconds * rate / needed,
      'times_the_floor_by_cores': cores * core_rate / needed,
  }


def _row(figures: dict[str, Any]) -> str:
  """A line of the table."""
  f = figures
  start = f'| {f["batch"]} | {f["side"]} |'
  if 'seconds' not in f:
    return f'{start} left out: {f["left_out"]} |'
  return (
      f'{start} {f["seconds"] * 1e3:.1f} | {f["core_seconds"] * 1e3:.1f}'
      f' | {f["executed_share"]:.0%} | {f["times_the_floor"]:.2f}'
      f' | {f["times_the_floor_by_cores"]:.2f}'
      f' | {sides.mib(f.get("plan_bytes"))} | {sides.mib(f["peak_bytes"])}'
      f' | {f["cores_busy_elsewhere"]:.1f} |'
  )


if __name__ == '__main__':
  main()
