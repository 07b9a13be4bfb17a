"""What an agent stores: its ledger of charges, rows and facts, and the budget of its site."""
