//! Against the model: random changes, crashes, faults.

mod edges;
mod faults;
mod mixed;
mod model;
