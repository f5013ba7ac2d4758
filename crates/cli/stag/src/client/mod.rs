//! The subcommands for units of any target and files of any NFS server. Each runs on a ring of its
//! own, prints, and returns its exit status.

mod compare;
pub mod connect;
pub mod copy;
mod facts;
mod info;
mod kept;
mod ls;
pub mod nfs;
mod nfs_ls;
mod node;
mod transfer;
mod tree;

use connect::ConnectError;
use transfer::TransferError;

use crate::args::{Cat, Cp, Info, Ls, Read, Remote, Rm, Write};
use crate::exit::Exit;
use crate::naming::LinkError;
use crate::out::print;

pub fn ls(args: &Ls) -> Exit {
    let listed = async {
        match &args.url {
            Some(Remote::File(url)) => Ok((nfs_ls::ls(url, args).await?, true)),
            Some(Remote::Unit(url)) => ls::ls(Some(url), args).await,
            None => ls::ls(None, args).await,
        }
    };
    match on_ring(listed) {
        Some(Ok((text, whole))) => print(&text).or(if whole { Exit::Done } else { Exit::Failed }),
        Some(Err(error)) => {
            let url = args.url.as_ref().map(ToString::to_string);
            not_connected(&url.or(args.isns.clone()).unwrap_or_default(), &error)
        }
        None => Exit::Failed,
    }
}

pub fn info(args: &Info) -> Exit {
    let told = async {
        match &args.url {
            Remote::File(url) => Ok(nfs_ls::info(url, args).await?),
            Remote::Unit(url) => info::info(url, args).await,
        }
    };
    match on_ring(told) {
        Some(Ok(text)) => print(&text),
        Some(Err(error)) => not_connected(&args.url.to_string(), &error),
        None => Exit::Failed,
    }
}

pub fn read(args: &Read) -> Exit {
    moved(on_ring(transfer::read(args)))
}

pub fn write(args: &Write) -> Exit {
    moved(on_ring(transfer::write(args)))
}

pub fn cp(args: &Cp) -> Exit {
    moved(on_ring(transfer::cp(args)))
}

pub fn cat(args: &Cat) -> Exit {
    moved(on_ring(transfer::cat(args)))
}

pub fn rm(args: &Rm) -> Exit {
    moved(on_ring(async { Ok(tree::remove(args).await?) }))
}

/// Runs `work` on a ring of this thread.
pub fn on_ring<T>(work: impl Future<Output = T>) -> Option<T> {
    match runtime::Runtime::new(runtime::Config::default()) {
        Ok(runtime) => Some(runtime.block_on(work)),
        Err(error) => {
            say!("stag: no io_uring: {error}");
            None
        }
    }
}

fn not_connected(place: &str, error: &ConnectError) -> Exit {
    say!("stag: {place}: {error}");
    match error {
        ConnectError::Session(error) if error.is_unreachable() => Exit::Unreachable,
        ConnectError::Files(error) if error.is_unreachable() => Exit::Unreachable,
        ConnectError::Naming(LinkError::Io(_)) => Exit::Unreachable,
        ConnectError::Naming(_) => Exit::Failed,
        ConnectError::Secret(_) | ConnectError::Session(_) | ConnectError::Files(_) => Exit::Failed,
    }
}

fn moved(result: Option<Result<(), TransferError>>) -> Exit {
    match result {
        Some(Ok(())) => Exit::Done,
        // The reader of our stdout has closed it: print nothing.
        Some(Err(error)) if transfer::reader_left(&error) => Exit::Closed,
        Some(Err(error)) => {
            say!("stag: {error}");
            if transfer::unreachable(&error) { Exit::Unreachable } else { Exit::Failed }
        }
        None => Exit::Failed,
    }
}
