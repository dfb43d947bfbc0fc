"""Forecasts as lines of text."""

from collections.abc import Iterator

from dualenc_jax.forecast.encode import Encoding
from dualenc_jax.forecast.program import Forecast
from dualenc_jax.forecast.search import Searched
from dualenc_jax.forecast.slices import Slice
from dualenc_jax.forecast.work import Work


def step(found: Forecast, on: Slice, work: Work | None) -> Iterator[str]:
  """A train step on a slice; `work` is the cost of the whole batch."""
  yield from _compiled('The train step', found, on)
  if work is not None:
    yield _products(work, on)
  yield from _collectives(found)


def encoding(found: Encoding, on: Slice) -> Iterator[str]:
  """A step of encoding passages."""
  rows, length = found.rows, found.length
  what = f'Encoding {rows} passages of {length} tokens a device'
  yield from _compiled(what, found.forecast, on)
  yield _products(found.work, on)
  yield from _collectives(found.forecast)


def search(found: Searched, on: Slice) -> Iterator[str]:
  """A block of exact search."""
  what = (
      f'Searching a block of {found.rows:,} passages a device for the'
      f' {found.k:,} best of {found.queries:,} queries'
  )
  yield from _compiled(what, found.forecast, on)
  yield (
      f'Products: {found.flops / 1e12:,.2f} TFLOP; each of float32 is six of'
      f' bfloat16, so {_least(6 * found.flops, on)}. {found.resident:,}'
      ' passages can stay on the devices.'
  )
  yield from _collectives(found.forecast)


def _compiled(what: str, found: Forecast, on: Slice) -> Iterator[str]:
  yield f'{what} on {on.name}, compiled by {on.compiler}.'
  if not on.generation.dimensions:
    yield 'A real GPU may take other kernels, and so other memory.'
  if found.layers is not None:
    yield (
        f'Encoders were compiled with {found.layers} layers and'
        f' {found.layers - 1}; the others are taken to cost their difference.'
        ' --whole compiles all.'
    )


def _products(work: Work, on: Slice) -> str:
  return (
      f'Products of {work.tokens:,} tokens in {work.slots:,} slots:'
      f' {work.flops / 1e12:,.2f} TFLOP, and with padding'
      f' {work.slot_flops / 1e12:,.2f}: {_least(work.slot_flops, on)}.'
  )


def _least(flops: float, on: Slice) -> str:
  peak = on.generation.flops * len(on.devices)
  return f"at least {1e3 * flops / peak:,.2f} ms at the slice's peak"


def _collectives(found: Forecast) -> Iterator[str]:
  if found.sent:
    yield 'Collectives of a device; what a loop repeats counts once:'
  for kind, (times, size) in sorted(found.sent.items()):
    yield f'  {kind:<22} {times:>6,.0f} {size / 2**20:>14,.2f} MiB'
