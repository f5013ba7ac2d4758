//! Allegiance reassignment (RFC 7143 §7.2.2): a task leaves the connection that is lost and goes on with another one.
