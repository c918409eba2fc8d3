-- Columns that tables have since they were made. Each statement may run again.

ALTER TABLE gangline.heartbeats
    ADD COLUMN IF NOT EXISTS disk_read_mb_s Nullable(Float64),
    ADD COLUMN IF NOT EXISTS disk_write_mb_s Nullable(Float64),
    ADD COLUMN IF NOT EXISTS disk_free_gb Nullable(Float64),
    ADD COLUMN IF NOT EXISTS disk_used_percent Nullable(Float64),
    ADD COLUMN IF NOT EXISTS network_receive_mb_s Nullable(Float64),
    ADD COLUMN IF NOT EXISTS network_send_mb_s Nullable(Float64),
    ADD COLUMN IF NOT EXISTS gpu_power_w Array(Nullable(Float64)),
    ADD COLUMN IF NOT EXISTS gpu_sm_percent Array(Nullable(Float64));
