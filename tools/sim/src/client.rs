//! One initiator: the shipped client, and the judgement of its answers.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use iscsi::chap::{Credential, Secret};
use iscsi::initiator::Completion;
use iscsi::pdu::ResponseCode;
use iscsi_client::{
    Chap, Command, Crc, Error, Lun, Options, Response, Session, TaskManagementFunction, TaskManagementResult,
    Transport, Url,
};
use runtime::Notify;

use crate::books::Books;
use crate::daemon::{NAME, TARGET_SECRET};
use crate::oracle::{Ending, OpId, SECTOR};
use crate::plan::{FilePlan, InitiatorPlan, Losses, Manners};
use crate::random::Rng;
use crate::workload::{Action, Answer, Kind, Scsi, Workload, judge};

/// Tries of a command that meets a unit attention, BUSY or TASK SET FULL.
const TRIES: u32 = 1000;

/// An initiator's counts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ended {
    pub(crate) commands: u64,
    pub(crate) reconnects: u64,
    pub(crate) recovered: u64,
    pub(crate) aborted: u64,
}

/// One initiator.
pub(crate) struct Client {
    number: usize,
    books: Rc<Books>,
    url: Url,
    rng: Rng,
}

/// The state that an initiator's commands share.
struct Work {
    number: usize,
    books: Rc<Books>,
    /// The session; a new one after each logout.
    session: RefCell<Session>,
    workload: Workload,
    /// Writes that were lost with their session, and the reconnects at that time. They may still
    /// run until the session has reconnected once more.
    limbo: RefCell<Vec<(OpId, u64)>>,
    /// Operations of this initiator.
    own: RefCell<BTreeSet<OpId>>,
    ended: Cell<u64>,
    aborted: Cell<u64>,
    /// Functions that end many tasks, begun so far.
    functions: Cell<u64>,
    in_flight: Cell<usize>,
    /// Notified when a command has ended.
    room: Notify,
}

impl Client {
    pub(crate) fn new(number: usize, books: Rc<Books>, url: Url, rng: Rng) -> Self {
        Self { number, books, url, rng }
    }

    fn plan(&self) -> &InitiatorPlan {
        &self.books.plan.initiators[self.number]
    }

    fn options(&self) -> Options {
        let (plan, books) = (self.plan(), &self.books);
        let offer = &plan.offer;
        let credential = |name: &str, secret: &str| Credential {
            name: name.into(),
            secret: Secret::new(secret.as_bytes()),
        };
        Options {
            initiator: plan.name.clone(),
            chap: books.plan.target.chap.as_ref().map(|(user, secret)| Chap {
                credential: credential(user, secret),
                target: plan.mutual_chap.then(|| credential("target", TARGET_SECRET)),
                hashes: Vec::new(),
            }),
            header_digest: offer.header_digest,
            data_digest: offer.data_digest,
            connections: plan.connections as u16,
            error_recovery_level: offer.error_recovery_level,
            queue_depth: plan.depth.max(1),
            connect_timeout: Duration::from_secs(10),
            // A lost Data-Out costs the target's data timeout, and one command may lose many.
            command_timeout: Duration::from_secs(if books.plan.losses == Losses::default() {
                60
            } else {
                900
            }),
            reconnect_timeout: Duration::from_secs(1200),
            max_replays: 250,
            max_recv_data_segment_length: offer.max_recv_data_segment_length,
            first_burst_length: offer.first_burst_length.min(offer.max_burst_length),
            max_burst_length: offer.max_burst_length,
            initial_r2t: offer.initial_r2t,
            immediate_data: offer.immediate_data,
            max_outstanding_r2t: offer.max_outstanding_r2t,
            iser_crc: plan
                .iser
                .map_or(Crc::Prefer, |setup| if setup.crc { Crc::Require } else { Crc::Never }),
            iser_markers: plan.iser.is_some_and(|setup| setup.markers),
            iser_fpdu: plan.iser.map_or(65_536, |setup| setup.max_fpdu.max(256)),
            iser_reads: plan.iser.map_or(128, |setup| setup.depth),
            ..Options::default()
        }
    }

