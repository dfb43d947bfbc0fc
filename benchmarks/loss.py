"""Times the loss and its gradient; see benchmarks/README.md.

Dense and ring, and sentence-transformers' MultipleNegativesRankingLoss and its
Cached form (st, st_cached), where --peer_python or this Python has them. B
pairs of D dims; the loss is the in-batch softmax of both directions, or SamToNe
on both towers, its gradient with respect to the embeddings.
"""

import argparse
import json
import sys
from typing import Any

import harness
from loss_work import EXECUTED, LOSSES, NEEDED, product_flops

_MAX_CALLS = 50
_HEADER = (
    'B | side | ms | core ms | executed, of the ceiling | times the floor'
    ' | the same by cores | compiled plan | peak | cores busy elsewhere'
)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  add = parser.add_argument
  add(
      '--batches',
      type=int,
      nargs='+',
      default=[2**i for i in range(10, 18)],
      help='B of each size, in ascending order',
  )
  add('--sides', nargs='+', choices=EXECUTED, default=list(EXECUTED))
  add('--min_seconds', type=float, default=0.5, help='of a turn, about')
  add(
      '--limit_gib',
      type=float,
      help='a side that needs more is left out; default 80%% of what is free',
  )
  add(
      '--precisions',
      action='store_true',
      help='compare precisions of the products in the ring instead',
  )
  add('--loss', choices=LOSSES, default='softmax')
  add('--dim', type=int, default=768, help='D')
  add('--temperature', type=float, default=0.05)
  add(
      '--no_mask',
      action='store_true',
      help='ours without duplicate masking, which the peers do not do',
  )
  add('--tile', type=int, help="the ring's tile; by default its own choice")
  add(
      '--mini_batch',
      type=int,
      default=1024,
      help="rows of scores that sentence-transformers' Cached loss has at once",
  )
  add('--side', help=argparse.SUPPRESS)
  harness.add_flags(parser, malloc=False)
  args = parser.parse_args()
  if args.side is not None:
    import loss_sides

    harness.serve(loss_sides.make(args))
    return
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
    sides: descriptions by name.
    results: a list, one for each size and side.
  """
  commands = _commands(args)
  first = {name.startswith('st'): name for name in reversed(commands)}
  running, described, ceiling = harness.start(commands, first.values())
  if not args.json:
    rates = {key: f'{rate / 1e9:.0f}' for key, rate in ceiling.items()}
    print(
        f'{json.dumps(described)}\n'
        f'ceiling {rates["flops_per_second"]} GFLOP/s,'
        f' {rates["flops_per_core_second"]} a core\n\n'
        + harness.table(_HEADER, []),
    )
  results: list[harness.Figures] = []
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
  names = ('loss', 'dim', 'temperature', 'mini_batch', 'no_mask', 'tile')
  shared = harness.flags(args, names)
  pythons = {'dense': sys.executable, 'ring': sys.executable}
  peer = harness.peer_python(args.peer_python)
  if peer and args.loss == 'softmax':
    pythons |= {'st': peer, 'st_cached': peer}
  return {
      name: [pythons[name], __file__, *shared, f'--side={name}']
      for name in args.sides
      if name in pythons
  }


def _one_size(
    args: argparse.Namespace, batch: int, running: dict[str, harness.Side]
) -> dict[str, harness.Figures]:
  """Figures of each side, or why it has none."""
  limit = args.limit_gib and args.limit_gib * 2**30
  found = {name: {'batch': batch, 'side': name} for name in running}
  rounds: dict[str, list[harness.Figures]] = {}

  def ask(name, *order):
    try:
      return running[name].ask(*order)
    except harness.SideError as e:
      found[name]['left_out'] = str(e)
      rounds.pop(name, None)
      return None

  for name in running:
    if prepared := ask(name, 'prepare', batch, limit):
      calls = int(args.min_seconds / prepared.pop('seconds'))
      rounds[name] = []
      found[name] |= prepared | {'calls': min(max(calls, 1), _MAX_CALLS)}
  for _ in range(args.rounds):
    for name in list(rounds):
      if times := ask(name, 'time', found[name]['calls']):
        rounds[name].append(times)
  for name, turns in list(rounds.items()):
    found[name] |= {'rounds': turns, **harness.medians(turns)}
    found[name]['peak_bytes'] = ask(name, 'peak_bytes')
    ask(name, 'release')
  values = [found[name]['value'] for name in rounds]
  if values and max(values) > min(values) * 1.0001:
    raise ValueError(f'The sides do not compute the same loss: {found}')
  return found


def _add_shares(
    args: argparse.Namespace,
    figures: harness.Figures,
    ceiling: dict[str, float],
) -> None:
  """Adds the figures beside the ceiling."""
  product = product_flops(figures['batch'], args.dim)
  needed = NEEDED[args.loss] * product
  executed = EXECUTED[figures['side']][args.loss] * product
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


def _row(figures: harness.Figures) -> str:
  f = figures
  start = f'| {f["batch"]} | {f["side"]} |'
  if 'seconds' not in f:
    return f'{start} left out: {f["left_out"]} |'
  return (
      f'{start} {f["seconds"] * 1e3:.1f} | {f["core_seconds"] * 1e3:.1f}'
      f' | {f["executed_share"]:.0%} | {f["times_the_floor"]:.2f}'
      f' | {f["times_the_floor_by_cores"]:.2f}'
      f' | {harness.mib(f.get("plan_bytes"))} | {harness.mib(f["peak_bytes"])}'
      f' | {f["cores_busy_elsewhere"]:.1f} |'
  )


if __name__ == '__main__':
  main()
