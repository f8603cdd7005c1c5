"""The database: decisions, reservations and what nodes reported. The only room that imports SQLAlchemy."""