    pub(crate) async fn run(self) -> Ended {
        let (books, number) = (self.books.clone(), self.number);
        self.work().await.unwrap_or_else(|what| {
            books.verdict.fail(format!("initiator {number}: {what}"));
            Ended::default()
        })
    }

    /// Logs in, and waits for a server that is down.
    async fn log_in(&self) -> Result<Session, String> {
        let deadline = runtime::clock() + Duration::from_secs(1200);
        if self.plan().wrong_secret && self.books.plan.target.chap.is_some() {
            self.fail_to_log_in().await?;
        }
        loop {
            match Session::connect(&self.url, self.options()).await {
                Ok(session) => return Ok(session),
                Err(error) if runtime::clock() > deadline => return Err(format!("no login: {error}")),
                Err(error) => {
                    self.books.verdict.note(format_args!("initiator {}: no login yet: {error}", self.number));
                    runtime::sleep(Duration::from_millis(300)).await;
                }
            }
        }
    }

    /// Logs in with a secret that is not the user's.
    async fn fail_to_log_in(&self) -> Result<(), String> {
        let mut options = self.options();
        if let Some(chap) = &mut options.chap {
            chap.credential.secret = Secret::new(b"not the secret at all");
        }
        match Session::connect(&self.url, options).await {
            Ok(_) => Err("a login with a wrong secret".into()),
            Err(error) => {
                self.books.verdict.note(format_args!("initiator {}: a wrong secret: {error}", self.number));
                Ok(())
            }
        }
    }

    async fn work(mut self) -> Result<Ended, String> {
        let plan = self.plan().clone();
        let session = self.log_in().await?;
        let Manners { aborts, functions, patience } = plan.manners;
        let work = Rc::new(Work {
            number: self.number,
            workload: Workload::new(&self.books.plan, &plan),
            books: self.books.clone(),
            session: RefCell::new(session),
            limbo: RefCell::default(),
            own: RefCell::default(),
            ended: Cell::new(0),
            aborted: Cell::new(0),
            functions: Cell::new(0),
            in_flight: Cell::new(0),
            room: Notify::default(),
        });
        let mut ended = Ended::default();
        for _ in 0..plan.commands {
            work.wait_for_room(plan.depth).await;
            if self.books.verdict.has_failed() {
                break;
            }
            if plan.pause > 0 {
                runtime::sleep(Duration::from_micros(self.rng.below(plan.pause))).await;
            }
            if self.rng.chance(functions) {
                let function = self.function();
                let theirs = work.clone();
                work.begin(async move { theirs.manage(function).await });
                work.wait_for_room(plan.depth).await;
            }
            let op = self.books.next_op();
            let action = work.workload.next(&mut self.rng, &self.books.oracle.borrow(), op);
            let scsi = match action {
                Action::Scsi(scsi) => scsi,
                Action::Ping => {
                    let theirs = work.clone();
                    work.begin(async move { theirs.ping().await });
                    continue;
                }
                Action::Discover => {
                    let (url, options, theirs) = (self.url.clone(), self.options(), work.clone());
                    work.begin(async move { theirs.discover(&url, &options).await });
                    continue;
                }
                Action::Logout => {
                    self.log_out_and_in(&work, &mut ended).await?;
                    continue;
                }
            };
            let aborts = self.rng.chance(aborts);
            let abort_after = aborts.then(|| Duration::from_micros(self.rng.below(patience)));
            let theirs = work.clone();
            work.begin(async move {
                let done = theirs.command(op, &scsi, abort_after).await;
                done.map_err(|what| format!("op {op} ({}): {what}", scsi.name))
            });
        }
        work.wait_for_room(1).await;
        (ended.commands, ended.aborted) = (work.ended.get(), work.aborted.get());
        if !self.books.verdict.has_failed() {
            self.look_at_all(&work).await?;
            work.close(&mut ended).await;
        }
        Ok(ended)
    }

