"""How what agents say travels. Says to gRPC, before anything here imports it, what it reads once."""

import os


def settle_grpc() -> None:
    """What gRPC takes from the environment; called again by whoever may have been forked into another one."""
    # gRPC writes every failed TLS handshake to stderr: strangers could fill the log.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # Ciphers of TLS 1.2, and only for RSA keys: ours are elliptic, so nothing but TLS 1.3 can be agreed on.
    os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-RSA-AES256-GCM-SHA384"
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


settle_grpc()
