"""What an agent does round after round: its rows, its budget, its neighbours, and how it ends."""
