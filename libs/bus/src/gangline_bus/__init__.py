"""Ports, codec and decider loop over Apache Kafka, and the same bus in memory for simulation."""
