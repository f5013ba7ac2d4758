//! Version 4.1: clients, sessions and slots (RFC 8881 §2.10, §18.33 to §18.37, §18.46, §18.50).

use nfs::v4::{Arguments, Channel, ClientId, Sequence, SessionId, Status, flags};

use crate::check::{Area, Check};
use crate::finding::{Verdict, expect, not_applicable, wrong};
use crate::share::{
    CHANNEL, Conn, Four, Lab, Reply4, alone, compound, create_session, exchange_id, get, ok4, put, send,
};

const S: Area = Area::V4Sessions;

pub(super) const CHECKS: &[Check] = &[
    Check::nfs(
        S,
        "exchange-id",
        "RFC 8881 §18.35",
        "EXCHANGE_ID of a new client returns it unconfirmed, with a role of pNFS or without.",
        "The client could not tell a new record from its old one.",
        exchange_id_of_a_new_client,
    ),
    Check::nfs(
        S,
        "exchange-id-again",
        "RFC 8881 §18.35.4",
        "EXCHANGE_ID of a confirmed client with the same verifier returns it as confirmed.",
        "A client that lost its connection would lose its state.",
        exchange_id_again,
    ),
    Check::nfs(
        S,
        "exchange-id-unknown-flags",
        "RFC 8881 §18.35.3",
        "EXCHANGE_ID with an undefined flag fails with INVAL.",
        "New flags could never be told from old servers.",
        exchange_id_unknown_flags,
    ),
    Check::nfs(
        S,
        "exchange-id-update-of-nobody",
        "RFC 8881 §18.35.4",
        "EXCHANGE_ID that updates a client that is not confirmed fails with NOENT.",
        "The client would believe in a record that is not there.",
        exchange_id_update_of_nobody,
    ),
    Check::nfs(
        S,
        "create-session-unknown-client",
        "RFC 8881 §18.36.3",
        "CREATE_SESSION of an unknown client fails with STALE_CLIENTID.",
        "After a restart of the server a client learns by it to start again.",
        create_session_unknown_client,
    ),
    Check::nfs(
        S,
        "create-session-misordered",
        "RFC 8881 §18.36.4",
        "CREATE_SESSION with a wrong sequence fails with SEQ_MISORDERED.",
        "An old request would make a second session.",
        create_session_misordered,
    ),
    Check::nfs(
        S,
        "create-session-again",
        "RFC 8881 §18.36.4",
        "CREATE_SESSION that is sent again returns the same session.",
        "Each lost reply would leave a session behind.",
        create_session_again,
    ),
    Check::nfs(
        S,
        "create-session-too-small",
        "RFC 8881 §18.36.3",
        "CREATE_SESSION with replies of at most 16 bytes fails with TOOSMALL.",
        "No reply would fit the session.",
        create_session_too_small,
    ),
    Check::nfs(
        S,
        "create-session-channel",
        "RFC 8881 §18.36.3",
        "The fore channel is no larger than requested, and has an operation and a slot at least.",
        "The server would send more than the client takes.",
        create_session_channel,
    ),
    Check::nfs(
        S,
        "sequence-answers",
        "RFC 8881 §18.46",
        "SEQUENCE returns the session, slot and sequence of the request.",
        "The client could not tell which request was executed.",
        sequence_answers,
    ),
    Check::nfs(
        S,
        "sequence-replay",
        "RFC 8881 §2.10.6.1",
        "A cached request that is sent again gets the same reply, and is not executed again.",
        "A file would be made twice after a lost reply.",
        sequence_replay,
    ),
    Check::nfs(
        S,
        "sequence-false-retry",
        "RFC 8881 §2.10.6.1.3.1, §15.1.10.10",
        "Another request with an old sequence never gets the result of its own operations.",
        "A request would be lost, or be executed out of order.",
        sequence_false_retry,
    ),
    Check::nfs(
        S,
        "sequence-misordered",
        "RFC 8881 §18.46.3",
        "SEQUENCE with a number two ahead or behind fails with SEQ_MISORDERED.",
        "Requests that were lost would go unnoticed.",
        sequence_misordered,
    ),
    Check::nfs(
        S,
        "bad-slot",
        "RFC 8881 §18.46.3",
        "SEQUENCE with a slot beyond the channel's fails with BADSLOT.",
        "A client could make the server's table grow.",
        bad_slot,
    ),
    Check::nfs(
        S,
        "bad-highest-slot",
        "RFC 8881 §18.46.3",
        "SEQUENCE with a highest slot beyond the channel's fails with BAD_HIGH_SLOT.",
        "The server would keep replies for slots that are not there.",
        bad_highest_slot,
    )
    .recommended(),
    Check::nfs(
        S,
        "bad-session",
        "RFC 8881 §18.46.3",
        "SEQUENCE of an unknown session fails with BADSESSION.",
        "A client learns by it that the server has restarted.",
        bad_session,
    ),
    Check::nfs(
        S,
        "new-slot-begins-at-1",
        "RFC 8881 §2.10.6.1",
        "The first request of a slot has the number 1, and 2 is misordered.",
        "Both sides must begin alike.",
        new_slot_begins_at_1,
    ),
    Check::nfs(
        S,
        "sequence-first",
        "RFC 8881 §2.10.2.1, §15.1.10.7",
        "A COMPOUND that begins with PUTROOTFH fails with OP_NOT_IN_SESSION.",
        "It would be executed twice after a lost reply.",
        sequence_first,
    ),
    Check::nfs(
        S,
        "sequence-once",
        "RFC 8881 §18.46.3",
        "SEQUENCE behind another operation fails with SEQUENCE_POS.",
        "One request would use two slots.",
        sequence_once,
    ),
    Check::nfs(
        S,
        "alone-without-session",
        "RFC 8881 §15.1.3.7, §18.35.3",
        "EXCHANGE_ID without SEQUENCE and with another operation fails with NOT_ONLY_OP.",
        "The rest would be executed without a session.",
        alone_without_session,
    ),
    Check::nfs(
        S,
        "too-many-operations",
        "RFC 8881 §15.1.3.8, §18.36.3",
        "A request of more operations than the channel has fails with TOO_MANY_OPS.",
        "The channel's limit would mean nothing.",
        too_many_operations,
    ),
    Check::nfs(
        S,
        "reclaim-complete-twice",
        "RFC 8881 §18.51.4",
        "A second RECLAIM_COMPLETE fails with COMPLETE_ALREADY.",
        "A client could reclaim what others have since.",
        reclaim_complete_twice,
    ),
    Check::nfs(
        S,
        "open-before-reclaim-complete",
        "RFC 8881 §18.51.3",
        "OPEN before RECLAIM_COMPLETE fails with GRACE.",
        "New state could conflict with state that is still to be reclaimed.",
        open_before_reclaim_complete,
    )
    .recommended(),
    Check::nfs(
        S,
        "destroy-session",
        "RFC 8881 §18.37",
        "DESTROY_SESSION ends a session: SEQUENCE fails with BADSESSION after it.",
        "Sessions would be kept for ever.",
        destroy_session,
    ),
    Check::nfs(
        S,
        "destroy-unknown-session",
        "RFC 8881 §18.37.3",
        "DESTROY_SESSION of an unknown session fails with BADSESSION.",
        "The client would believe that it ended another one.",
        destroy_unknown_session,
    ),
    Check::nfs(
        S,
        "destroy-clientid-busy",
        "RFC 8881 §18.50.3",
        "DESTROY_CLIENTID of a client with a session fails with CLIENTID_BUSY.",
        "The session would belong to nobody.",
        destroy_clientid_busy,
    ),
    Check::nfs(
        S,
        "destroy-clientid",
        "RFC 8881 §18.50",
        "DESTROY_CLIENTID of a client without sessions and state ends it.",
        "Clients would be kept until their leases end.",
        destroy_clientid,
    ),
    Check::nfs(
        S,
        "destroy-unknown-clientid",
        "RFC 8881 §18.50.3",
        "DESTROY_CLIENTID of an unknown client fails with STALE_CLIENTID.",
        "The client would believe that it ended another one.",
        destroy_unknown_clientid,
    ),
    Check::nfs(
        S,
        "restart-of-the-client",
        "RFC 8881 §18.35.4",
        "A client with a new verifier ends the session of its old one.",
        "Locks of a client that crashed would stay.",
        restart_of_the_client,
    ),
];

