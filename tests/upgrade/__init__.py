"""Two releases together on one platform, part by part, while jobs train."""
