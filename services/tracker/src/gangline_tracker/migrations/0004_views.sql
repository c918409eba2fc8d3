-- What dashboards read.

-- At each step the newest attempt counts, and of its ranks the lowest that reported.
CREATE OR REPLACE VIEW gangline.run_curves AS
SELECT
    s.team AS team,
    s.run_id AS run_id,
    s.name AS name,
    s.step AS step,
    argMax(s.value, (s.attempt, -toInt64(s.rank))) AS value,
    argMax(s.time, (s.attempt, -toInt64(s.rank))) AS time,
    max(s.attempt) AS attempt
FROM gangline.steps AS s
GROUP BY s.team, s.run_id, s.name, s.step;

CREATE OR REPLACE VIEW gangline.run_list AS
SELECT * FROM gangline.runs FINAL;

CREATE OR REPLACE VIEW gangline.incident_list AS
SELECT * FROM gangline.incidents FINAL;

CREATE OR REPLACE VIEW gangline.checkpoint_list AS
SELECT
    c.job_id AS job_id,
    c.attempt AS attempt,
    c.step AS step,
    argMax(c.status, c.version) AS status,
    min(c.time) AS time,
    max(c.world_size) AS world_size,
    max(c.size_bytes) AS size_bytes,
    max(c.write_s) AS write_s,
    max(c.blocked_s) AS blocked_s,
    max(c.verify_s) AS verify_s,
    max(c.commit_key) AS commit_key,
    argMax(c.reason, c.version) AS reason
FROM gangline.checkpoints AS c
GROUP BY c.job_id, c.attempt, c.step;

CREATE OR REPLACE VIEW gangline.node_samples AS
SELECT
    node_id,
    incarnation,
    time,
    jobs,
    cpu_percent,
    memory_used_gb,
    disk_read_mb_s,
    disk_write_mb_s,
    disk_free_gb,
    disk_used_percent,
    network_receive_mb_s,
    network_send_mb_s,
    gpu,
    utilization,
    gpu_memory_gb,
    temperature_c,
    power_w,
    sm_percent
FROM gangline.heartbeats
LEFT ARRAY JOIN
    gpu_index AS gpu,
    gpu_utilization AS utilization,
    gpu_memory_used_gb AS gpu_memory_gb,
    gpu_temperature_c AS temperature_c,
    arrayResize(gpu_power_w, length(gpu_index)) AS power_w,
    arrayResize(gpu_sm_percent, length(gpu_index)) AS sm_percent;
