//! [`Client`]: one client with its session. It creates a new session when the server has forgotten
//! the old one, and reclaims the opens and locks of its processes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use nfs::v4::{
    self, Arguments, CallWriter, Channel, ChannelFromClient, ClientId, ClientOwner, CreateSession,
    ExchangeId, Fore, Located, Outcome, Results, Sequence, SessionId, StateProtect, Stateid, Status,
    Verifier, flags,
};
use nfs_client::{Caller, Options, Room};
use rpc::xdr::{List, Opaque};
use runtime::{Chain, Notify};

use super::Books;
use super::held::Opened;
use crate::random::Rng;

/// Slots of a session: the first is the client's own, the others are its processes'.
pub(super) const SLOTS: u32 = 8;
/// Tries of a request that the server puts off.
const TRIES: u32 = 2000;

/// Channel attributes that a session asks for.
const CHANNEL: Channel = Channel {
    header_padding: 0,
    max_request: 64 << 10,
    max_response: 64 << 10,
    max_response_cached: 4096,
    max_operations: 16,
    max_requests: SLOTS,
    rdma_ird: None,
};

/// A client.
pub(super) struct Client {
    pub(super) number: usize,
    pub(super) books: Rc<Books>,
    /// Its connections.
    ways: Vec<Caller>,
    minor: u32,
    /// Names the client.
    name: [u8; 8],
    /// Starts of the client so far.
    starts: Cell<u8>,
    id: Cell<Option<ClientId>>,
    session: RefCell<Option<Session>>,
    mending: Cell<bool>,
    /// Notified when the session has come or gone, or the client has woken up.
    pub(super) news: Notify,
    /// End of the client's sleep.
    asleep: Cell<Option<Instant>>,
    /// Files that its processes have open.
    pub(super) opened: RefCell<Vec<Rc<Opened>>>,
    /// Delegations that the server wants back.
    recalled: RefCell<Vec<Stateid>>,
    rng: RefCell<Rng>,
}

struct Session {
    id: SessionId,
    /// The start of the server that made it.
    start: u64,
    /// The last sequence ID of each slot.
    sequences: [u32; SLOTS as usize],
}

/// The reply to a COMPOUND, from the results on.
pub(super) struct Reply(pub(super) Vec<u8>);

/// Reason for a missing reply.
#[derive(Debug)]
pub(super) enum NoReply {
    /// The session is gone. Whether the request was executed is unknown.
    Lost,
    /// A rule was broken.
    Wrong(String),
}

impl From<String> for NoReply {
    fn from(what: String) -> Self {
        NoReply::Wrong(what)
    }
}

impl Reply {
    /// The error of the COMPOUND.
    pub(super) fn error(&self) -> Option<Status> {
        match v4::Reply::<Fore>::read(&self.0).ok()?.outcome {
            Outcome::Ok(()) => None,
            Outcome::Err(status, ()) => Some(status),
        }
    }

    /// The results.
    pub(super) fn results(&self) -> Result<Vec<Located<Results<'_>>>, String> {
        let reply = v4::Reply::<Fore>::read(&self.0).map_err(|error| error.to_string())?;
        reply.results.collect::<Result<_, _>>().map_err(|error| error.to_string())
    }

    /// The results of a COMPOUND that succeeded.
    pub(super) fn done(&self) -> Result<Vec<Located<Results<'_>>>, String> {
        match self.error() {
            None => self.results(),
            Some(status) => Err(format!("{status:?}: {:?}", self.results())),
        }
    }

    /// The flags of SEQUENCE, or its error.
    fn sequence(&self) -> Result<u32, Status> {
        match self.results().ok().and_then(|all| all.into_iter().next()).map(|one| one.value) {
            Some(Results::Sequence(Outcome::Ok(done))) => Ok(done.status_flags),
            Some(Results::Sequence(Outcome::Err(status, ()))) => Err(status),
            _ => Err(self.error().unwrap_or(Status::ServerFault)),
        }
    }
}

impl Client {
    /// Opens `ways` connections.
    pub(super) async fn connect(
        number: usize,
        ways: usize,
        books: Rc<Books>,
        mut rng: Rng,
    ) -> Result<Rc<Self>, String> {
        let options = Options {
            reserved_port: false,
            call_timeout: Duration::from_secs(5),
            give_up: Duration::from_secs(7200),
            ..Options::default()
        };
        let mut callers = Vec::new();
        for _ in 0..ways {
            let caller = Caller::connect("10.0.0.200", nfs::PORT, options.clone()).await;
            callers.push(caller.map_err(|error| error.to_string())?);
        }
        let client = Rc::new(Self {
            number,
            books,
            ways: callers,
            minor: rng.pick(&[1, 2]),
            name: [b'a' + number as u8; 8],
            starts: Cell::new(0),
            id: Cell::new(None),
            session: RefCell::default(),
            mending: Cell::new(false),
            news: Notify::default(),
            asleep: Cell::new(None),
            opened: RefCell::default(),
            recalled: RefCell::default(),
            rng: RefCell::new(rng),
        });
        for way in &client.ways {
            let client = Rc::downgrade(&client);
            way.serve(Rc::new(move |record| {
                let client = client.upgrade().filter(|client| !client.is_asleep())?;
                super::back::answer(record, |stateid| client.recall(stateid))
            }));
        }
        Ok(client)
    }