/// A connection, and the minor version.
fn bare(lab: &Lab) -> Verdict<(Conn, u32)> {
    Ok((lab.connect()?, lab.four.clone()?))
}

fn exchanged(conn: &mut Conn, minor: u32, owner: &[u8], verifier: u64) -> Verdict<(ClientId, u32, u32)> {
    let reply = alone(conn, minor, &[exchange_id(owner, verifier, 0)])?;
    let found = ok4!(reply, ExchangeId);
    Ok((found.client, found.sequence, found.flags))
}

fn exchange_id_of_a_new_client(lab: &Lab) -> Verdict {
    let (mut conn, minor) = bare(lab)?;
    let (client, _, told) = exchanged(&mut conn, minor, &lab.client("new"), 1)?;
    let confirmed = told & flags::exchange_id::CONFIRMED_R != 0;
    let roles = told & flags::exchange_id::MASK_PNFS != 0;
    expect(!confirmed && roles, "not CONFIRMED_R, and a role", || format!("flags {told:#x}"))?;
    let _ = alone(&mut conn, minor, &[Arguments::DestroyClientId(client)]);
    Ok(())
}

fn exchange_id_again(lab: &Lab) -> Verdict {
    let (mut conn, minor) = bare(lab)?;
    let owner = lab.client("again");
    let (client, sequence, _) = exchanged(&mut conn, minor, &owner, 7)?;
    alone(&mut conn, minor, &[create_session(client, sequence, CHANNEL)])?.good()?;
    let (again, _, told) = exchanged(&mut conn, minor, &owner, 7)?;
    expect(
        again == client && told & flags::exchange_id::CONFIRMED_R != 0,
        "the same client, confirmed",
        || format!("client {:x} after {:x}, flags {told:#x}", again.0, client.0),
    )
}

