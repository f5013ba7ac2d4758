//! `stag osd`: objects of an object-based storage device, as single objects and as trees of files
//! (docs/src/objects/objects.md).

mod admin;
mod attr;
mod bench;
mod credential;
mod error;
mod get;
mod keys;
mod layout;
mod local;
mod names;
mod offline;
mod put;
mod rm;
mod session;
mod show;
mod tree;

use crate::args::osd::{Osd, OsdCommand};
use crate::exit::Exit;
use crate::out;
use error::OsdError;

pub fn osd(args: &Osd) -> Exit {
    let result = match &args.command {
        // It wants a ring of its own kind.
        OsdCommand::Bench(args) => Some(bench::bench(args)),
        command => crate::client::on_ring(run(command)),
    };
    let Some(result) = result else { return Exit::Failed };
    match result {
        Ok(text) => out::print(&text),
        Err(error) => error.show(),
    }
}

async fn run(command: &OsdCommand) -> Result<String, OsdError> {
    match command {
        OsdCommand::Format(args) => admin::format(args).await,
        OsdCommand::Mkpart(args) => admin::mkpart(args).await,
        OsdCommand::Rmpart(args) => admin::rmpart(args).await,
        OsdCommand::Ls(args) => show::ls(args).await,
        OsdCommand::Put(args) => put::put(args).await,
        OsdCommand::Get(args) => get::get(args).await,
        OsdCommand::Rm(args) => rm::rm(args).await,
        OsdCommand::Stat(args) => show::stat(args).await,
        OsdCommand::Attr(args) => attr::attr(&args.command).await,
        OsdCommand::Find(args) => attr::find(args).await,
        OsdCommand::Coll(args) => admin::coll(args).await,
        OsdCommand::Snapshot(args) => admin::snapshot(args).await,
        OsdCommand::Check(args) => admin::check(args).await,
        OsdCommand::Keys(args) => keys::keys(args).await,
        OsdCommand::Grant(args) => keys::grant(args),
        OsdCommand::Bench(args) => bench::bench(args),
    }
}
