"""Admission, teams and the usage ledger."""
