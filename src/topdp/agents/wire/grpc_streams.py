"""The two ends of a gRPC call as streams of frames: the one that dialled, and the one that was dialled.

What gRPC raises becomes a ConnectionError, or a LinkEnded where the peer has refused us in words.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from topdp.agents.wire import wire_pb2 as wire
from topdp.agents.wire.handshake import FrameStream
from topdp.agents.wire.link_refusals import LinkEnded, quoted


class DialledStream(FrameStream):
    """The end that dialled."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def read(self) -> wire.Frame | None:
        return _frame(await self._guard(self._call.read()))

    async def write(self, frame: wire.Frame) -> None:
        await self._guard(self._call.write(frame.SerializeToString()))

    async def end(self) -> None:
        await self._guard(self._call.done_writing())
        await self._guard(self._call.code())  # the peer ends the call once it has read that nothing follows

    async def _guard(self, step: Awaitable[Any]) -> Any:
        try:
            return await step
        except aio.AioRpcError as error:
            raise _lost(error.code(), error.details()) from None
        except asyncio.InvalidStateError:
            raise _lost(await self._call.code(), await self._call.details()) from None
        except aio.InternalError as error:
            raise ConnectionError(f"the call ended: {quoted(error)}") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise ConnectionError("the call was cancelled") from None  # by gRPC, not by us


class AcceptedStream(FrameStream):
    """The end that was dialled."""

    def __init__(self, context: Any) -> None:
        self._context = context

    async def read(self) -> wire.Frame | None:
        try:
            return _frame(await self._context.read())
        except (aio.InternalError, aio.UsageError, asyncio.InvalidStateError) as error:
            raise ConnectionError(f"the call ended: {quoted(error)}") from None

    async def write(self, frame: wire.Frame) -> None:
        try:
            await self._context.write(frame.SerializeToString())
        except (aio.InternalError, aio.UsageError, asyncio.InvalidStateError) as error:
            raise ConnectionError(f"the call ended: {quoted(error)}") from None

    async def end(self) -> None:
        """Nothing to do: the call ends with its handler, and all that was written goes before."""


def _frame(data: Any) -> wire.Frame | None:
    if data is aio.EOF:
        return None
    try:
        frame: wire.Frame = wire.Frame.FromString(data)
    except DecodeError:
        raise LinkEnded("garbage", f"expected a frame, got {len(data)} bytes of something else") from None
    return frame


def _lost(code: Any, details: str | None) -> Exception:
    """Why a call of ours ended: the peer's refusal in its words, or the network's."""
    if code == grpc.StatusCode.PERMISSION_DENIED:
        return LinkEnded("refused", f"the peer refused us: {quoted(details)}")
    return ConnectionError(f"{getattr(code, 'name', code)}: {quoted(details)}")
