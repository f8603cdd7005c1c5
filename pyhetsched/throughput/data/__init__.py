"""Tables of measured rates; README.md here names their source and licence."""
