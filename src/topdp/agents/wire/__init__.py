"""How what agents say travels. Says to gRPC, before anything here imports it, what it reads once."""

import os

# gRPC writes every failed TLS handshake to stderr: strangers could fill the log.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
