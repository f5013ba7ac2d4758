//! The subcommands that work on units of any target: run on a ring of their own, print, and say how it went.

pub mod connect;
pub mod copy;
mod facts;
mod info;
mod ls;
mod transfer;

use std::io::Write as _;

use connect::ConnectError;
use transfer::TransferError;

use crate::args::{Cp, Info, Ls, Read, Write};
use crate::exit::Exit;
use crate::naming::LinkError;

/// `stag ls`.
pub fn ls(args: &Ls) -> Exit {
    match on_ring(ls::ls(args)) {
        Some(Ok((text, whole))) => print(&text).unwrap_or(if whole { Exit::Done } else { Exit::Failed }),
        Some(Err(error)) => {
            let url = args.url.as_ref().map(ToString::to_string);
            not_connected(&url.or(args.isns.clone()).unwrap_or_default(), &error)
        }
        None => Exit::Failed,
    }
}

/// `stag info`.
pub fn info(args: &Info) -> Exit {
    match on_ring(info::info(args)) {
        Some(Ok(text)) => print(&text).unwrap_or(Exit::Done),
        Some(Err(error)) => not_connected(&args.url.to_string(), &error),
        None => Exit::Failed,
    }
}

/// `stag read`.
pub fn read(args: &Read) -> Exit {
    moved(on_ring(transfer::read(args)))
}

/// `stag write`.
pub fn write(args: &Write) -> Exit {
    moved(on_ring(transfer::write(args)))
}

/// `stag cp`.
pub fn cp(args: &Cp) -> Exit {
    moved(on_ring(transfer::cp(args)))
}

/// Runs `work` on a ring of this thread.
pub fn on_ring<T>(work: impl Future<Output = T>) -> Option<T> {
    match ring::Runtime::new(ring::Config::default()) {
        Ok(runtime) => Some(runtime.block_on(work)),
        Err(error) => {
            eprintln!("stag: no io_uring: {error}");
            None
        }
    }
}

fn print(text: &str) -> Option<Exit> {
    let mut out = std::io::stdout().lock();
    let printed = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    printed.err().map(|error| {
        eprintln!("stag: stdout: {error}");
        Exit::Failed
    })
}

fn not_connected(place: &str, error: &ConnectError) -> Exit {
    eprintln!("stag: {place}: {error}");
    match error {
        ConnectError::Session(error) if error.is_unreachable() => Exit::Unreachable,
        ConnectError::Naming(LinkError::Io(_)) => Exit::Unreachable,
        ConnectError::Naming(_) => Exit::Failed,
        ConnectError::Secret(_) | ConnectError::Session(_) => Exit::Failed,
    }
}

fn moved(result: Option<Result<(), TransferError>>) -> Exit {
    match result {
        Some(Ok(())) => Exit::Done,
        // Whoever read our stdout has enough: nothing to tell.
        Some(Err(error)) if transfer::reader_left(&error) => Exit::Failed,
        Some(Err(error)) => {
            eprintln!("stag: {error}");
            if transfer::unreachable(&error) { Exit::Unreachable } else { Exit::Failed }
        }
        None => Exit::Failed,
    }
}
