"""What people see: the terminal, pictures, the report, the privacy statement and the live page."""
