"""Batches of texts that requests bring at the same time, for one thread.

JAX computes in one thread, and a batch of texts costs little more than one
text. While the thread computes a batch, whatever comes waits for the next one.
"""

import asyncio
import collections
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from concurrent import futures
import contextlib
import time
from typing import Any

# Seconds that the first text waits for others, when nothing is computed.
_WAIT = 0.002


class Full(Exception):
  """Too many texts wait; those of this request are refused."""


class Batcher:
  """Runs `run(job, texts)` on texts of one job at a time, in one thread.

  Jobs take turns, so that a request of many texts does not hold up others.

  Attributes:
    waiting: texts that wait.
  """

  def __init__(
      self, run: Callable[[Any, Sequence[str]], Sequence[Any]],
      most: Callable[[Any], int], room: int = 2**13,
      observe: Callable[[int, float], None] = lambda texts, seconds: None,
  ):
    """Takes what is run; `working` starts the thread.

    Args:
      run: (job, n texts) -> n results.
      most: job -> most texts of a batch.
      room: most texts that wait.
      observe: is called with the texts and the seconds of each batch.
    """
    self._run, self._most, self._observe = run, most, observe
    self._room = room
    self._jobs: dict[Hashable, collections.deque[Any]] = {}
    self.waiting = 0

  async def submit(self, job: Hashable, texts: Sequence[str]) -> list[Any]:
    """The results of some texts, in their order.

    Raises:
      Full: there is no room for all of them.
      Exception: whatever `run` has raised for the batch of one of them.
    """
    if self.waiting + len(texts) > self._room:
      raise Full(f'{self.waiting} texts wait')
    loop = asyncio.get_running_loop()
    answers = [loop.create_future() for _ in texts]
    self._jobs.setdefault(job, collections.deque()).extend(zip(texts, answers))
    self.waiting += len(texts)
    self._came.set()
    return await asyncio.gather(*answers)

  @contextlib.asynccontextmanager
  async def working(self) -> AsyncIterator[None]:
    """A context in which batches are computed."""
    self._came = asyncio.Event()  # It belongs to the loop that runs.
    with futures.ThreadPoolExecutor(1, 'batches') as thread:
      work = asyncio.create_task(self._work(thread))
      try:
        yield
      finally:
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
          await work

  async def _work(self, thread: futures.Executor) -> None:
    while True:
      await self._came.wait()
      await asyncio.sleep(_WAIT)
      while self._jobs:
        await self._next_batch(thread)
      self._came.clear()

  async def _next_batch(self, thread: futures.Executor) -> None:
    job = next(iter(self._jobs))
    queue = self._jobs.pop(job)
    taken = [queue.popleft() for _ in range(min(len(queue), self._most(job)))]
    if queue:
      self._jobs[job] = queue  # Behind all others.
    self.waiting -= len(taken)
    # Nobody waits for the answers to a request that was cancelled.
    batch = [(text, answer) for text, answer in taken if not answer.done()]
    if not batch:
      return
    start = time.perf_counter()
    loop = asyncio.get_running_loop()
    results: Sequence[Any] = ()
    error: BaseException | None = None
    try:
      texts = [text for text, _ in batch]
      results = await loop.run_in_executor(thread, self._run, job, texts)
    except Exception as e:
      error = e
    self._observe(len(batch), time.perf_counter() - start)
    for place, (_, answer) in enumerate(batch):
      if answer.done():
        continue
      if error is None:
        answer.set_result(results[place])
      else:
        answer.set_exception(error)