    /// Ends the session when no command is in flight, and begins another.
    async fn log_out_and_in(&self, work: &Rc<Work>, ended: &mut Ended) -> Result<(), String> {
        work.wait_for_room(1).await;
        if self.books.verdict.has_failed() {
            return Ok(());
        }
        // An answer proves that nothing of an earlier session runs any more.
        let op = self.books.next_op();
        let look = work.command(op, &work.workload.read_of(0, 1, false), None).await;
        look.map_err(|what| format!("before a logout: {what}"))?;
        work.close(ended).await;
        self.books.verdict.note(format_args!("initiator {}: has logged out", self.number));
        *work.session.borrow_mut() = self.log_in().await?;
        Ok(())
    }

    fn function(&mut self) -> TaskManagementFunction {
        use TaskManagementFunction as Function;
        let alone = self.books.plan.initiators.len() == 1;
        if !alone && !self.books.plan.resets_by_others {
            return Function::AbortTaskSet;
        }
        let function = self.rng.pick(&[
            Function::AbortTaskSet,
            Function::AbortTaskSet,
            Function::ClearTaskSet,
            Function::ClearTaskSet,
            Function::LogicalUnitReset,
            Function::TargetWarmReset,
            Function::TargetColdReset,
        ]);
        if function == Function::TargetColdReset || !alone && function != Function::AbortTaskSet {
            // Ends sessions, or commands of others, whose initiators find out by a timeout only.
            self.books.disturbed.set(true);
        }
        function
    }

    /// Reads the whole disk.
    async fn look_at_all(&self, work: &Rc<Work>) -> Result<(), String> {
        let (blocks, most) = (self.books.plan.blocks, self.books.plan.most_blocks.max(1));
        let mut lba = 0;
        while lba < blocks {
            let some = most.min(blocks - lba);
            let op = self.books.next_op();
            work.command(op, &work.workload.read_of(lba, some, false), None)
                .await
                .map_err(|what| format!("at last: {what}"))?;
            lba += some;
        }
        Ok(())
    }
}

impl Work {
    fn session(&self) -> Session {
        self.session.borrow().clone()
    }

    /// Logs out. No command is in flight.
    async fn close(&self, ended: &mut Ended) {
        let session = self.session();
        self.settle(u64::MAX);
        ended.reconnects += session.reconnects();
        ended.recovered += session.recoveries().connections;
        // A failure now loses nothing.
        drop(session.close().await);
    }

    async fn ping(&self) -> Result<(), String> {
        self.books.news(1);
        match self.session().ping().await {
            Err(error) if self.books.is_calm() || !self.books.may_lose(&error) => {
                Err(format!("a ping: {error}"))
            }
            _ => Ok(()),
        }
    }

    async fn discover(&self, url: &Url, options: &Options) -> Result<(), String> {
        self.books.news(1);
        let url = Url { transport: Transport::Tcp, ..url.clone() };
        match iscsi_client::discover(&url, options).await {
            Ok(records) if records.iter().any(|record| record.name == NAME) => Ok(()),
            Ok(records) => Err(format!("discovery finds {records:?}")),
            Err(error) if !self.books.is_calm() && self.books.may_lose(&error) => Ok(()),
            Err(error) => Err(format!("discovery: {error}")),
        }
    }

    /// Waits until fewer than `depth` commands are in flight, or a defect was found.
    async fn wait_for_room(&self, depth: usize) {
        let ready = || (self.in_flight.get() < depth || self.books.verdict.has_failed()).then_some(());
        self.room.until(ready).await;
    }

    /// Runs `what` beside other commands. An error is a defect.
    fn begin(self: &Rc<Self>, what: impl Future<Output = Result<(), String>> + 'static) {
        self.in_flight.set(self.in_flight.get() + 1);
        let work = self.clone();
        drop(runtime::spawn(async move {
            if let Err(what) = what.await {
                work.books.verdict.fail(format!("initiator {}, {what}", work.number));
            }
            work.in_flight.set(work.in_flight.get() - 1);
            work.ended.set(work.ended.get() + 1);
            work.room.notify();
        }));
    }

