"""Past runs: how long a job of a user took, by its name and by GPU type."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the table of runs."""
    op.create_table(
        "runs",
        sa.Column("job_id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("start_s", sa.Float, primary_key=True),
        sa.Column("user", sa.String(64), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("gpu_type", sa.String(64), nullable=False),
        sa.Column("gpus", sa.Integer, nullable=False),
        sa.Column("elapsed_s", sa.Float, nullable=False),
        sa.Column("ended_s", sa.Float, nullable=False),
    )
    op.create_index("runs_by_end", "runs", ["ended_s"])


def downgrade() -> None:
    """Drop the table of runs."""
    op.drop_table("runs")
