"""What the tests against real peers stand on: bounded processes, targets under test, and the count of outcomes."""
