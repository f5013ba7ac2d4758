//! One initiator: the shipped client, and the judgement of its answers.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use iscsi::chap::{Credential, Secret};
use iscsi::initiator::Completion;
use iscsi::pdu::ResponseCode;
use iscsi_client::{Chap, Command, Crc, Error, Lun, Options, Response, Session, Url};
use runtime::Notify;

use super::Books;
use crate::oracle::{Ending, OpId, SECTOR};
use crate::plan::InitiatorPlan;
use crate::random::Rng;
use crate::target::TARGET_SECRET;
use crate::workload::{Action, Answer, Kind, Scsi, Workload, judge};

/// How often a command is sent that meets a unit attention, BUSY or TASK SET FULL.
const TRIES: u32 = 1000;

/// An initiator's counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ended {
    pub(super) commands: u64,
    pub(super) reconnects: u64,
    pub(super) recovered: u64,
}

/// One initiator.
pub(super) struct Client {
    number: usize,
    books: Rc<Books>,
    url: Url,
    rng: Rng,
}

/// The state that an initiator's commands share.
struct Work {
    number: usize,
    books: Rc<Books>,
    session: Session,
    workload: Workload,
    /// Writes that were lost with their session, and the reconnects at that time. They may still run until the session
    /// has reconnected once more.
    limbo: RefCell<Vec<(OpId, u64)>>,
    ended: Cell<u64>,
    in_flight: Cell<usize>,
    /// A command has ended.
    room: Notify,
}

impl Client {
    pub(super) fn new(number: usize, books: Rc<Books>, url: Url, rng: Rng) -> Self {
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
            command_timeout: Duration::from_secs(60),
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

    pub(super) async fn run(self) -> Ended {
        let (books, number) = (self.books.clone(), self.number);
        self.work().await.unwrap_or_else(|what| {
            books.fail(format!("initiator {number}: {what}"));
            Ended::default()
        })
    }

    /// Logs in, and waits for a server that is down.
    async fn log_in(&self) -> Result<Session, String> {
        let deadline = runtime::clock() + Duration::from_secs(1200);
        loop {
            match Session::connect(&self.url, self.options()).await {
                Ok(session) => return Ok(session),
                Err(error) if runtime::clock() > deadline => return Err(format!("no login: {error}")),
                Err(error) => {
                    self.books.note(format_args!("initiator {}: no login yet: {error}", self.number));
                    runtime::sleep(Duration::from_millis(300)).await;
                }
            }
        }
    }

    async fn work(mut self) -> Result<Ended, String> {
        let plan = self.plan().clone();
        let session = self.log_in().await?;
        let work = Rc::new(Work {
            number: self.number,
            workload: Workload::new(&self.books.plan, &plan),
            books: self.books.clone(),
            session,
            limbo: RefCell::default(),
            ended: Cell::new(0),
            in_flight: Cell::new(0),
            room: Notify::default(),
        });
        for _ in 0..plan.commands {
            work.wait_for_room(plan.depth).await;
            if self.books.has_failed() {
                break;
            }
            if plan.pause > 0 {
                runtime::sleep(Duration::from_micros(self.rng.below(plan.pause))).await;
            }
            let op = self.books.next_op();
            let action = work.workload.next(&mut self.rng, &self.books.oracle.borrow(), op);
            let Action::Scsi(scsi) = action else {
                self.books.news(1);
                continue;
            };
            work.in_flight.set(work.in_flight.get() + 1);
            let theirs = work.clone();
            drop(runtime::spawn(async move {
                if let Err(what) = theirs.command(op, &scsi).await {
                    let (number, name) = (theirs.number, scsi.name);
                    theirs.books.fail(format!("initiator {number}, op {op} ({name}): {what}"));
                }
                theirs.in_flight.set(theirs.in_flight.get() - 1);
                theirs.ended.set(theirs.ended.get() + 1);
                theirs.room.notify();
            }));
        }
        work.wait_for_room(1).await;
        let ended = Ended {
            commands: work.ended.get(),
            reconnects: work.session.reconnects(),
            recovered: work.session.recoveries().connections,
        };
        if !self.books.has_failed() {
            self.look_at_all(&work).await?;
            work.settle(u64::MAX);
            // A failure now loses nothing.
            drop(work.session.close().await);
        }
        Ok(ended)
    }

    /// Reads the whole disk.
    async fn look_at_all(&self, work: &Rc<Work>) -> Result<(), String> {
        let (blocks, most) = (self.books.plan.blocks, self.books.plan.most_blocks.max(1));
        let mut lba = 0;
        while lba < blocks {
            let some = most.min(blocks - lba);
            let op = self.books.next_op();
            work.command(op, &work.workload.read_of(lba, some, false))
                .await
                .map_err(|what| format!("at last: {what}"))?;
            lba += some;
        }
        Ok(())
    }
}

impl Work {
    /// Waits until fewer than `depth` commands are in flight, or something is wrong.
    async fn wait_for_room(&self, depth: usize) {
        let ready = || (self.in_flight.get() < depth || self.books.has_failed()).then_some(());
        self.room.until(ready).await;
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
    async fn command(&self, op: OpId, scsi: &Scsi) -> Result<(), String> {
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
        let cuts = books.cuts.get();
        books.note(format_args!("initiator {}: op {op}: {} {:?}", self.number, scsi.name, scsi.writes));
        let mut tries = 0;
        let answer = loop {
            tries += 1;
            match self.once(scsi).await {
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
                Err(error) if !scsi.may_repeat && books.may_lose(&error) => {
                    books.note(format_args!("op {op} is lost: {error}"));
                    break None;
                }
                Err(error) => return Err(format!("it ended with an error: {error}")),
            }
        };
        // The session has answered, so commands lost with an earlier one can no longer run.
        self.settle(self.session.reconnects());
        books.note(format_args!(
            "initiator {}: op {op}: {:?}",
            self.number,
            answer.as_ref().map(|(answer, _)| *answer)
        ));
        self.end(op, scsi, answer, books.cuts.get() != cuts)
    }

    async fn once(&self, scsi: &Scsi) -> Result<Response, Error> {
        let mut command = Command::new(Lun::new(scsi.lun).unwrap_or(Lun::ZERO), &scsi.cdb);
        if let Some(data) = &scsi.data_out {
            command = command.writing(runtime::Buf::from(data.clone()));
        }
        if let Some(len) = scsi.read_len {
            command = command.reading(len);
        }
        self.session.execute(if scsi.may_repeat { command } else { command.once() }).await
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
                    oracle.saw(op, scsi.first, &bytes[..whole], stale)?;
                }
                (Kind::CompareAndWrite(guess) | Kind::Verify(guess), _) if good => {
                    oracle.saw(op, scsi.first, guess, stale)?;
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
                None => self.limbo.borrow_mut().push((op, self.session.reconnects())),
                Some((Answer::Good, _)) if stale && !scsi.durable => oracle.end_write(op, Ending::Unknown),
                Some((Answer::Good, _)) => oracle.end_write(op, Ending::Done { durable: scsi.durable }),
                Some((Answer::Failed, _)) => oracle.end_write(op, Ending::Unknown),
                // The command may have run before it was sent again.
                Some(_) if self.session.reconnects() > 0 && scsi.may_repeat => {
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
