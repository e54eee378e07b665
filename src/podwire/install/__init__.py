"""What an administrator does with podwire on a node besides running it: take it off again."""