    fn is_asleep(&self) -> bool {
        self.asleep.get().is_some_and(|until| until > runtime::clock())
    }

    /// Sleeps: neither sends nor answers for a while.
    pub(super) fn sleep(&self, duration: Duration) {
        self.asleep.set(Some(runtime::clock() + duration));
    }

    /// Forgets everything, like a machine that is switched off and on. Requests of its processes in
    /// flight are lost.
    pub(super) fn restart(&self) {
        if self.mending.get() {
            return;
        }
        *self.session.borrow_mut() = None;
        self.starts.set(self.starts.get() + 1);
        self.recalled.borrow_mut().clear();
        self.opened.take().iter().for_each(|opened| opened.abandon(&self.books));
    }

    /// Waits until it is awake.
    async fn wake(&self) {
        while let Some(until) = self.asleep.get().filter(|until| *until > runtime::clock()) {
            runtime::sleep(until - runtime::clock()).await;
        }
    }

    fn note(&self, line: std::fmt::Arguments<'_>) {
        self.books.verdict.note(format_args!("client {}: {line}", self.number));
    }

    /// Sends a COMPOUND over one of the connections; the payload is that of the last operation.
    async fn send(&self, way: usize, operations: &[Arguments<'_>], payload: &[u8]) -> Result<Reply, String> {
        let number = (v4::PROGRAM, v4::VERSION, v4::COMPOUND);
        self.books.oracle.borrow_mut().sent(self.number);
        let write = |to: &mut rpc::xdr::Writer<'_>| {
            let mut call = CallWriter::<Fore>::new(to, Opaque::EMPTY, self.minor, ());
            operations.iter().for_each(|one| call.push(one));
        };
        let payload = Chain::from(payload.to_vec());
        let answer = self.ways[way].call_for(number, write, payload, Room::read(4096)).await;
        self.books.oracle.borrow_mut().ended(self.number);
        Ok(Reply(answer.map_err(|error| format!("a call fails: {error}"))?.body().to_vec()))
    }

