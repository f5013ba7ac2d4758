//! NFS and its exports, from the document.

use std::collections::HashSet;
use std::net::SocketAddr;

use super::decode::{address_or, limits_of_service};
use super::model::{Client, Config, Export, Nfs};
use super::place::Place;
use super::problem::Problems;
use super::reader::Table;
use super::settings::{Setting, setting};
use crate::export::{NFS_PORT, NFS_RDMA_PORT, check_name};

/// Reads `[nfs]`.
pub fn nfs(given: &mut Table<'_>, config: &mut Config, place: &Place<'_>, problems: &mut Problems) {
    if let Some(mut table) = given.table("nfs", problems) {
        table.fill(&mut config.nfs, place, problems);
        config.nfs.listen = addresses(&mut table, &setting::<Nfs>("listen"), NFS_PORT, place, problems);
        config.nfs.verbs = addresses(&mut table, &setting::<Nfs>("verbs"), NFS_RDMA_PORT, place, problems);
        table.end(problems);
    }
}

/// Reads all `[[export]]`.
pub fn exports(given: &mut Table<'_>, config: &mut Config, place: &Place<'_>, problems: &mut Problems) {
    let mut names = HashSet::new();
    let mut spans = Vec::new();
    for table in given.tables("export", problems).unwrap_or_default() {
        let span = table.span.clone();
        let Some(export) = export(table, place, problems) else { continue };
        if !names.insert(export.name.clone()) {
            problems.error(&span, format!("there are two exports {}", export.name), "give each its own name");
        }
        config.exports.push(export);
        spans.push(span);
    }
    if let Some((export, what)) = config.contradicting_export() {
        let own = config.exports.iter().zip(&spans).find(|(other, _)| std::ptr::eq(*other, export));
        let span = own.map_or(0..0, |(_, span)| span.clone());
        problems.error(&span, what, "say the same of `async` in both");
    }
}

/// The addresses of a list, each once. `port` is that of an address without one.
fn addresses(
    given: &mut Table<'_>,
    setting: &Setting,
    port: u16,
    place: &Place<'_>,
    problems: &mut Problems,
) -> Vec<SocketAddr> {
    let mut all = Vec::new();
    for at in given.elements::<String>(setting, place, problems).unwrap_or_default() {
        let (what, instead) = match address_or(&at.value, port) {
            Some(address) if all.contains(&address) && address.port() != 0 => {
                (format!("{address} is listened on twice"), "leave one of them out".to_owned())
            }
            Some(address) => {
                all.push(address);
                continue;
            }
            None => {
                let instead = format!("write an IP address, with or without a port: 192.0.2.1:{port}");
                (format!("`{}` is no address", at.value), instead)
            }
        };
        problems.error(&at.span, what, instead);
    }
    all
}

fn export(mut given: Table<'_>, place: &Place<'_>, problems: &mut Problems) -> Option<Export> {
    let mut export = Export::default();
    given.fill(&mut export, place, problems);
    let name = given.value::<String>(&setting::<Export>("name"), place, problems);
    if let Some(name) = &name
        && let Err(what) = check_name(&name.value)
    {
        problems.error(&name.span, what, "write a path such as \"/data\"");
    }
    for mut table in given.tables("client", problems).unwrap_or_default() {
        let mut client = Client::default();
        table.fill(&mut client, place, problems);
        client.limits = limits_of_service(&mut table, problems);
        if export.clients.iter().any(|other| other.network == client.network) {
            let what = format!("there are two clients {}", client.network);
            problems.error(&table.span, what, "put what they may do into one of them");
        }
        table.end(problems);
        export.clients.push(client);
    }
    given.end(problems);
    Some(Export { name: name?.value, ..export })
}
