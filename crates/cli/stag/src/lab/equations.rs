//! `stag lab equations`.

use lab::equations::{Asked, tell};

use super::{failed, print};
use crate::args::lab::LabEquations;
use crate::exit::Exit;

/// Prints what the equations say.
pub fn equations(args: &LabEquations) -> Exit {
    let asked = Asked {
        memory_bandwidth: args.memory_bandwidth.map(|gigabytes| gigabytes * 1e9),
        memory_clock: args.memory_clock.map(|mhz| mhz * 1e6),
        io_clock: args.io_clock.map(|mhz| mhz * 1e6),
        results: args.results.clone(),
    };
    match tell(&asked) {
        Ok(text) => print(&text),
        Err(error) => failed(&error, Exit::Failed),
    }
}
