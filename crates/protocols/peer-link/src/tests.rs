//! Both ends together, with hosts that behave as the daemon shall.

mod hostile;
mod pair;
mod shake;
mod world;