    /// Ends many tasks. Those of this session end with an error of their own.
    async fn manage(&self, function: TaskManagementFunction) -> Result<(), String> {
        self.functions.set(self.functions.get() + 1);
        self.books.verdict.note(format_args!("initiator {}: {function}", self.number));
        let result = self.session().task_management(function, Lun::ZERO).await;
        self.books.verdict.note(format_args!("initiator {}: {function}: {result:?}", self.number));
        match result {
            Ok(Some(TaskManagementResult::FunctionComplete)) => Ok(()),
            // Commands sent before it do not come.
            Ok(Some(TaskManagementResult::FunctionRejected)) if !self.books.is_calm() => Ok(()),
            Err(Error::Rejected(_)) => Ok(()),
            Err(error) if !self.books.is_calm() && self.books.may_lose(&error) => Ok(()),
            result => Err(format!("{function}: {result:?}")),
        }
    }

    /// Ends lost writes whose session has reconnected since: they can no longer run.
    fn settle(&self, reconnects: u64) {
        let mut limbo = self.limbo.borrow_mut();
        limbo.retain(|(op, of)| {
            if *of < reconnects {
                self.books.oracle.borrow_mut().end_write(*op, Ending::Unknown);
            }
            *of >= reconnects
        });
    }

    /// Runs a command to its end, and reports it to the oracle.
    async fn command(&self, op: OpId, scsi: &Scsi, abort_after: Option<Duration>) -> Result<(), String> {
        let books = &self.books;
        books.news(1);
        let looks = matches!(scsi.kind, Kind::Read | Kind::CompareAndWrite(_) | Kind::Verify(_));
        {
            let mut oracle = books.oracle.borrow_mut();
            if looks {
                oracle.submit_look(op);
            }
            if !scsi.syncs.is_empty() {
                oracle.submit_sync(op, scsi.syncs.clone());
            }
            if !scsi.writes.is_empty() {
                oracle.submit_write(op, scsi.writes.clone(), scsi.content);
            }
        }
        self.own.borrow_mut().insert(op);
        if !scsi.may_repeat {
            books.once.borrow_mut().insert(op);
        }
        let cuts = books.cuts.get();
        books
            .verdict
            .note(format_args!("initiator {}: op {op}: {} {:?}", self.number, scsi.name, scsi.writes));
        let mut tries = 0;
        let answer = loop {
            tries += 1;
            let functions = self.functions.get();
            match self.once(scsi, abort_after).await? {
                Ok(response) => {
                    // BUSY and TASK SET FULL: the unit did nothing.
                    if matches!(response.status, 0x08 | 0x28) && tries < TRIES {
                        runtime::sleep(Duration::from_millis(1)).await;
                        continue;
                    }
                    let completion = completion(scsi, &response);
                    match judge(scsi, &completion, books.excuses.get())? {
                        Answer::Attention if tries < TRIES => {}
                        answer => break Some((answer, response)),
                    }
                }
                Err(Error::Aborted) if abort_after.is_some() || self.functions.get() > functions => {
                    self.aborted.set(self.aborted.get() + 1);
                    books.verdict.note(format_args!("initiator {}: op {op} is aborted", self.number));
                    books.oracle.borrow_mut().abort(op);
                    return Ok(());
                }
                Err(error) if !scsi.may_repeat && books.may_lose(&error) => {
                    books.verdict.note(format_args!("op {op} is lost: {error}"));
                    break None;
                }
                Err(error) => return Err(format!("it ended with an error: {error}")),
            }
        };
        // The session has answered, so commands lost with an earlier one can no longer run.
        self.settle(self.session().reconnects());
        books.verdict.note(format_args!(
            "initiator {}: op {op}: {:?}",
            self.number,
            answer.as_ref().map(|(answer, _)| *answer)
        ));
        self.end(op, scsi, answer, books.cuts.get() != cuts)
    }

