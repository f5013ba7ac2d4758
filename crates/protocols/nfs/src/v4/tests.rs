//! NFSv4 in both directions: bytes worked out by hand, messages of Linux, round trips, and
//! malformed input.

mod attributes;
mod hostile;
mod linux;
mod listing;
mod samples;
mod streams;
