"""Links between agents, and the settings that gRPC reads when it is first imported."""

import os


def configure_grpc() -> None:
    """Set what gRPC reads from the environment; a forked process calls it again for its own environment."""
    # gRPC writes every failed TLS handshake to stderr: strangers could fill the log.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # Ciphers of TLS 1.2, and only for RSA keys: ours are elliptic, so nothing but TLS 1.3 can be agreed on.
    os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-RSA-AES256-GCM-SHA384"
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


configure_grpc()