    /// Sends a command, and aborts it if it takes longer than `abort_after`.
    ///
    /// # Errors
    /// ABORT TASK got a forbidden answer.
    async fn once(
        &self,
        scsi: &Scsi,
        abort_after: Option<Duration>,
    ) -> Result<Result<Response, Error>, String> {
        let mut command = Command::new(Lun::new(scsi.lun).unwrap_or(Lun::ZERO), &scsi.cdb);
        if let Some(data) = &scsi.data_out {
            command = command.writing(runtime::Buf::from(data.clone()));
        }
        if let Some(len) = scsi.read_len {
            command = command.reading(len);
        }
        let command = if scsi.may_repeat { command } else { command.once() };
        let mut ticket = match self.session().start(command).await {
            Ok(ticket) => ticket,
            Err(error) => return Ok(Err(error)),
        };
        let Some(patience) = abort_after else { return Ok(ticket.await) };
        if let Ok(answer) = runtime::timeout(patience, &mut ticket).await {
            return Ok(answer);
        }
        let aborted = self.session().abort(&ticket).await;
        let answer = ticket.await;
        match (aborted, &answer) {
            (Ok(true), Err(Error::Aborted)) | (Ok(false), _) => Ok(answer),
            (Ok(true), _) => Err(format!("it was aborted, and ended with {answer:?}")),
            (Err(Error::Rejected(_)), _) => Ok(answer),
            (Err(error), _) if self.books.may_lose(&error) => Ok(answer),
            (Err(error), _) => Err(format!("ABORT TASK: {error}")),
        }
    }

    fn end(
        &self,
        op: OpId,
        scsi: &Scsi,
        answer: Option<(Answer, Response)>,
        stale: bool,
    ) -> Result<(), String> {
        let mut oracle = self.books.oracle.borrow_mut();
        let good = matches!(answer, Some((Answer::Good, _)));
        if good || matches!(answer, Some((Answer::Miscompare, _))) {
            match (&scsi.kind, &answer) {
                (Kind::Read, Some((_, response))) => {
                    let bytes = response.data.to_vec();
                    let whole = bytes.len() / SECTOR * SECTOR;
                    let lends = bytes.len() > 4096 && self.books.plan.files.is_some_and(FilePlan::lends);
                    let own = |writer| lends && self.own.borrow().contains(&writer);
                    oracle.saw(op, scsi.first, &bytes[..whole], stale, own)?;
                }
                (Kind::CompareAndWrite(guess) | Kind::Verify(guess), _) if good => {
                    oracle.saw(op, scsi.first, guess, stale, |_| false)?;
                }
                (Kind::CompareAndWrite(guess) | Kind::Verify(guess), _)
                    if oracle.had_to_see(op, scsi.first, guess) =>
                {
                    return Err("MISCOMPARE with what had to be there".into());
                }
                _ => {}
            }
        }
        oracle.end_look(op);
        oracle.end_sync(op, good);
        if !scsi.writes.is_empty() {
            match answer {
                None => self.limbo.borrow_mut().push((op, self.session().reconnects())),
                Some((Answer::Good, _)) if stale && !scsi.durable => oracle.end_write(op, Ending::Unknown),
                Some((Answer::Good, _)) => oracle.end_write(op, Ending::Done { durable: scsi.durable }),
                Some((Answer::Failed, _)) => oracle.end_write(op, Ending::Unknown),
                // The command may have run before it was sent again.
                Some(_) if self.session().reconnects() > 0 && scsi.may_repeat => {
                    oracle.end_write(op, Ending::Unknown)
                }
                Some(_) => oracle.end_write(op, Ending::Refused),
            }
        }
        Ok(())
    }
}

/// The answer in the form that `judge` reads.
fn completion(scsi: &Scsi, response: &Response) -> Completion {
    let received = if scsi.read_len.is_some() { response.data.len() as u32 } else { 0 };
    Completion {
        status: response.status,
        response: ResponseCode::CommandCompleted,
        received,
        residual: response.residual,
        read_residual: response.read_residual,
        sense: response.sense.clone(),
    }
}
