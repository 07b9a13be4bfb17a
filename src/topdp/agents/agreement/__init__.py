"""What members agree on before a run: identities, manifests, amendments, signatures, keys of runs."""
