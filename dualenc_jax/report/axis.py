"""Axes of a chart: round ticks, and positions between 0 and 1."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Axis:
  """A range with ticks; logarithmic if `log`."""

  low: float
  high: float
  ticks: tuple[float, ...]
  log: bool = False

  def position(self, value: float) -> float:
    """Where a value is, 0 at the low end and 1 at the high one."""
    if self.log:
      low, high = math.log(self.low), math.log(self.high)
      return (math.log(value) - low) / (high - low)
    return (value - self.low) / (self.high - self.low)


def linear(low: float, high: float, count: int = 4, fit: bool = False) -> Axis:
  """An axis over [low, high] with about `count` round ticks.

  Args:
    low: the lowest value.
    high: the highest value.
    count: how many intervals between ticks are wished for.
    fit: end the axis at `low` and `high` themselves, not at ticks.
  """
  if low == high:
    room = abs(low) / 2 or 0.5
    low, high = low - room, high + room
  raw = (high - low) / count
  power = 10.0 ** math.floor(math.log10(raw))
  step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
  first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
  if not fit:
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    low, high = first * step, last * step
  return Axis(low, high, tuple(i * step for i in range(first, last + 1)))


def logarithmic(low: float, high: float) -> Axis:
  """An axis over positive values whose ticks are powers of ten."""
  first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
  last = max(last, first + 1)
  stride = math.ceil((last - first) / 5)
  ticks = tuple(10.0**i for i in range(first, last + 1, stride))
  return Axis(10.0**first, 10.0**last, ticks, log=True)


def short(value: float) -> str:
  """A tick's label: '20k' of 20000, '0.3' of 0.1 + 0.2, '5e-4' of 0.0005."""
  for size, letter in ((1e9, 'G'), (1e6, 'M'), (1e3, 'k')):
    if abs(value) >= size:
      return f'{value / size:.6g}{letter}'
  if abs(value) < 1e-12:
    return '0'
  if abs(value) < 1e-3:
    digits, _, power = f'{value:.2e}'.partition('e')
    return f'{float(digits):g}e{int(power)}'
  return f'{value:.6g}'


def precise(value: float) -> str:
  """A value to four digits, whole numbers in full."""
  if abs(value) >= 1000:
    return f'{value:,.0f}'
  return f'{value:.4g}'
