"""Harm that threads do to a server in scenarios. hands.py runs it; each other file has one kind."""