fn exchange_id_unknown_flags(lab: &Lab) -> Verdict {
    let (mut conn, minor) = bare(lab)?;
    alone(&mut conn, minor, &[exchange_id(&lab.client("flags"), 1, 0x0000_0800)])?.fails(&[Status::Inval])
}

fn exchange_id_update_of_nobody(lab: &Lab) -> Verdict {
    let (mut conn, minor) = bare(lab)?;
    let update = flags::exchange_id::UPD_CONFIRMED_REC_A;
    alone(&mut conn, minor, &[exchange_id(&lab.client("nobody"), 1, update)])?.fails(&[Status::NoEnt])
}

fn create_session_unknown_client(lab: &Lab) -> Verdict {
    let (mut conn, minor) = bare(lab)?;
    let client = ClientId(0x1234_5678_9abc_def0);
    alone(&mut conn, minor, &[create_session(client, 1, CHANNEL)])?.fails(&[Status::StaleClientId])
}

fn create_session_misordered(lab: &Lab) -> Verdict {
    let (mut conn, minor) = bare(lab)?;
    let (client, sequence, _) = exchanged(&mut conn, minor, &lab.client("misordered"), 1)?;
    let late = sequence.wrapping_add(2);
    alone(&mut conn, minor, &[create_session(client, late, CHANNEL)])?.fails(&[Status::SeqMisordered])
}

fn create_session_again(lab: &Lab) -> Verdict {
    let (mut conn, minor) = bare(lab)?;
    let (client, sequence, _) = exchanged(&mut conn, minor, &lab.client("twice"), 1)?;
    let mut sessions = Vec::new();
    for _ in 0..2 {
        let reply = alone(&mut conn, minor, &[create_session(client, sequence, CHANNEL)])?;
        sessions.push(ok4!(reply, CreateSession).session);
    }
    expect(sessions.first() == sessions.last(), "the same session", || "another session".to_owned())
}

fn create_session_too_small(lab: &Lab) -> Verdict {
    let (mut conn, minor) = bare(lab)?;
    let (client, sequence, _) = exchanged(&mut conn, minor, &lab.client("small"), 1)?;
    let fore = Channel { max_response: 16, max_response_cached: 16, ..CHANNEL };
    alone(&mut conn, minor, &[create_session(client, sequence, fore)])?.fails(&[Status::TooSmall])
}

fn create_session_channel(lab: &Lab) -> Verdict {
    let (mut conn, minor) = bare(lab)?;
    let (client, sequence, _) = exchanged(&mut conn, minor, &lab.client("channel"), 1)?;
    let reply = alone(&mut conn, minor, &[create_session(client, sequence, CHANNEL)])?;
    let of = ok4!(reply, CreateSession).fore;
    let fits = of.max_request <= CHANNEL.max_request
        && of.max_response <= CHANNEL.max_response
        && (1..=CHANNEL.max_requests).contains(&of.max_requests)
        && of.max_operations >= 1;
    expect(fits, format!("at most {CHANNEL:?}"), || format!("{of:?}"))
}

