"""gRPC at both ends of a link: its settings, the certificates that TLS accepts, and calls as frame streams.

Both ends take their settings from one manifest, so neither finds the other's pings too frequent. What gRPC
raises becomes a ConnectionError, or a LinkEnded if the peer has refused the link in words.

**Guarantees.** TLS accepts pinned certificates and no others; the `handshake`, which relies on none of this,
proves who is at the other end. Nothing is compressed, and unread data stays bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from topdp.agents.agreement.identity import TLS_HOST_NAME, Identity
from topdp.agents.agreement.identity_card import Card
from topdp.agents.wire import wire_pb2 as wire
from topdp.agents.wire.handshake import FrameStream
from topdp.agents.wire.link_bodies import MAX_FRAME_BYTES
from topdp.agents.wire.link_refusals import LinkEnded, quoted

SERVICE_NAME, METHOD_NAME = "topdp.agents.v1.Link", "Open"
METHOD_PATH = f"/{SERVICE_NAME}/{METHOD_NAME}"


def server(accept: Callable[[Any, Any], Awaitable[None]], idle_timeout: float, streams: int) -> Any:
    """The listening end, without a port yet. `accept` serves one stream at a time; a peer may open
    `streams`.
    """
    wait = _milliseconds(idle_timeout)
    options = [
        *_options(idle_timeout),
        ("grpc.so_reuseport", 0),  # a second agent on our port is an error
        ("grpc.max_concurrent_streams", streams),
        ("grpc.server_handshake_timeout_ms", wait),
        ("grpc.max_connection_idle_ms", 2 * wait),
        ("grpc.http2.min_ping_interval_without_data_ms", wait // 2),
        ("grpc.http2.max_ping_strikes", 2),
    ]
    listener = aio.server(options=options)
    handler = grpc.stream_stream_rpc_method_handler(accept)
    listener.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE_NAME, {METHOD_NAME: handler}),)
    )
    return listener


def server_credentials(identity: Identity, cards: Callable[[], Sequence[Card]]) -> Any:
    """`cards` of those who may dial: read again for every connection, since neighbours renew theirs."""
    own = _own(identity)
    pinned = ""

    def pins() -> Any:
        nonlocal pinned
        certificates = "".join(card.certificate for card in cards())
        if certificates == pinned:
            return None
        pinned = certificates
        return grpc.ssl_server_certificate_configuration([own], certificates.encode("ascii"))

    return grpc.dynamic_ssl_server_credentials(pins(), pins, require_client_authentication=True)


def channel(target: str, card: Card, identity: Identity, idle_timeout: float) -> Any:
    """Open a channel to the agent of `card` at `target`."""
    options = [
        *_options(idle_timeout),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
        ("grpc.ssl_target_name_override", TLS_HOST_NAME),
    ]
    credentials = grpc.ssl_channel_credentials(pins(card), *_own(identity))
    return aio.secure_channel(target, credentials, options=options)


def pins(card: Card) -> bytes:
    """Return what TLS may trust when this agent dials: only the certificate of `card`."""
    return card.certificate.encode("ascii")


def _own(identity: Identity) -> tuple[bytes, bytes]:
    return identity.key_pem(), identity.card.certificate.encode("ascii")


def _options(idle_timeout: float) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
        ("grpc.max_send_message_length", MAX_FRAME_BYTES),
        ("grpc.keepalive_time_ms", _milliseconds(idle_timeout)),
        ("grpc.keepalive_timeout_ms", _milliseconds(idle_timeout)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.bdp_probe", 0),  # a fixed window bounds what a peer sends and we do not read
        ("grpc.http2.lookahead_bytes", MAX_FRAME_BYTES),
        ("grpc.compression_enabled_algorithms_bitset", 1),  # none: no decompression bombs
        ("grpc.enable_retries", 0),
        ("grpc.service_config_disable_resolution", 1),
    ]


def _milliseconds(seconds: float) -> int:
    return max(1, round(1000 * seconds))


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
        await self._guard(self._call.code())  # the peer ends the call once it has read the end

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
        return _frame(await self._guard(self._context.read()))

    async def write(self, frame: wire.Frame) -> None:
        await self._guard(self._context.write(frame.SerializeToString()))

    async def _guard(self, step: Awaitable[Any]) -> Any:
        try:
            return await step
        except (aio.InternalError, aio.UsageError, asyncio.InvalidStateError) as error:
            raise ConnectionError(f"the call ended: {quoted(error)}") from None

    async def end(self) -> None:
        """Do nothing: the call ends with its handler, after everything that was written."""


def _frame(data: Any) -> wire.Frame | None:
    if data is aio.EOF:
        return None
    try:
        frame: wire.Frame = wire.Frame.FromString(data)
    except DecodeError:
        raise LinkEnded("garbage", f"expected a frame, got {len(data)} bytes of something else") from None
    return frame


def _lost(code: Any, details: str | None) -> Exception:
    """Return why a call of ours ended: the refusal in the peer's words, or the network's error."""
    if code == grpc.StatusCode.PERMISSION_DENIED:
        return LinkEnded("refused", f"the peer refused us: {quoted(details)}")
    return ConnectionError(f"{getattr(code, 'name', code)}: {quoted(details)}")
