"""The asynchronous half of a feed: `async for message in feed`."""

import asyncio


async def next_update(feed):
    """The next message of `feed`. A thread waits for 50 ms at most, so that a task ends soon after
    it is cancelled."""
    if not feed._wait(0.0):
        loop = asyncio.get_running_loop()
        while not await loop.run_in_executor(None, feed._wait, 0.05):
            pass
    try:
        return next(feed)
    except StopIteration:
        raise StopAsyncIteration from None
