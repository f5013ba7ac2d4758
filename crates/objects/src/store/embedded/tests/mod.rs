//! Against the model: random changes, crashes, faults.

mod faults;
mod mixed;
mod model;
