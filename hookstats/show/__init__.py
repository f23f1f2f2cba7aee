"""What people look at: tables in the terminal, figures, notebooks, and the report page."""
