"""Forecasts as lines of text."""

from collections.abc import Iterator

from dualenc_jax.forecast import compile_cache
from dualenc_jax.forecast.encode import Encoding, Real
from dualenc_jax.forecast.program import Forecast
from dualenc_jax.forecast.search import Searched
from dualenc_jax.forecast.slices import Slice
from dualenc_jax.forecast.work import Work


def step(found: Forecast, on: Slice, work: Work | None) -> Iterator[str]:
  """A train step on a slice; `work` is the cost of the whole batch."""
  yield from _time('Step', found, on)
  if work is not None and found.program.cycles:
    yield _products(work, _seconds(found, on), on)
  yield from _collectives(found, 'a step')


def encoding(found: Encoding, real: Real, on: Slice) -> Iterator[str]:
  """A step of encoding passages, and real passages."""
  rows, length = found.rows, found.length
  yield from _time(
      f'Encoding {rows} passages of {length} tokens a device', found.forecast,
      on,
  )
  seconds = _seconds(found.forecast, on)
  if seconds:
    yield (
        f'Passages of {length} tokens a second:'
        f' {found.work.slots / length / seconds:,.0f}.'
    )
    yield _products(found.work, seconds, on)
    slot = seconds / (rows * length)
    total = slot * real.device_slots
    mean, rate = real.work.tokens / real.passages, real.passages / total
    yield (
        f'Passages like those of the training data, of {mean:,.0f} tokens on'
        f' average, a second: {rate:,.0f}, if a slot takes the same in shorter'
        ' rows.'
    )
    yield _products(real.work, total, on)
  yield from _collectives(found.forecast, 'such a step')


def search(found: Searched, on: Slice) -> Iterator[str]:
  """A block of exact search."""
  yield from _time(
      f'Searching a block of {found.rows:,} passages a device for the'
      f' {found.k:,} best of {found.queries:,} queries', found.forecast, on,
  )
  seconds = _seconds(found.forecast, on)
  passages = found.rows * len(on.devices)
  if seconds:
    yield (
        f'Products: {found.flops / 1e12:,.2f} TFLOP,'
        f' {found.flops / _peak(seconds, on):.1%} of what the slice can do in'
        ' that time (MFU); each of float32 is six of bfloat16.'
    )
    yield (
        f'A million passages by {found.queries:,} queries:'
        f' {seconds * 1e6 / passages * 1e3:,.1f} ms, once they are on the'
        f' devices, where {found.resident:,} can stay.'
    )
  yield from _collectives(found.forecast, 'a block')


def _seconds(found: Forecast, on: Slice) -> float:
  return sum(found.program.seconds(on.generation).values())


def _peak(seconds: float, on: Slice) -> float:
  return seconds * on.generation.flops * len(on.devices)


def _time(what: str, found: Forecast, on: Slice) -> Iterator[str]:
  program = found.program
  seconds = program.seconds(on.generation)
  total = sum(seconds.values())
  if seconds:
    yield (
        f'{what} on {on.name}, as {on.compiler} expects it:'
        f' {total * 1e3:,.1f} ms. Waiting is an estimate, by the bytes and the'
        ' wires.'
    )
  else:
    yield (
        f'{what} on {on.name}, as {on.compiler} compiles it, which reports'
        ' no cycles. A GPU may take other kernels, and so other memory.'
    )
  if program.is_kept:
    yield (
        'This is of an earlier compile, kept in'
        f' {compile_cache.folder()}, which may be deleted.'
    )
  if program.uncounted and seconds:
    sizes = ', '.join(
        f'{kind}s of {size / 2**20:,.1f} MiB'
        for kind, size in sorted(program.uncounted.items())
    )
    yield f'It reports no cycles of {sizes}: they are not counted.'
  if found.layers is not None:
    yield (
        f'Encoders were compiled with {found.layers} layers and'
        f' {found.layers - 1}; the others are taken to cost their difference.'
        ' --whole compiles all.'
    )
  if program.kernels:
    yield (
        'Cycles of the kernels are of their own schedules, compiled alone:'
        f' {", ".join(sorted(program.kernels))}.'
    )
  if program.unknown:
    yield (
        'Cycles of these kernels are not known and not counted:'
        f' {", ".join(sorted(program.unknown))}.'
    )
  for part, each in sorted(seconds.items(), key=lambda x: -x[1]):
    yield f'  {part:<44} {each * 1e3:>9,.2f} ms {each / total:>6.1%}'


def _products(work: Work, seconds: float, on: Slice) -> str:
  peak = _peak(seconds, on)
  return (
      f'Products of {work.tokens:,} tokens in {work.slots:,} slots:'
      f' {work.flops / 1e12:,.2f} TFLOP, {work.flops / peak:.1%} of what the'
      ' slice can do in that time (MFU), and with padding'
      f' {work.slot_flops / peak:.1%}.'
  )


def _collectives(found: Forecast, of: str) -> Iterator[str]:
  sent_by_kind = found.program.sent
  if sent_by_kind:
    yield f'Collectives of a device in {of}:'
  for kind, sent in sorted(sent_by_kind.items()):
    size = sent.bytes / 2**20
    line = f'  {kind:<22} {sent.times:>6,.0f} times {size:>10,.2f} MiB'
    if found.program.cycles:
      alone = (
          f'{sent.alone / 2**20:,.2f} MiB of it with nothing beside it'
          if sent.alone
          else 'all of it beside products'
      )
      line += f', {alone}; {sent.exposed * 1e3:,.2f} ms waited for'
    yield line
