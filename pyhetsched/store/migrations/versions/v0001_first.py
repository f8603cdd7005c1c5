"""The first schema: decisions, jobs, reservations, node reports, modes."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def text(name: str, length: int | None = None) -> sa.Column[str]:
    """Return a text column, bounded where ``length`` is given."""
    return sa.Column(name, sa.String(length) if length else sa.Text(), nullable=False)


def number(name: str) -> sa.Column[int]:
    """Return an integer column."""
    return sa.Column(name, sa.Integer, nullable=False)


def seconds(name: str) -> sa.Column[float]:
    """Return a column of seconds."""
    return sa.Column(name, sa.Float, nullable=False)


def document(name: str) -> sa.Column[object]:
    """Return a JSON column."""
    return sa.Column(name, sa.JSON, nullable=False)


def upgrade() -> None:
    """Create all tables."""
    op.create_table(
        "decisions",
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("id", sa.String(32), nullable=False, unique=True),
        seconds("time_s"), text("kind", 16), number("job_id"), number("uid"), text("user", 64), text("mode", 8),
        text("asked"), text("became"), text("outcome", 16), text("message"), text("policy", 128), text("node", 64),
        text("partition", 64), text("account", 64), document("candidates"), document("detail"),
    )  # fmt: skip
    op.create_index("decisions_by_job", "decisions", ["job_id"])
    op.create_index("decisions_by_time", "decisions", ["time_s"])
    op.create_table(
        "jobs",
        sa.Column("job_id", sa.Integer, primary_key=True, autoincrement=False),
        text("decision_id", 32), number("uid"), text("user", 64), text("id_text", 64), text("name", 256),
        number("array_job_id"), seconds("seen_s"),
    )  # fmt: skip
    op.create_index("jobs_by_decision", "jobs", ["decision_id"])
    op.create_table(
        "reservations",
        sa.Column("id", sa.String(32), primary_key=True),
        number("job_id"), number("restart_count"), number("uid"), text("node", 64), number("gpu_index"),
        text("profile", 32), number("start"), number("size"), text("state", 16), text("mig_uuid", 96),
        sa.Column("gi_id", sa.Integer), sa.Column("ci_id", sa.Integer), seconds("changed_s"), text("note"),
    )  # fmt: skip
    op.create_index("reservations_by_job", "reservations", ["job_id"])
    op.create_index("reservations_by_state", "reservations", ["state"])
    op.create_table(
        "node_reports",
        sa.Column("node", sa.String(64), primary_key=True),
        seconds("time_s"), text("boot_id", 64), text("driver_version", 32), document("gpus"),
    )  # fmt: skip
    op.create_table(
        "exclusions",
        sa.Column("job_id", sa.Integer, primary_key=True, autoincrement=False),
        text("owners"), text("ours"), seconds("until_s"), number("times"),
    )  # fmt: skip
    op.create_table("modes", sa.Column("scope", sa.String(96), primary_key=True), text("mode", 8))


def downgrade() -> None:
    """Drop all tables."""
    for table in ("modes", "exclusions", "node_reports", "reservations", "jobs", "decisions"):
        op.drop_table(table)
