//! Who is connected, and from where: iSCSI sessions, and connections of NFS clients.

use admin_http::Answer;

use super::super::html::Html;
use super::super::{Look, fields, show};
use super::of_target;
use super::part::{part, search};
use crate::control::status::SessionStatus;
use crate::shown::duration;
use crate::tokens::Role;

/// The page.
pub fn page(look: &Look<'_>) -> Answer {
    look.page("Clients", "/clients", |h| {
        let clients = &look.status.nfs.clients;
        search(look, h, "/clients", clients.len().max(look.status.sessions.len()));
        h.leaf("h2", &[], "iSCSI sessions");
        sessions(look, h, "/clients", |_| true);
        h.leaf("h2", &[], "NFS clients");
        let shown = part(look, h, "/clients", "clients", clients, |one| vec![one.peer.as_str()]);
        let heads = ["client", "#core", "#connected for", "#calls", ""];
        h.table("Connections of NFS clients", &heads, "No NFS client is connected.", &shown, |row, one| {
            row.cell(&one.peer).number(&one.core.to_string()).number(&duration(one.age_s));
            row.number(&show::count(one.calls));
            row.with(|h| {
                if look.may(Role::Operate) {
                    let values = [("client", one.peer.as_str())];
                    fields::small(h, "/change/disconnect", look.visitor, &values, "Disconnect", &one.peer);
                }
            });
        });
    })
}

/// The sessions that `which` chooses, on the page at `path`.
pub fn sessions(look: &Look<'_>, h: &mut Html, path: &str, which: impl Fn(&SessionStatus) -> bool) {
    let all = look.status.sessions.iter().filter(|one| which(one));
    let shown = part(look, h, path, "sessions", all, |one| {
        let peers = one.connections.iter().map(|connection| connection.peer.as_str());
        peers
            .chain([one.initiator.as_str()])
            .chain(one.target.as_deref())
            .chain(one.user.as_deref())
            .collect()
    });
    let heads = ["initiator", "CHAP user", "target", "from", "by", "#for", "#reads", "#writes", ""];
    h.table("iSCSI sessions", &heads, "Nobody is logged in.", &shown, |row, one| {
        row.cell(&one.initiator).cell(one.user.as_deref().unwrap_or("–"));
        match &one.target {
            Some(target) => row.link(&of_target(target), target),
            None => row.cell("discovery"),
        };
        let of = |what: fn(&crate::control::status::ConnectionStatus) -> &str| {
            let all: Vec<&str> = one.connections.iter().map(what).collect();
            all.join(", ")
        };
        row.cell(&of(|connection| &connection.peer)).cell(&of(|connection| &connection.transport));
        row.number(&duration(one.age_s))
            .number(&show::count(one.io.reads))
            .number(&show::count(one.io.writes));
        row.with(|h| {
            if look.may(Role::Operate) {
                let session = one.tsih.to_string();
                let values = [("session", session.as_str()), ("initiator", one.initiator.as_str())];
                let about = format!("session {session} of {}", one.initiator);
                fields::small(h, "/change/disconnect", look.visitor, &values, "Disconnect", &about);
            }
        });
    });
}
