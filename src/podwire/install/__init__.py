"""What an administrator does with podwire on a node besides running it: check the node before, take it off again."""
