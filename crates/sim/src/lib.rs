//! A seeded simulator of initiator, target, network and store in one thread.
