"""The embedded platform: pinned Java artifacts, Apache Kafka, and a process supervisor."""
