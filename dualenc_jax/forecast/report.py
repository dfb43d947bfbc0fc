"""A forecast as lines."""

from collections.abc import Iterator

from dualenc_jax.forecast.slices import Slice
from dualenc_jax.forecast.step import Forecast
from dualenc_jax.forecast.work import Work


def describe(
    found: Forecast, slice_: Slice, work: Work | None
) -> Iterator[str]:
  """What the compiler expects of a step on a slice.

  Args:
    found: of one device.
    slice_: whose.
    work: of the whole batch, where it is known.
  """
  generation = slice_.generation
  seconds = {
      part: cycles / generation.clock for part, cycles in found.cycles.items()
  }
  if waited := sum(sent.exposed for sent in found.sent.values()):
    seconds['waiting for collectives'] = waited
  total = sum(seconds.values())
  yield (
      f'Step on {slice_.name}, as {slice_.compiler} expects it:'
      f' {total * 1e3:,.1f} ms, and what it says nothing of: gathers, scatters,'
      ' sorts. Waiting is an estimate, by the bytes and the wires.'
  )
  if found.layers is not None:
    yield (
        f'Encoders were compiled with {found.layers} layers and'
        f' {found.layers - 1}; the others are taken to cost their difference.'
        ' --whole compiles all.'
    )
  if found.kernels:
    yield (
        'Cycles of the kernels are of their own schedules, compiled alone:'
        f' {", ".join(sorted(found.kernels))}.'
    )
  if found.unknown:
    yield (
        'Cycles of these kernels are not known and not counted:'
        f' {", ".join(sorted(found.unknown))}.'
    )
  for part, each in sorted(seconds.items(), key=lambda x: -x[1]):
    yield f'  {part:<44} {each * 1e3:>9,.2f} ms {each / total:>6.1%}'
  if work is not None and found.cycles:
    peak = total * generation.flops * len(slice_.devices)
    yield (
        f'Products of {work.tokens:,} tokens in {work.slots:,} slots:'
        f' {work.flops / 1e12:,.2f} TFLOP, {work.flops / peak:.1%} of what the'
        ' slice can do in that time (MFU), and with padding'
        f' {work.slot_flops / peak:.1%}.'
    )
  if found.sent:
    yield 'Collectives of a device in a step:'
  for kind, sent in sorted(found.sent.items()):
    alone = (
        f'{sent.alone / 2**20:,.2f} MiB of it with nothing beside it'
        if sent.alone
        else 'all of it beside products'
    )
    yield (
        f'  {kind:<22} {sent.times:>6,.0f} times {sent.bytes / 2**20:>10,.2f}'
        f' MiB, {alone}; {sent.exposed * 1e3:,.2f} ms waited for'
    )
