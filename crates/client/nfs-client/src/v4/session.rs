//! A session of NFSv4.1 (RFC 8881 §2.10). Its slots are the window of requests. When the server
//! does not know it any more, the client creates a new one and reclaims its opens.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use nfs::v4::flags::exchange_id::{CONFIRMED_R, USE_NON_PNFS};
use nfs::v4::{
    self, Arguments, CallWriter, CallbackSecurity, Channel, ClientId, ClientOwner, CreateSession, ExchangeId,
    Fore, Item as _, Located, Outcome, Results, Sequence, SessionId, StateProtect, Status, Verifier,
};
use rpc::xdr::{List, Opaque};
use runtime::{Chain, Notify};

use super::opens::Open;
use crate::calls::{Answer, Caller};
use crate::error::Error;
use crate::message::Room;
use crate::patience::Patience;

/// Bytes requested for a message of the fore channel, beyond the data of one READ or WRITE.
const HEADERS: u32 = 8 << 10;
/// The most bytes of a READ's or a WRITE's message besides the data.
const AROUND_DATA: u32 = 2 << 10;
/// Slots requested.
const SLOTS: u32 = 128;
/// The longest wait before a request is repeated that the server answers with NFS4ERR_DELAY.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// Lease time assumed until the server reports it.
const LEASE: Duration = Duration::from_secs(30);
/// Attempts to create a session in a row before that is an error.
const ATTEMPTS: usize = 8;

/// A reply to a COMPOUND that succeeded.
pub(crate) struct Done {
    answer: Answer,
    /// Results that are not the caller's: that of SEQUENCE.
    skip: usize,
}

impl Done {
    /// The results, in order.
    pub fn results(&self) -> Result<Vec<Located<Results<'_>>>, Error> {
        let mut results = v4::Reply::<Fore>::read(self.answer.body())?.results;
        let mut all = Vec::new();
        while let Some(value) = results.head() {
            let value = value?;
            let length = value.payload_length();
            let apart = match results.left() {
                0 => self.answer.payload_apart(results.position(), length)?,
                _ => None,
            };
            let payload = apart.map_or_else(|| results.payload(length), Ok)?;
            all.push(Located { value, payload });
        }
        all.drain(..self.skip.min(all.len()));
        Ok(all)
    }

    /// The payload of the results.
    pub fn into_payload(self, part: std::ops::Range<usize>) -> Chain {
        self.answer.into_payload(part)
    }
}

/// Outcome of an attempt.
enum Attempt {
    Done(Done),
    /// The session, or all state with it, is gone.
    NoSession(Status),
    Failed(Error),
}

struct Slot {
    sequence: u32,
    busy: bool,
}

/// A session, as long as the server knows it.
struct Established {
    id: SessionId,
    slots: Vec<Slot>,
    fore: Channel,
}

/// A client ID with a session.
pub(crate) struct Session {
    calls: Caller,
    minor: u32,
    /// Client owner (`co_ownerid`): unique for each session that a process makes.
    owner: [u8; 24],
    client: Cell<Option<ClientId>>,
    established: RefCell<Option<Established>>,
    /// A task is creating the session again.
    mending: Cell<bool>,
    /// Notified when a slot becomes free, or the session exists.
    news: Notify,
    /// The last request that renewed the lease.
    renewed: Cell<Instant>,
    lease: Cell<Duration>,
    opens: RefCell<Vec<Weak<Open>>>,
}

/// A request's slot. If the caller drops its request, the session is dropped too, since the slot's
/// sequence ID is unknown then.
struct Held<'s> {
    session: &'s Session,
    id: SessionId,
    index: usize,
    done: bool,
}

impl Held<'_> {
    /// Frees the slot, after its request was executed if it was.
    fn free(&mut self, executed: bool) {
        self.done = true;
        if let Some(established) = self.session.established.borrow_mut().as_mut()
            && established.id == self.id
            && let Some(slot) = established.slots.get_mut(self.index)
        {
            slot.busy = false;
            slot.sequence = slot.sequence.wrapping_add(u32::from(executed));
        }
        self.session.news.notify();
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.session.forget(self.id);
        }
    }
}

impl Session {
    /// Makes a client ID and a session of a minor version.
    pub async fn begin(calls: Caller, minor: u32) -> Result<Rc<Self>, Error> {
        let mut owner = *b"stag 0123456789abcdef...";
        runtime::random(&mut owner[5..]).map_err(|_| Error::Refused("there is no randomness here"))?;
        let session = Rc::new(Session {
            calls,
            minor,
            owner,
            client: Cell::new(None),
            established: RefCell::new(None),
            mending: Cell::new(false),
            news: Notify::default(),
            renewed: Cell::new(runtime::now()),
            lease: Cell::new(LEASE),
            opens: RefCell::default(),
        });
        session.mend().await?;
        drop(runtime::spawn(renew(Rc::downgrade(&session))));
        Ok(session)
    }

