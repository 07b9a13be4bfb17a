"""Links between agents, and the settings that gRPC reads when it is first imported."""

import os


def configure_grpc() -> None:
    """Set the environment variables that gRPC reads. A forked process with a new environment repeats this."""
    # gRPC writes every failed TLS handshake to stderr: strangers could fill the log.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # These are ciphers of TLS 1.2 for RSA keys. Agents have elliptic-curve keys, so only TLS 1.3 is possible.
    os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-RSA-AES256-GCM-SHA384"
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


configure_grpc()
