"""What an agent has on disk: charges, bytes, state and meetings, each written whole before it counts."""