    pub fn calls(&self) -> &Caller {
        &self.calls
    }

    /// Records an open, so that it is reclaimed if need be.
    pub fn note(&self, open: &Rc<Open>) {
        let mut opens = self.opens.borrow_mut();
        opens.retain(|known| known.strong_count() > 0 && !known.ptr_eq(&Rc::downgrade(open)));
        opens.push(Rc::downgrade(open));
    }

    pub fn set_lease(&self, lease: Duration) {
        self.lease.set(lease.max(Duration::from_secs(1)));
    }

    /// The most bytes of a READ's and of a WRITE's data.
    pub fn sizes(&self) -> (u32, u32) {
        let fore = self.established.borrow().as_ref().map(|it| it.fore).unwrap_or_default();
        (
            fore.max_response.saturating_sub(AROUND_DATA).max(512),
            fore.max_request.saturating_sub(AROUND_DATA).max(512),
        )
    }

    /// Runs operations in the session. `keep` asks the server to keep the reply, as operations need
    /// that must not be executed twice. An error of an operation is an error.
    ///
    /// # Errors
    /// Those of the connection, and [`Error::Status`].
    pub async fn run(&self, operations: &[Arguments<'_>], payload: Chain, keep: bool) -> Result<Done, Error> {
        let mut patience = Patience::new(self.calls.options().give_up);
        loop {
            self.mend().await?;
            match self.attempt(operations, payload.clone(), keep).await {
                Attempt::Done(done) => return Ok(done),
                Attempt::NoSession(status) => {
                    tracing::info!(server = self.calls.place(), ?status, "the session is gone");
                    if !patience.wait(LONGEST_WAIT).await {
                        return Err(Error::Status(status));
                    }
                }
                Attempt::Failed(Error::Status(status @ (Status::Delay | Status::Grace))) => {
                    if !patience.wait(LONGEST_WAIT).await {
                        return Err(Error::Status(status));
                    }
                }
                Attempt::Failed(error) => return Err(error),
            }
        }
    }

    /// One attempt of [`Self::run`].
    async fn attempt(&self, operations: &[Arguments<'_>], payload: Chain, keep: bool) -> Attempt {
        loop {
            let (mut held, sequence, highest) = self.hold().await;
            let first = Arguments::Sequence(Sequence {
                session: held.id,
                sequence,
                slot: held.index as u32,
                highest_slot: highest,
                cache: keep,
            });
            let answer = self.compound(Some(&first), operations, payload.clone()).await;
            let answer = match answer {
                Ok(answer) => answer,
                Err(error) => return Attempt::Failed(error),
            };
            let (first, outcome) = match first_and_last(&answer) {
                Ok(found) => found,
                Err(error) => return Attempt::Failed(error),
            };
            match first {
                None => {
                    held.free(true);
                    self.renewed.set(runtime::now());
                    return match outcome {
                        Outcome::Ok(()) => Attempt::Done(Done { answer, skip: 1 }),
                        Outcome::Err(status, ()) => Attempt::Failed(Error::Status(status)),
                    };
                }
                // The server has executed the request, and does not know its reply: it may run
                // again.
                Some(Status::RetryUncachedRep) => held.free(true),
                Some(Status::Delay) => {
                    held.free(false);
                    return Attempt::Failed(Error::Status(Status::Delay));
                }
                Some(
                    status @ (Status::ReqTooBig
                    | Status::TooManyOps
                    | Status::RepTooBig
                    | Status::RepTooBigToCache),
                ) => {
                    held.free(false);
                    return Attempt::Failed(Error::Status(status));
                }
                // Dropping the slot drops the session.
                Some(status) => return Attempt::NoSession(status),
            }
        }
    }

    /// Slots of the session; 0 while there is none.
    pub fn slots(&self) -> u32 {
        self.established.borrow().as_ref().map_or(0, |it| it.slots.len() as u32)
    }

    /// Waits for a free slot. Returns it, its next sequence ID, and the highest slot in use.
    async fn hold(&self) -> (Held<'_>, u32, u32) {
        let (id, index, sequence, highest) = self
            .news
            .until(|| {
                let mut established = self.established.borrow_mut();
                let established = established.as_mut()?;
                let index = established.slots.iter().position(|slot| !slot.busy)?;
                established.slots[index].busy = true;
                let sequence = established.slots[index].sequence.wrapping_add(1);
                let highest = established.slots.iter().rposition(|slot| slot.busy).unwrap_or(index);
                Some((established.id, index, sequence, highest as u32))
            })
            .await;
        (Held { session: self, id, index, done: false }, sequence, highest)
    }

    /// Drops a session.
    fn forget(&self, id: SessionId) {
        let mut established = self.established.borrow_mut();
        if established.as_ref().is_some_and(|it| it.id == id) {
            *established = None;
        }
        drop(established);
        self.news.notify();
    }

    /// Sends a COMPOUND.
    async fn compound(
        &self,
        first: Option<&Arguments<'_>>,
        operations: &[Arguments<'_>],
        payload: Chain,
    ) -> Result<Answer, Error> {
        let number = (v4::PROGRAM, v4::VERSION, v4::COMPOUND);
        let write = |to: &mut rpc::xdr::Writer<'_>| {
            let mut call = CallWriter::<Fore>::new(to, Opaque::EMPTY, self.minor, ());
            first.into_iter().chain(operations).for_each(|one| call.push(one));
        };
        self.calls.call_for(number, write, payload, room(operations)).await
    }

    /// Runs the only operation of a COMPOUND without a session.
    async fn bare(&self, operation: Arguments<'_>) -> Result<Done, Error> {
        let mut patience = Patience::new(self.calls.options().give_up);
        loop {
            let answer = self.compound(None, std::slice::from_ref(&operation), Chain::new()).await?;
            match v4::Reply::<Fore>::read(answer.body())?.outcome {
                Outcome::Ok(()) => return Ok(Done { answer, skip: 0 }),
                Outcome::Err(Status::Delay, ()) if patience.wait(LONGEST_WAIT).await => {}
                Outcome::Err(status, ()) => return Err(Error::Status(status)),
            }
        }
    }

    /// Creates the session if there is none. Only one task does that; others wait for it.
    async fn mend(&self) -> Result<(), Error> {
        loop {
            self.news.until(|| (!self.mending.get()).then_some(())).await;
            if self.established.borrow().is_some() {
                return Ok(());
            }
            if !self.mending.replace(true) {
                break;
            }
        }
        let _mending = Mending(self);
        let mut failed = Error::Status(Status::BadSession);
        for _ in 0..ATTEMPTS {
            match self.establish().await {
                Ok(()) => return Ok(()),
                Err(Error::Status(
                    status @ (Status::StaleClientId
                    | Status::BadSession
                    | Status::SeqMisordered
                    | Status::DeadSession),
                )) => failed = Error::Status(status),
                Err(error) => return Err(error),
            }
        }
        Err(failed)
    }

    async fn establish(&self) -> Result<(), Error> {
        let exchange = ExchangeId {
            client: ClientOwner {
                verifier: Verifier(*b"stagstag"),
                owner: Opaque::new(&self.owner).unwrap_or(Opaque::EMPTY),
            },
            flags: USE_NON_PNFS,
            protect: StateProtect::None(()),
            implementation: None,
        };
        let done = self.bare(Arguments::ExchangeId(exchange)).await?;
        let results = done.results()?;
        let [Located { value: Results::ExchangeId(Outcome::Ok(exchanged)), .. }] = &results[..] else {
            return Err(Error::Nonsense("the results are of another operation"));
        };
        let kept = exchanged.flags & CONFIRMED_R != 0 && self.client.get() == Some(exchanged.client);
        let most = u32::try_from(self.calls.options().max_reply).unwrap_or(u32::MAX);
        let fore = Channel {
            header_padding: 0,
            max_request: (1 << 20) + HEADERS,
            max_response: most.min((1 << 20) + HEADERS),
            max_response_cached: HEADERS,
            max_operations: 8,
            max_requests: SLOTS,
            rdma_ird: None,
        };
        // The server makes no calls over it, and yet knfsd requires a usable one.
        let back = Channel {
            max_request: 4096,
            max_response: 4096,
            max_response_cached: 0,
            max_operations: 2,
            max_requests: 1,
            ..fore
        };
        let create = CreateSession {
            client: exchanged.client,
            sequence: exchanged.sequence,
            flags: 0,
            fore,
            back,
            program: 0x4000_0000,
            security: List::of(&[CallbackSecurity::None(())]),
        };
        let done = self.bare(Arguments::CreateSession(create)).await?;
        let results = done.results()?;
        let [Located { value: Results::CreateSession(Outcome::Ok(created)), .. }] = &results[..] else {
            return Err(Error::Nonsense("the results are of another operation"));
        };
        self.client.set(Some(exchanged.client));
        let slots = created.fore.max_requests.clamp(1, SLOTS);
        let slots = (0..slots).map(|_| Slot { sequence: 0, busy: false }).collect();
        *self.established.borrow_mut() = Some(Established { id: created.session, slots, fore: created.fore });
        if !kept {
            if let Err(error) = self.reclaim().await {
                *self.established.borrow_mut() = None;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Reclaims the state that a restarted server lets this client reclaim, and sends
    /// RECLAIM_COMPLETE.
    async fn reclaim(&self) -> Result<(), Error> {
        let opens: Vec<Rc<Open>> = self.opens.borrow().iter().filter_map(Weak::upgrade).collect();
        for open in opens {
            let mut patience = Patience::new(self.calls.options().give_up);
            loop {
                match self.attempt(&open.reclaim(), Chain::new(), true).await {
                    Attempt::Done(done) => drop(open.take(&done)?),
                    Attempt::NoSession(status) => return Err(Error::Status(status)),
                    Attempt::Failed(Error::Status(Status::Delay)) if patience.wait(LONGEST_WAIT).await => {
                        continue;
                    }
                    // It is opened again when it is used.
                    Attempt::Failed(Error::Status(status)) => {
                        tracing::debug!(?status, "an open was not reclaimed");
                    }
                    Attempt::Failed(error) => return Err(error),
                }
                break;
            }
        }
        let mut patience = Patience::new(self.calls.options().give_up);
        loop {
            match self.attempt(&[Arguments::ReclaimComplete(false)], Chain::new(), true).await {
                Attempt::Done(_) => return Ok(()),
                Attempt::NoSession(status) => return Err(Error::Status(status)),
                Attempt::Failed(Error::Status(Status::CompleteAlready)) => return Ok(()),
                Attempt::Failed(Error::Status(Status::Delay)) if patience.wait(LONGEST_WAIT).await => {}
                Attempt::Failed(error) => return Err(error),
            }
        }
    }

    /// Ends the session and the client ID, so that the server keeps nothing until the lease ends.
    pub async fn end(&self) {
        let Some(id) = self.established.borrow_mut().take().map(|it| it.id) else { return };
        let ended = match self.bare(Arguments::DestroySession(id)).await {
            Ok(_) => match self.client.get() {
                Some(client) => self.bare(Arguments::DestroyClientId(client)).await.map(drop),
                None => Ok(()),
            },
            Err(error) => Err(error),
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "the session's end");
        }
    }
}

/// Ends [`Session::mending`].
struct Mending<'s>(&'s Session);

impl Drop for Mending<'_> {
    fn drop(&mut self) {
        self.0.mending.set(false);
        self.0.news.notify();
    }
}

/// Bound on the reply's length of operations. Only the last one may have long results.
fn room(operations: &[Arguments<'_>]) -> Room {
    match operations.last() {
        Some(Arguments::Read(read)) => Room::read(read.count),
        Some(Arguments::ReadDir(list)) => Room::results(list.max_count as usize + Room::SMALL.rest),
        Some(Arguments::ReadLink(()) | Arguments::ExchangeId(_)) => Room::results(HEADERS as usize),
        _ => Room::SMALL,
    }
}

/// The error of SEQUENCE, and the outcome of the whole.
fn first_and_last(answer: &Answer) -> Result<(Option<Status>, Outcome<()>), Error> {
    let mut reply = v4::Reply::<Fore>::read(answer.body())?;
    let outcome = reply.outcome;
    match reply.results.head() {
        Some(Ok(Results::Sequence(Outcome::Ok(_)))) => Ok((None, outcome)),
        Some(Ok(Results::Sequence(Outcome::Err(status, ())))) => Ok((Some(status), outcome)),
        Some(Err(error)) => Err(error.into()),
        Some(Ok(_)) => Err(Error::Nonsense("the first result is not that of SEQUENCE")),
        None => match outcome {
            Outcome::Err(status, ()) => Err(Error::Status(status)),
            Outcome::Ok(()) => Err(Error::Nonsense("a COMPOUND without results")),
        },
    }
}

/// Renews the lease with a lone SEQUENCE when no other request has for a third of it.
async fn renew(session: Weak<Session>) {
    loop {
        let Some(wait) = session.upgrade().map(|session| {
            let due = session.renewed.get() + session.lease.get() / 3;
            due.saturating_duration_since(runtime::now()).max(Duration::from_millis(100))
        }) else {
            return;
        };
        runtime::sleep(wait).await;
        let Some(session) = session.upgrade() else { return };
        if session.established.borrow().is_some()
            && runtime::now() - session.renewed.get() >= session.lease.get() / 3
            && let Err(error) = session.run(&[], Chain::new(), false).await
        {
            tracing::warn!(%error, "the lease was not renewed");
            session.renewed.set(runtime::now());
        }
    }
}
