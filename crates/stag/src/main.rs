//! The `stag` command.

fn main() {}
