"""What is known of how fast a job runs on each GPU type, and how well it is known."""
