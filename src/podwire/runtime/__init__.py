"""Clock, task supervision, backoff, work queue, fork server and child processes."""
