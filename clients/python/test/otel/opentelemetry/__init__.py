"""Stands in for the OpenTelemetry API, which Debian does not have: the calls that tq.tracing makes, and what they record."""
