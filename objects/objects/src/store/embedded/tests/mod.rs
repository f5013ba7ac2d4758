//! Against the model: random changes, crashes, faults.

mod edges;
mod faults;
mod layout;
mod mixed;
mod model;
mod rot;
mod served;
