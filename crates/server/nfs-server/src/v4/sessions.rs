//! The operations on clients, sessions and their connections, and on stateids as such (RFC 8881
//! §18.33 to §18.51).

use nfs::v4::state::Principal;
use nfs::v4::{
    BackchannelCtl, BindConnToSession, BindConnToSessionOk, ClientId, CreateSession, ExchangeId,
    ExchangeIdOk, Outcome, Results, ServerOwner, SessionId, StateProtect, StateProtected, Stateid, Status,
};
use rpc::xdr::{List, Opaque};
use server_core::audit::{self, Who};

use super::compound::{Compound, Done, Results as Reply};
use crate::caller::Identity;

/// Runs `then` with the caller's principal.
fn with_principal<T>(c: &Compound<'_>, then: impl FnOnce(Principal<'_>) -> T) -> T {
    let uid = match c.identity {
        Identity::Anonymous => None,
        Identity::Unix { uid, .. } => Some(uid.to_be_bytes()),
    };
    let user = uid.as_ref().map_or(&[][..], |it| &it[..]);
    then(Principal { user, host: c.client.peer.ip().to_canonical() })
}

pub(super) fn exchange_id(c: &Compound<'_>, what: &ExchangeId<'_>, to: &mut Reply<'_, '_>) -> Done {
    if let StateProtect::Ssv(_) = what.protect {
        return Err(Status::EncrAlgUnsupp.into());
    }
    let shared = &c.client.shared;
    let exchanged = with_principal(c, |principal| {
        shared.state.with(|state, now| state.exchange_id(now, principal, &what.client, what.flags))
    })
    .inspect_err(|status| {
        if *status == Status::ClidInUse {
            let initiator = Some(what.client.owner.bytes().escape_ascii().to_string());
            let why = "a client of this name is in use on another host, or by another user";
            audit::refused(&shared.hub, c.client.peer, &Who { initiator, ..Who::default() }, &why);
        }
    })?;
    // Of all addresses of this server, and of no other server's.
    let name = c.model.handles.export("server").0.to_be_bytes();
    // Eight bytes fit.
    let name = Opaque::new(&name).unwrap_or(Opaque::EMPTY);
    to.push(&Results::ExchangeId(Outcome::Ok(ExchangeIdOk {
        client: exchanged.client,
        sequence: exchanged.sequence,
        flags: exchanged.flags,
        protect: StateProtected::None(()),
        server: ServerOwner { minor: 0, major: name },
        scope: name,
        implementation: None,
    })));
    Ok(())
}

pub(super) fn create_session(c: &Compound<'_>, what: CreateSession<'_>, to: &mut Reply<'_, '_>) -> Done {
    c.client.known.set(true);
    let created = with_principal(c, |principal| {
        c.client
            .shared
            .state
            .with(|state, now| state.create_session(now, c.client.connection, principal, c.minor, &what))
    })?;
    to.push(&Results::CreateSession(Outcome::Ok(created)));
    Ok(())
}

pub(super) fn bind(c: &Compound<'_>, what: BindConnToSession, to: &mut Reply<'_, '_>) -> Done {
    c.client.known.set(true);
    let direction = c
        .client
        .shared
        .state
        .with(|state, _| state.bind(c.client.connection, what.session, what.direction))?;
    let bound = BindConnToSessionOk { session: what.session, direction, rdma: false };
    to.push(&Results::BindConnToSession(Outcome::Ok(bound)));
    Ok(())
}

pub(super) fn set_backchannel(c: &Compound<'_>, what: BackchannelCtl<'_>, to: &mut Reply<'_, '_>) -> Done {
    let running = c.running.as_ref().ok_or(Status::OpNotInSession)?;
    let session = running.answer().session;
    c.state(|state, _, _| state.set_backchannel(session, what.program, what.security))?;
    to.push(&Results::BackchannelCtl(Outcome::Ok(())));
    Ok(())
}

pub(super) fn destroy_session(c: &Compound<'_>, session: SessionId, to: &mut Reply<'_, '_>) -> Done {
    c.client
        .shared
        .state
        .with(|state, _| state.destroy_session(c.client.connection, session, c.running.as_ref()))?;
    to.push(&Results::DestroySession(Outcome::Ok(())));
    Ok(())
}

pub(super) fn destroy_client(c: &Compound<'_>, client: ClientId, to: &mut Reply<'_, '_>) -> Done {
    let host = c.client.peer.ip().to_canonical();
    c.client.shared.state.with(|state, now| state.destroy_client(now, host, client))?;
    to.push(&Results::DestroyClientId(Outcome::Ok(())));
    Ok(())
}

pub(super) fn reclaim_complete(c: &Compound<'_>, one: bool, to: &mut Reply<'_, '_>) -> Done {
    if one {
        c.current()?;
    }
    c.state(|state, now, client| state.reclaim_complete(now, client, one))?;
    to.push(&Results::ReclaimComplete(Outcome::Ok(())));
    Ok(())
}

pub(super) fn test_stateids(c: &Compound<'_>, list: List<'_, Stateid>, to: &mut Reply<'_, '_>) -> Done {
    let found: Vec<Outcome<()>> = c.state(|state, _, client| {
        let test = |stateid| match state.test_stateid(client, stateid) {
            Ok(()) => Outcome::Ok(()),
            Err(status) => Outcome::Err(status, ()),
        };
        Ok(list.iter().map(test).collect())
    })?;
    to.push(&Results::TestStateid(Outcome::Ok(List::of(&found))));
    Ok(())
}

pub(super) fn free_stateid(c: &Compound<'_>, stateid: Stateid, to: &mut Reply<'_, '_>) -> Done {
    let stateid = c.stateid(stateid)?;
    c.state(|state, _, client| state.free_stateid(client, stateid))?;
    to.push(&Results::FreeStateid(Outcome::Ok(())));
    Ok(())
}