    /// Sends operations in a slot until they are executed; after GRACE or DELAY it sends them
    /// again. Calls `each` before every try.
    pub(super) async fn run(
        &self,
        slot: usize,
        operations: &[Arguments<'_>],
        payload: &[u8],
        mut each: impl FnMut() -> Result<(), String>,
    ) -> Result<Reply, NoReply> {
        for _ in 0..TRIES {
            self.ready().await?;
            each()?;
            let reply = self.once(slot, operations, payload).await?;
            match reply.error() {
                Some(Status::Grace | Status::Delay) => {
                    let pause = self.rng.borrow_mut().between(100, 5000);
                    runtime::sleep(Duration::from_millis(pause)).await;
                }
                _ => return Ok(reply),
            }
            if self.books.verdict.has_failed() {
                return Err(NoReply::Lost);
            }
        }
        Err(NoReply::Wrong(format!("{operations:?} is put off for ever")))
    }

    /// Sends operations in a slot of the current session, until they are executed.
    pub(super) async fn once(
        &self,
        slot: usize,
        operations: &[Arguments<'_>],
        payload: &[u8],
    ) -> Result<Reply, NoReply> {
        let (id, start, sequence) = {
            let mut session = self.session.borrow_mut();
            let session = session.as_mut().ok_or(NoReply::Lost)?;
            session.sequences[slot] = session.sequences[slot].wrapping_add(1);
            (session.id, session.start, session.sequences[slot])
        };
        let sequence =
            Sequence { session: id, sequence, slot: slot as u32, highest_slot: SLOTS - 1, cache: true };
        let all = [&[Arguments::Sequence(sequence)], operations].concat();
        for _ in 0..TRIES {
            self.wake().await;
            let sent = runtime::clock();
            let (way, twice, other) = {
                let mut rng = self.rng.borrow_mut();
                (rng.index(self.ways.len()), rng.chance(100), rng.index(self.ways.len()))
            };
            let reply = match twice {
                false => self.send(way, &all, payload).await?,
                true => self.send_twice((way, other), &all, payload).await?,
            };
            match reply.sequence() {
                // The client or the server has restarted, so that no process waits for the reply.
                Ok(_) if self.session.borrow().as_ref().is_none_or(|it| it.id != id) => {
                    return Err(NoReply::Lost);
                }
                Ok(set) => {
                    self.books.oracle.borrow_mut().renewed(self.number, sent);
                    self.books.commands.set(self.books.commands.get() + 1);
                    if self.rng.borrow_mut().chance(30) {
                        self.retry_falsely(way, &all).await?;
                    }
                    if set & (flags::sequence_status::CB_PATH_DOWN_SESSION) != 0 {
                        self.bind(id).await?;
                    }
                    return Ok(reply);
                }
                Err(Status::Delay) => runtime::sleep(Duration::from_millis(20)).await,
                Err(status @ (Status::BadSession | Status::DeadSession)) => {
                    let mut session = self.session.borrow_mut();
                    if session.as_ref().is_some_and(|it| it.id == id) {
                        self.note(format_args!("{status:?}"));
                        *session = None;
                        if self.books.oracle.borrow().must_know(self.number, start) {
                            return Err(NoReply::Wrong(format!("a session is lost: {status:?}")));
                        }
                    }
                    return Err(NoReply::Lost);
                }
                Err(status) => {
                    return Err(NoReply::Wrong(format!("SEQUENCE ended with {status:?}")));
                }
            }
        }
        Err(NoReply::Wrong("a request is delayed for ever".to_owned()))
    }

    /// Sends the same request twice at once. It is executed once: the second reply is that of the
    /// first, or says that the request still runs.
    async fn send_twice(
        &self,
        (way, other): (usize, usize),
        all: &[Arguments<'_>],
        payload: &[u8],
    ) -> Result<Reply, NoReply> {
        self.books.twice.set(self.books.twice.get() + 1);
        let (one, two) = both(self.send(way, all, payload), self.send(other, all, payload)).await;
        let (one, two) = (one?, two?);
        match (one.sequence(), two.sequence()) {
            (Ok(_), Ok(_)) if one.0 != two.0 => Err(NoReply::Wrong(format!(
                "two replies to one request: {:?} and {:?}",
                one.results(),
                two.results()
            ))),
            (Err(_), Ok(_)) => Ok(two),
            _ => Ok(one),
        }
    }

    /// Sends another request with the number of the last one (RFC 8881 §2.10.6.1.3.1).
    async fn retry_falsely(&self, way: usize, all: &[Arguments<'_>]) -> Result<(), NoReply> {
        let other =
            [&all[..1], &[Arguments::PutRootFh(()), Arguments::GetFh(()), Arguments::GetFh(())]].concat();
        let reply = self.send(way, &other, &[]).await?;
        match reply.sequence() {
            Err(Status::SeqFalseRetry | Status::BadSession | Status::DeadSession | Status::SeqMisordered) => {
                Ok(())
            }
            other => Err(NoReply::Wrong(format!("a false retry ended with {other:?}"))),
        }
    }

    /// Lets the server send callbacks over a connection.
    async fn bind(&self, session: SessionId) -> Result<(), String> {
        let direction = ChannelFromClient::BackOrBoth;
        let bind = v4::BindConnToSession { session, direction, rdma: false };
        // The server may have been restarted: the next request finds out.
        self.send(0, &[Arguments::BindConnToSession(bind)], &[]).await.map(drop)
    }

    /// Waits until the client is awake and has a session; makes one if there is none. A second
    /// caller waits for the first.
    pub(super) async fn ready(&self) -> Result<(), NoReply> {
        self.wake().await;
        loop {
            self.news.until(|| (!self.mending.get()).then_some(())).await;
            if self.session.borrow().is_some() {
                return Ok(());
            }
            if self.books.verdict.has_failed() {
                return Err(NoReply::Lost);
            }
            self.mending.set(true);
            let mended = self.establish().await;
            self.mending.set(false);
            self.news.notify();
            match mended {
                // The server was killed meanwhile.
                Err(NoReply::Lost) => *self.session.borrow_mut() = None,
                other => return other,
            }
        }
    }

    async fn establish(&self) -> Result<(), NoReply> {
        let exchange = ExchangeId {
            client: ClientOwner {
                verifier: Verifier([self.starts.get(); 8]),
                owner: Opaque::new(&self.name).unwrap_or(Opaque::EMPTY),
            },
            flags: flags::exchange_id::USE_NON_PNFS,
            protect: StateProtect::None(()),
            implementation: None,
        };
        let start = self.books.oracle.borrow().start();
        let reply = self.send(0, &[Arguments::ExchangeId(exchange)], &[]).await?;
        let done = reply.done()?;
        let Some(Results::ExchangeId(Outcome::Ok(exchanged))) = done.first().map(|one| &one.value) else {
            return Err(NoReply::Wrong(format!("EXCHANGE_ID: {done:?}")));
        };
        let create = CreateSession {
            client: exchanged.client,
            sequence: exchanged.sequence,
            flags: flags::create_session::CONN_BACK_CHAN,
            fore: CHANNEL,
            back: CHANNEL,
            program: 0x4000_0000,
            security: List::EMPTY,
        };
        let reply = self.send(0, &[Arguments::CreateSession(create)], &[]).await?;
        match reply.error() {
            None => {}
            Some(Status::StaleClientId | Status::SeqMisordered | Status::Delay) => return Err(NoReply::Lost),
            Some(status) => return Err(NoReply::Wrong(format!("CREATE_SESSION: {status:?}"))),
        }
        let done = reply.done()?;
        let Some(Results::CreateSession(Outcome::Ok(created))) = done.first().map(|one| &one.value) else {
            return Err(NoReply::Wrong(format!("CREATE_SESSION: {done:?}")));
        };
        self.note(format_args!("{:?} with a session of start {start}", exchanged.client));
        let is_new = self.id.replace(Some(exchanged.client)) != Some(exchanged.client);
        *self.session.borrow_mut() =
            Some(Session { id: created.session, start, sequences: [0; SLOTS as usize] });
        if is_new {
            self.books.oracle.borrow_mut().is_new(self.number);
            self.reclaim(start).await?;
        }
        Ok(())
    }

    /// Reclaims opens, locks and delegations, and sends RECLAIM_COMPLETE.
    async fn reclaim(&self, start: u64) -> Result<(), NoReply> {
        let all = self.opened.borrow().clone();
        for opened in all.iter().filter(|opened| !opened.is_lost()) {
            opened.reclaim(self, start).await?;
        }
        // Opens that were not reclaimed are lost for good.
        all.iter().filter(|opened| opened.is_lost()).for_each(|opened| opened.forget(&self.books));
        let reply = self.patiently(&[Arguments::ReclaimComplete(false)]).await?;
        reply.done()?;
        Ok(())
    }

    /// Sends operations in the first slot of the current session, and again while the server puts
    /// them off.
    pub(super) async fn patiently(&self, operations: &[Arguments<'_>]) -> Result<Reply, NoReply> {
        for _ in 0..TRIES {
            let reply = self.once(0, operations, &[]).await?;
            if reply.error() != Some(Status::Delay) {
                return Ok(reply);
            }
            runtime::sleep(Duration::from_millis(500)).await;
        }
        Err(NoReply::Wrong(format!("{operations:?} is delayed for ever")))
    }

    /// Renews the lease, and returns delegations, until the client's processes have ended.
    pub(super) async fn keep(self: Rc<Self>, lease: Duration) {
        let mut renewed = runtime::clock();
        while Rc::strong_count(&self) > 1 && !self.books.verdict.has_failed() {
            runtime::sleep(Duration::from_millis(500)).await;
            self.wake().await;
            let recalled = self.recalled.borrow_mut().pop();
            let kept = match recalled {
                Some(stateid) => self.return_delegation(stateid).await,
                None if renewed + lease / 3 <= runtime::clock() => {
                    renewed = runtime::clock();
                    self.run(0, &[], &[], || Ok(())).await.map(drop)
                }
                None => Ok(()),
            };
            if let Err(NoReply::Wrong(what)) = kept {
                self.books.verdict.fail(format!("client {}: {what}", self.number));
            }
        }
    }

    /// Returns a delegation soon.
    pub(super) fn recall(&self, stateid: Stateid) {
        self.recalled.borrow_mut().push(stateid);
    }

    async fn return_delegation(&self, stateid: Stateid) -> Result<(), NoReply> {
        let pause = self.rng.borrow_mut().below(3000);
        runtime::sleep(Duration::from_millis(pause)).await;
        let all = self.opened.borrow().clone();
        let opened = all.into_iter().find(|it| it.is_delegated_as(stateid));
        match opened {
            Some(opened) => opened.return_delegation(self, 0).await,
            None => Ok(()),
        }
    }
}

/// The outputs of two futures that run at the same time.
async fn both<A, B>(one: impl Future<Output = A>, two: impl Future<Output = B>) -> (A, B) {
    let (mut one, mut two) = (std::pin::pin!(one), std::pin::pin!(two));
    let (mut of_one, mut of_two) = (None, None);
    std::future::poll_fn(move |cx| {
        use std::task::Poll::{Pending, Ready};
        if of_one.is_none()
            && let Ready(output) = one.as_mut().poll(cx)
        {
            of_one = Some(output);
        }
        if of_two.is_none()
            && let Ready(output) = two.as_mut().poll(cx)
        {
            of_two = Some(output);
        }
        match (of_one.take(), of_two.take()) {
            (Some(one), Some(two)) => Ready((one, two)),
            (one, two) => {
                (of_one, of_two) = (one, two);
                Pending
            }
        }
    })
    .await
}
