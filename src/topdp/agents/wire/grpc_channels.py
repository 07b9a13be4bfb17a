"""gRPC at both ends of a link: settings, and which certificates TLS takes. Who dials: `grpc_transport`.

Both ends take their settings from one manifest, so that neither finds the other's pings too frequent.

**Guarantees.** TLS takes pinned certificates and no others; who is at the other end is settled by the
`handshake`, which relies on none of this. Nothing is compressed, and what is not read stays bounded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
from grpc import aio

from topdp.agents.agreement.identity import TLS_HOST_NAME, Identity
from topdp.agents.agreement.identity_card import Card
from topdp.agents.wire.chunks import LARGEST_MESSAGE

SERVICE, METHOD = "topdp.agents.v1.Link", "Open"
PATH = f"/{SERVICE}/{METHOD}"


def server(accept: Callable[[Any, Any], Awaitable[None]], idle_timeout: float, streams: int) -> Any:
    """The listening end, without a port yet. `accept` has one stream at a time, `streams` from one peer."""
    wait = _milliseconds(idle_timeout)
    options = [
        *_options(idle_timeout),
        ("grpc.so_reuseport", 0),  # a second agent on our port is an error, not a lottery
        ("grpc.max_concurrent_streams", streams),
        ("grpc.server_handshake_timeout_ms", wait),
        ("grpc.max_connection_idle_ms", 2 * wait),
        ("grpc.http2.min_ping_interval_without_data_ms", wait // 2),
        ("grpc.http2.max_ping_strikes", 2),
    ]
    made = aio.server(options=options)
    handler = grpc.stream_stream_rpc_method_handler(accept)
    made.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
    return made


def server_credentials(identity: Identity, cards: Callable[[], Sequence[Card]]) -> Any:
    """`cards` of those who may dial: asked again for every connection, since neighbours renew theirs."""
    own = _own(identity)
    pinned = ""

    def pins() -> Any:
        nonlocal pinned
        found = "".join(card.certificate for card in cards())
        if found == pinned:
            return None
        pinned = found
        return grpc.ssl_server_certificate_configuration([own], found.encode("ascii"))

    return grpc.dynamic_ssl_server_credentials(pins(), pins, require_client_authentication=True)


def channel(target: str, card: Card, identity: Identity | None, idle_timeout: float) -> Any:
    """To the agent of `card` at `target`. Without an identity of our own in plaintext, for tests."""
    options = [
        *_options(idle_timeout),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
    ]
    if identity is None:
        return aio.insecure_channel(target, options=options)
    credentials = grpc.ssl_channel_credentials(pins(card), *_own(identity))
    name = ("grpc.ssl_target_name_override", TLS_HOST_NAME)
    return aio.secure_channel(target, credentials, options=[*options, name])


def pins(card: Card) -> bytes:
    """What TLS may trust when we dial: this one certificate."""
    return card.certificate.encode("ascii")


def _own(identity: Identity) -> tuple[bytes, bytes]:
    return identity.key_pem(), identity.card.certificate.encode("ascii")


def _options(idle_timeout: float) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", LARGEST_MESSAGE),
        ("grpc.max_send_message_length", LARGEST_MESSAGE),
        ("grpc.keepalive_time_ms", _milliseconds(idle_timeout)),
        ("grpc.keepalive_timeout_ms", _milliseconds(idle_timeout)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.bdp_probe", 0),  # a fixed window: what a peer sends and we do not read stays bounded
        ("grpc.http2.lookahead_bytes", LARGEST_MESSAGE),
        ("grpc.compression_enabled_algorithms_bitset", 1),  # none: no bombs
        ("grpc.enable_retries", 0),
        ("grpc.service_config_disable_resolution", 1),
    ]


def _milliseconds(seconds: float) -> int:
    return max(1, round(1000 * seconds))
