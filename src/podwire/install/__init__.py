"""What an administrator does with podwire besides running it: check a node or cluster, install, take it off again."""
