"""What people look at: tables, pictures, progress. Reads what others computed, computes nothing itself."""
