"""gRPC at both ends of a link: its settings, the certificates that TLS accepts, and calls as frame streams.

Both ends take their settings from one manifest, so neither end considers the other's pings too frequent.
Exceptions of gRPC become a LinkEnded.

**Guarantees.** TLS accepts pinned certificates and certificates that they signed. The `handshake`, which does
not rely on TLS, proves the peer's identity. Nothing is compressed, and unread data is bounded.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
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
REFUSAL_CODES = {"manifest": grpc.StatusCode.FAILED_PRECONDITION}
"""The codes with which a listener ends a call, by kind of refusal; for all others, PERMISSION_DENIED."""


def server(accept: Callable[[Any, Any], Awaitable[None]], idle_timeout: float, streams: int) -> Any:
    """Return the listening end, without a port. `accept` serves one stream; a peer may open `streams`."""
    timeout = _milliseconds(idle_timeout)
    options = [
        *_options(idle_timeout),
        ("grpc.so_reuseport", 0),  # a second agent on the same port is an error
        ("grpc.max_concurrent_streams", streams),
        ("grpc.server_handshake_timeout_ms", timeout),
        ("grpc.max_connection_idle_ms", 2 * timeout),
        ("grpc.http2.min_ping_interval_without_data_ms", timeout // 2),
        ("grpc.http2.max_ping_strikes", 2),
    ]
    listener = aio.server(options=options)
    handlers = {METHOD_NAME: grpc.stream_stream_rpc_method_handler(accept)}
    listener.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))
    return listener


def server_credentials(identity: Identity, cards: Callable[[], Sequence[Card]]) -> Any:
    """Return the credentials of the listening end. `cards` returns the cards of agents that may dial.

    gRPC calls it for every connection, because neighbours renew their cards.
    """
    pinned = ""

    def configuration() -> Any:
        """Return the certificates to use; None if they have not changed."""
        nonlocal pinned
        certificates = "".join(card.certificate for card in cards())
        if certificates == pinned:
            return None
        pinned = certificates
        return grpc.ssl_server_certificate_configuration(
            [_key_and_certificate(identity)], certificates.encode("ascii")
        )

    return grpc.dynamic_ssl_server_credentials(
        configuration(), configuration, require_client_authentication=True
    )


def channel(target: str, card: Card, identity: Identity, idle_timeout: float) -> Any:
    """Open a channel to the agent of `card` at `target`."""
    options = [
        *_options(idle_timeout),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
        ("grpc.ssl_target_name_override", TLS_HOST_NAME),
    ]
    credentials = grpc.ssl_channel_credentials(trusted_certificates(card), *_key_and_certificate(identity))
    return aio.secure_channel(target, credentials, options=options)


def trusted_certificates(card: Card) -> bytes:
    """Return the certificates that TLS accepts when this agent dials: only that of `card`."""
    return card.certificate.encode("ascii")


def _key_and_certificate(identity: Identity) -> tuple[bytes, bytes]:
    return identity.key_pem(), identity.card.certificate.encode("ascii")


def _options(idle_timeout: float) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
        ("grpc.max_send_message_length", MAX_FRAME_BYTES),
        ("grpc.keepalive_time_ms", _milliseconds(idle_timeout)),
        ("grpc.keepalive_timeout_ms", _milliseconds(idle_timeout)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.bdp_probe", 0),  # a fixed window bounds what a peer sends before we read it
        ("grpc.http2.lookahead_bytes", MAX_FRAME_BYTES),
        ("grpc.compression_enabled_algorithms_bitset", 1),  # none: no decompression bombs
        ("grpc.enable_retries", 0),
        ("grpc.service_config_disable_resolution", 1),
    ]


def _milliseconds(seconds: float) -> int:
    return max(1, round(1000 * seconds))


class _GrpcStream(FrameStream):
    """The frames of one gRPC call, at either end."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def read(self) -> wire.Frame | None:
        data = await self._guard(self._call.read())
        if data is aio.EOF:
            return None
        try:
            frame: wire.Frame = wire.Frame.FromString(data)
        except DecodeError:
            raise LinkEnded("garbage", f"expected a frame, got {len(data)} bytes of something else") from None
        return frame

    async def write(self, frame: wire.Frame) -> None:
        await self._guard(self._call.write(frame.SerializeToString()))

    @abstractmethod
    async def _guard(self, operation: Awaitable[Any]) -> Any:
        """Await `operation`, and translate the exceptions of gRPC."""


class DialledStream(_GrpcStream):
    """The frames of a call, at the end that dialled."""

    async def end(self) -> None:
        await self._guard(self._call.done_writing())
        await self._guard(self._call.code())  # the peer ends the call once it has read the end

    async def _guard(self, operation: Awaitable[Any]) -> Any:
        try:
            return await operation
        except aio.AioRpcError as error:
            raise _call_error(error.code(), error.details()) from None
        except asyncio.InvalidStateError:
            raise _call_error(await self._call.code(), await self._call.details()) from None
        except aio.InternalError as error:
            raise LinkEnded("lost", f"the call ended: {quoted(error)}") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise LinkEnded("lost", "the call was cancelled") from None  # gRPC cancelled it, not this agent


class AcceptedStream(_GrpcStream):
    """The frames of a call, at the end that was dialled; the call is gRPC's context of the handler."""

    async def end(self) -> None:
        """Do nothing: the call ends when its handler returns, after everything that was written."""

    async def _guard(self, operation: Awaitable[Any]) -> Any:
        try:
            return await operation
        except (aio.InternalError, aio.UsageError, asyncio.InvalidStateError) as error:
            raise LinkEnded("lost", f"the call ended: {quoted(error)}") from None


def _call_error(code: Any, details: str | None) -> LinkEnded:
    """Return the reason for the end of a call: the peer's refusal, or an error of the network."""
    kinds = {each: kind for kind, each in REFUSAL_CODES.items()}
    if code == grpc.StatusCode.PERMISSION_DENIED or code in kinds:
        return LinkEnded(kinds.get(code, "refused"), f"the peer refused the link: {quoted(details)}")
    return LinkEnded("lost", f"{getattr(code, 'name', code)}: {quoted(details)}")
