//! MOUNT version 3 (RFC 1813 appendix I): from a path to the handle of its directory.

use std::net::IpAddr;

use arrayvec::ArrayVec;
use nfs::mount::{Arguments, Export, Group, Mount, Mounted, Name, Path, Procedure, Results, Status};
use nfs::v3::{Handle, Outcome};
use rpc::auth::Flavor;
use rpc::xdr::{Chained, Reader};
use server_core::audit::{self, Who};
use tree::{Kind, TreeError};

use crate::call::{Accepted, Refused};
use crate::client::Client;
use crate::handle;
use crate::model::Model;
use crate::reply::Reply;

/// Executes a call.
pub(crate) async fn call(
    of: &Client,
    call: &Accepted,
    record: &runtime::Buf,
) -> Result<Option<Reply>, Refused> {
    let procedure = Procedure::from_code(call.procedure).ok_or(Refused::NoProcedure)?;
    let bytes = record.as_slice().unwrap_or_default();
    let mut from = Reader::new(bytes.get(call.body..).unwrap_or_default());
    let arguments = Arguments::read(procedure, &mut from)?;
    from.end()?;
    let (model, client) = (of.model(), of.peer.ip().to_canonical());
    let mounts = &of.shared.mounts;
    let reply = |results: &Results<'_>| Ok(Some(Reply::with(call.xid, |to| results.write(to))));
    match arguments {
        Arguments::Null(()) => reply(&Results::Null(())),
        Arguments::Mnt(path) => {
            let found = find(&model, client, path.bytes()).await;
            match &found {
                Ok(handle) => {
                    mounts.add(client, path.bytes());
                    let flavors = ArrayVec::from_iter([Flavor::Sys.code()]);
                    let handle = Handle::new(handle).unwrap_or(Handle::EMPTY);
                    reply(&Results::Mnt(Outcome::Ok(Mounted { handle, flavors })))
                }
                Err(status) => {
                    let target = Some(path.bytes().escape_ascii().to_string());
                    let why = format!("MOUNT answers {status:?}");
                    audit::refused(&of.shared.hub, of.peer, &Who { target, ..Who::default() }, &why);
                    reply(&Results::Mnt(Outcome::Err(*status, ())))
                }
            }
        }
        Arguments::Dump(()) => {
            let all = mounts.all();
            let hosts: Vec<String> = all.iter().map(|(client, _)| client.to_string()).collect();
            let mut chained = Chained::new();
            for (host, (_, path)) in hosts.iter().zip(&all) {
                if let (Ok(host), Ok(directory)) = (Name::new(host.as_bytes()), Path::new(path)) {
                    chained.push(&Mount { host, directory });
                }
            }
            reply(&Results::Dump(chained.chain()))
        }
        Arguments::Umnt(path) => {
            mounts.remove(client, Some(path.bytes()));
            reply(&Results::Umnt(()))
        }
        Arguments::UmntAll(()) => {
            mounts.remove(client, None);
            reply(&Results::UmntAll(()))
        }
        Arguments::Export(()) => {
            let networks: Vec<Vec<String>> = model.exports.iter().map(|one| one.networks()).collect();
            let groups: Vec<_> = networks.iter().map(|names| groups(names)).collect();
            let mut chained = Chained::new();
            for (export, groups) in model.exports.iter().zip(&groups) {
                if let Ok(directory) = Path::new(export.config.name.as_bytes()) {
                    chained.push(&Export { directory, groups: groups.chain() });
                }
            }
            reply(&Results::Export(chained.chain()))
        }
    }
}

/// The handle of a directory. Its path may be below an export's root.
async fn find(model: &Model, client: IpAddr, path: &[u8]) -> Result<handle::Bytes, Status> {
    let (export, names) = model.path(path).ok_or(Status::NoEnt)?;
    let rule = export.rule(client).ok_or(Status::Acces)?;
    let tree = &export.config.tree;
    let anybody = tree::Caller { uid: rule.anonymous.0, gid: rule.anonymous.1, groups: [].into() };
    let mut node = tree.root();
    let mut kind = Kind::Directory;
    for name in names {
        // A path leads down only.
        if name == b".." {
            return Err(Status::Acces);
        }
        let found = tree.lookup(&anybody, &node, name).await.map_err(status)?;
        (node, kind) = (found.node, found.attributes.kind);
    }
    if kind != Kind::Directory {
        return Err(Status::NotDir);
    }
    tree.attributes(&node).await.map_err(status)?;
    Ok(model.handle(export, &node))
}

fn status(error: TreeError) -> Status {
    match error {
        TreeError::NotOwner => Status::Perm,
        TreeError::NoEntry | TreeError::Stale => Status::NoEnt,
        TreeError::Access => Status::Acces,
        TreeError::NotDirectory => Status::NotDir,
        TreeError::NameTooLong => Status::NameTooLong,
        TreeError::Io(_) => Status::Io,
        _ => Status::ServerFault,
    }
}

fn groups(names: &[String]) -> Chained<Group<'_>> {
    let names = names.iter().filter_map(|name| Name::new(name.as_bytes()).ok());
    Chained::of(names.map(|name| Group { name }))
}