fn sequence_of(four: &Four<'_>, sequence: u32, slot: u32, highest_slot: u32) -> Arguments<'static> {
    Arguments::Sequence(Sequence { session: four.session, sequence, slot, highest_slot, cache: false })
}

fn sequence_answers(lab: &Lab) -> Verdict {
    let mut four = Four::client(lab, "first")?;
    let sequence = four.sequence + 1;
    let (slot, minor) = (four.slot(sequence), four.minor);
    let reply = alone(&mut four.conn, minor, &[slot])?;
    let of = ok4!(reply, Sequence);
    expect((of.session, of.slot, of.sequence) == (four.session, 0, sequence), "those of the request", || {
        format!("{of:?}")
    })
}

fn sequence_replay(lab: &Lab) -> Verdict {
    let mut four = Four::new(lab)?;
    four.cache = true;
    let (minor, sequence, dir) = (four.minor, four.sequence + 1, four.dir.clone());
    let create = nfs::v4::Create {
        kind: nfs::v4::CreateType::Directory(()),
        name: crate::share::name("d"),
        attributes: nfs::v4::Fattr::EMPTY,
    };
    let request = compound(minor, &[four.slot(sequence), put(&dir), Arguments::Create(create)], &[]);
    let first = send(&mut four.conn, &request)?;
    crate::finding::setup(first.good(), "to a first reply")?;
    let again = send(&mut four.conn, &request)?;
    four.sequence = sequence;
    expect(again.bytes() == first.bytes(), "the same reply", || again.told())
}

fn sequence_false_retry(lab: &Lab) -> Verdict {
    let mut four = Four::new(lab)?;
    four.cache = true;
    let (minor, sequence, dir) = (four.minor, four.sequence + 1, four.dir.clone());
    let first = compound(minor, &[four.slot(sequence), put(&dir), Arguments::GetFh(())], &[]);
    let first = send(&mut four.conn, &first)?;
    crate::finding::setup(first.good(), "to a first reply")?;
    let remove = Arguments::Remove(crate::share::name("missing"));
    let other = compound(minor, &[four.slot(sequence), put(&dir), remove], &[]);
    let reply = send(&mut four.conn, &other)?;
    four.sequence = sequence;
    let right = reply.error() == Some(Status::SeqFalseRetry) || reply.bytes() == first.bytes();
    expect(right, "SeqFalseRetry, or the cached reply", || reply.told())
}

fn sequence_misordered(lab: &Lab) -> Verdict {
    let mut four = Four::client(lab, "first")?;
    four.run(&[])?.good()?;
    let minor = four.minor;
    for wrong in [four.sequence + 2, four.sequence.wrapping_sub(1)] {
        let slot = four.slot(wrong);
        alone(&mut four.conn, minor, &[slot])?.fails(&[Status::SeqMisordered])?;
    }
    four.run(&[])?.good()
}

fn bad_slot(lab: &Lab) -> Verdict {
    let mut four = Four::client(lab, "first")?;
    let slot = four.channel.max_requests;
    let (request, minor) = (sequence_of(&four, 1, slot, slot), four.minor);
    alone(&mut four.conn, minor, &[request])?.fails(&[Status::BadSlot])
}

fn bad_highest_slot(lab: &Lab) -> Verdict {
    let mut four = Four::client(lab, "first")?;
    let sequence = four.sequence + 1;
    let (request, minor) = (sequence_of(&four, sequence, 0, four.channel.max_requests), four.minor);
    alone(&mut four.conn, minor, &[request])?.fails(&[Status::BadHighSlot])
}

fn bad_session(lab: &Lab) -> Verdict {
    let mut four = Four::client(lab, "first")?;
    let SessionId(mut id) = four.session;
    id.iter_mut().for_each(|byte| *byte ^= 0x5a);
    let session = SessionId(id);
    let request = Sequence { session, sequence: 1, slot: 0, highest_slot: 0, cache: false };
    let minor = four.minor;
    alone(&mut four.conn, minor, &[Arguments::Sequence(request)])?.fails(&[Status::BadSession])
}

fn new_slot_begins_at_1(lab: &Lab) -> Verdict {
    let mut four = Four::client(lab, "first")?;
    if four.channel.max_requests < 2 {
        return not_applicable("the session has one slot");
    }
    let minor = four.minor;
    let request = sequence_of(&four, 2, 1, 1);
    alone(&mut four.conn, minor, &[request])?.fails(&[Status::SeqMisordered])?;
    let request = sequence_of(&four, 1, 1, 1);
    alone(&mut four.conn, minor, &[request])?.good()
}

fn sequence_first(lab: &Lab) -> Verdict {
    let (mut conn, minor) = bare(lab)?;
    let operations = [Arguments::PutRootFh(()), Arguments::GetFh(())];
    alone(&mut conn, minor, &operations)?.fails(&[Status::OpNotInSession])
}

fn sequence_once(lab: &Lab) -> Verdict {
    let mut four = Four::client(lab, "first")?;
    let again = four.slot(four.sequence + 2);
    four.run(&[Arguments::PutRootFh(()), again])?.fails_at(2, &[Status::SequencePos])
}

fn alone_without_session(lab: &Lab) -> Verdict {
    let (mut conn, minor) = bare(lab)?;
    let owner = lab.client("alone");
    let operations = [exchange_id(&owner, 1, 0), Arguments::PutRootFh(())];
    alone(&mut conn, minor, &operations)?.fails(&[Status::NotOnlyOp])
}

fn too_many_operations(lab: &Lab) -> Verdict {
    let mut four = Four::client(lab, "first")?;
    let most = four.channel.max_operations as usize;
    if most > 1000 {
        return not_applicable(format!("the channel takes {most} operations"));
    }
    let reply: Reply4 = four.run(&vec![Arguments::PutRootFh(()); most])?;
    reply.fails(&[Status::TooManyOps])
}

fn reclaim_complete_twice(lab: &Lab) -> Verdict {
    let mut four = Four::client(lab, "first")?;
    four.run(&[Arguments::ReclaimComplete(false)])?.fails(&[Status::CompleteAlready])
}

fn open_before_reclaim_complete(lab: &Lab) -> Verdict {
    let four = Four::new(lab)?;
    let (mut conn, minor) = bare(lab)?;
    let (client, sequence, _) = exchanged(&mut conn, minor, &lab.client("early"), 1)?;
    let reply = alone(&mut conn, minor, &[create_session(client, sequence, CHANNEL)])?;
    let session = ok4!(reply, CreateSession).session;
    let slot = Sequence { session, sequence: 1, slot: 0, highest_slot: 0, cache: false };
    let how = nfs::v4::CreateHow::Unchecked(nfs::v4::Fattr::EMPTY);
    let open = crate::share::open("file", "o", crate::share::READ, 0, Some(how));
    let operations = [Arguments::Sequence(slot), put(&four.dir), open];
    alone(&mut conn, minor, &operations)?.fails(&[Status::Grace])
}

fn destroy_session(lab: &Lab) -> Verdict {
    let mut four = Four::client(lab, "first")?;
    let (minor, session) = (four.minor, four.session);
    alone(&mut four.conn, minor, &[Arguments::DestroySession(session)])?.good()?;
    four.run(&[])?.fails(&[Status::BadSession])
}

fn destroy_unknown_session(lab: &Lab) -> Verdict {
    let (mut conn, minor) = bare(lab)?;
    let session = SessionId([0x5a; 16]);
    alone(&mut conn, minor, &[Arguments::DestroySession(session)])?.fails(&[Status::BadSession])
}

fn destroy_clientid_busy(lab: &Lab) -> Verdict {
    let mut four = Four::client(lab, "first")?;
    let (minor, client) = (four.minor, four.client);
    alone(&mut four.conn, minor, &[Arguments::DestroyClientId(client)])?.fails(&[Status::ClientIdBusy])
}

fn destroy_clientid(lab: &Lab) -> Verdict {
    let mut four = Four::client(lab, "first")?;
    let (minor, client, session) = (four.minor, four.client, four.session);
    alone(&mut four.conn, minor, &[Arguments::DestroySession(session)])?.good()?;
    alone(&mut four.conn, minor, &[Arguments::DestroyClientId(client)])?.good()?;
    alone(&mut four.conn, minor, &[create_session(client, 9, CHANNEL)])?.fails(&[Status::StaleClientId])
}

fn destroy_unknown_clientid(lab: &Lab) -> Verdict {
    let (mut conn, minor) = bare(lab)?;
    let client = ClientId(0x1234_5678_9abc_def0);
    alone(&mut conn, minor, &[Arguments::DestroyClientId(client)])?.fails(&[Status::StaleClientId])
}

fn restart_of_the_client(lab: &Lab) -> Verdict {
    let mut old = Four::client(lab, "restarted")?;
    let mut new = Four::client(lab, "restarted")?;
    new.run(&[Arguments::PutRootFh(()), get(&[1])])?.good()?;
    let reply = old.run(&[])?;
    match reply.error() {
        Some(Status::BadSession | Status::DeadSession) => Ok(()),
        _ => wrong(reply.told(), "BadSession"),
    }
}
