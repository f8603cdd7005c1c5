"""The tables, as they are after the newest migration."""

from sqlalchemy import JSON, Column, Float, Index, Integer, MetaData, String, Table, Text

metadata = MetaData()

decisions = Table(
    "decisions",
    metadata,
    Column("sequence", Integer, primary_key=True, autoincrement=True),
    Column("id", String(32), nullable=False, unique=True),
    Column("time_s", Float, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("job_id", Integer, nullable=False),
    Column("uid", Integer, nullable=False),
    Column("user", String(64), nullable=False),
    Column("mode", String(8), nullable=False),
    Column("asked", Text, nullable=False),
    Column("became", Text, nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("message", Text, nullable=False),
    Column("policy", String(128), nullable=False),
    Column("node", String(64), nullable=False),
    Column("partition", String(64), nullable=False),
    Column("account", String(64), nullable=False),
    Column("candidates", JSON, nullable=False),
    Column("detail", JSON, nullable=False),
    Index("decisions_by_job", "job_id"),
    Index("decisions_by_time", "time_s"),
)

# Which decision a job came from, learned when Slurm allocates it.
jobs = Table(
    "jobs",
    metadata,
    Column("job_id", Integer, primary_key=True),
    Column("decision_id", String(32), nullable=False),
    Column("uid", Integer, nullable=False),
    Column("user", String(64), nullable=False),
    Column("id_text", String(64), nullable=False),
    Column("name", String(256), nullable=False),
    Column("array_job_id", Integer, nullable=False),
    Column("seen_s", Float, nullable=False),
    Index("jobs_by_decision", "decision_id"),
)

reservations = Table(
    "reservations",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("job_id", Integer, nullable=False),
    Column("restart_count", Integer, nullable=False),
    Column("uid", Integer, nullable=False),
    Column("node", String(64), nullable=False),
    Column("gpu_index", Integer, nullable=False),
    Column("profile", String(32), nullable=False),
    Column("start", Integer, nullable=False),
    Column("size", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("mig_uuid", String(96), nullable=False),
    Column("gi_id", Integer, nullable=True),
    Column("ci_id", Integer, nullable=True),
    Column("changed_s", Float, nullable=False),
    Column("note", Text, nullable=False),
    Index("reservations_by_job", "job_id"),
    Index("reservations_by_state", "state"),
)

node_reports = Table(
    "node_reports",
    metadata,
    Column("node", String(64), primary_key=True),
    Column("time_s", Float, nullable=False),
    Column("boot_id", String(64), nullable=False),
    Column("driver_version", String(32), nullable=False),
    Column("gpus", JSON, nullable=False),
)

# Nodes that we keep a pending job away from, until when, and what its owner had excluded already.
exclusions = Table(
    "exclusions",
    metadata,
    Column("job_id", Integer, primary_key=True),
    Column("owners", Text, nullable=False),
    Column("ours", Text, nullable=False),
    Column("until_s", Float, nullable=False),
    Column("times", Integer, nullable=False),
)

# Modes set at run time, over those of the configuration file.
modes = Table(
    "modes",
    metadata,
    Column("scope", String(96), primary_key=True),  # "", "partition=gpu", "account=bio", "user=alice"
    Column("mode", String(8), nullable=False),
)

# How long jobs took, by user, name and GPU type: what rounds learn from.
runs = Table(
    "runs",
    metadata,
    Column("job_id", Integer, primary_key=True, autoincrement=False),
    Column("start_s", Float, primary_key=True),
    Column("user", String(64), nullable=False),
    Column("name", String(128), nullable=False),
    Column("gpu_type", String(64), nullable=False),
    Column("gpus", Integer, nullable=False),
    Column("elapsed_s", Float, nullable=False),
    Column("ended_s", Float, nullable=False),
    Index("runs_by_end", "ended_s"),
)
