"""`gangline demo`: one job's whole life through a failure, shown and checked on this machine."""
