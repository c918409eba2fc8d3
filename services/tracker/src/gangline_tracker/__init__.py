"""Metrics and events in ClickHouse, live views."""
