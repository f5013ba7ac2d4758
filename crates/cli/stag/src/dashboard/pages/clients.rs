//! Who is connected, and from where: iSCSI sessions, and connections of NFS clients.

use admin_http::Answer;

use super::super::html::Html;
use super::super::{Look, fields, show};
use super::of_target;
use crate::control::status::SessionStatus;
use crate::shown::duration;
use crate::tokens::Role;

/// The page.
pub fn page(look: &Look<'_>) -> Answer {
    look.page("Clients", "/clients", |h| {
        h.leaf("h2", &[], "iSCSI sessions");
        sessions(look, h, |_| true);
        h.leaf("h2", &[], "NFS clients");
        let heads = ["client", "#core", "#connected for", "#calls", ""];
        h.table(
            "Connections of NFS clients",
            &heads,
            "No NFS client is connected.",
            &look.status.nfs.clients,
            |row, one| {
                row.cell(&one.peer).number(&one.core.to_string()).number(&duration(one.age_s));
                row.number(&show::count(one.calls));
                row.with(|h| {
                    if look.may(Role::Operate) {
                        let values = [("client", one.peer.as_str())];
                        fields::small(
                            h,
                            "/change/disconnect",
                            look.visitor,
                            &values,
                            "Disconnect",
                            &one.peer,
                        );
                    }
                });
            },
        );
    })
}

/// The sessions that `which` chooses.
pub fn sessions(look: &Look<'_>, h: &mut Html, which: impl Fn(&SessionStatus) -> bool) {
    let all: Vec<&SessionStatus> = look.status.sessions.iter().filter(|one| which(one)).collect();
    let heads = ["initiator", "CHAP user", "target", "from", "by", "#for", "#reads", "#writes", ""];
    h.table("iSCSI sessions", &heads, "Nobody is logged in.", &all, |row, one| {
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
                let values = [("session", session.as_str())];
                let about = format!("session {session} of {}", one.initiator);
                fields::small(h, "/change/disconnect", look.visitor, &values, "Disconnect", &about);
            }
        });
    });
}
