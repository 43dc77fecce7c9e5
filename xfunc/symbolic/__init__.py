"""Programs over symbolic sizes: how they are bucketed, what they hold and what is kept."""
