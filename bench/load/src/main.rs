//! A batching iSCSI load generator.

fn main() {}
