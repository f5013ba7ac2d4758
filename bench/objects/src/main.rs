//! The command `stag-osd-load`: loads an object-based storage device with one kind of command at a time and prints one line
//! of JSON, of which every figure names what it counts.
//!
//! Each client is a session of its own with one command under way, as the clients of the paper that `bench/osd` measures
//! beside were. It builds CDBs by crate `osd` and sends them by crate `initiator`, over TCP and iSER alike, and looks at no
//! payload. It judges nothing: `bench/osd` does.
#![forbid(unsafe_code)]

mod args;
mod drive;
mod floor;
mod objects;
mod requests;
mod tally;

use std::process::ExitCode;

use args::Args;
use clap::Parser;

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The target or the way to it.
    #[error(transparent)]
    Initiator(#[from] initiator::Error),
    /// The system.
    #[error("{0}: {1}")]
    System(&'static str, std::io::Error),
    /// The device answered what nothing can be made of.
    #[error("{0}")]
    Answer(String),
}

fn main() -> ExitCode {
    let args = Args::parse();
    let measured = match &args.floor {
        Some(path) => floor::run(&args, path),
        None => drive::run(&args),
    };
    match measured {
        Ok(found) => {
            println!("{found}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("stag-osd-load: {error}");
            ExitCode::FAILURE
        }
    }
}
