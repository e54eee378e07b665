"""Values that the API fills in where a manifest says nothing; all pure."""
