//! The clients of the load, and their measurements.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use iscsi_client::objects::Objects;
use iscsi_client::{Command, Lun, Session, Unit, Url};
use load::cpu::{Sample, Spent};
use load::{Random, Window};
use osd::Id;
use runtime::Buf;
use serde_json::{Value, json};

use super::tally::Tally;
use super::{LoadError, objects, requests};
use crate::args::osd_bench::{OsdBench, What};
use crate::client::connect;
use crate::osd::error::OsdError;
use crate::release;

/// Errors after which a client stops.
const MOST_ERRORS: u64 = 100;
/// The first client's object; the others' follow.
const OBJECT: u64 = 0x7000_0000;

/// Runs what the command line says.
pub fn run(args: &OsdBench) -> Result<Value, OsdError> {
    let url =
        args.url.as_ref().ok_or_else(|| OsdError::wrong("no URL", "name the device, or --floor FILE"))?;
    let config = runtime::Config {
        spin_us: args.spin,
        pool_bytes: (256 << 20) + usize::from(args.clients) * args.size as usize * 4,
        ..runtime::Config::default()
    };
    let runtime = runtime::Runtime::new(config)
        .map_err(|error| OsdError::Io { place: "no io_uring".to_owned(), error })?;
    runtime.block_on(in_partition(args, url)).map_err(|error| error.at(url))
}

/// Measures in the partition that was named, or in one of its own that is gone afterwards.
async fn in_partition(args: &OsdBench, url: &Url) -> Result<Value, LoadError> {
    if args.partition.is_some() || matches!(args.what, What::Ping | What::DiskRead) {
        return measure(args, url, args.partition.unwrap_or(0)).await;
    }
    if matches!(args.what, What::Lookup | What::List) {
        let what = "look-ups and lists need objects: name a partition that has some, with --partition ID";
        return Err(LoadError::Answer(what.to_owned()));
    }
    let session = connect::session(url, &args.connect).await?;
    let measured = async {
        let device = Objects::open(&session, url.lun.unwrap_or(0)).await?;
        let partition = device.create_partition(0, Vec::new()).await?;
        let found = measure(args, url, partition).await;
        let removed = device.remove_partition(partition, true).await;
        let found = found?;
        removed?;
        Ok(found)
    };
    let found = measured.await;
    // The first error is the one to report.
    let _ = session.close().await;
    found
}

/// One session, which repeats one kind of command.
struct Client {
    session: Session,
    lun: Lun,
    what: What,
    /// The object of its own.
    id: Id,
    /// Ids of the partition, for what picks one.
    ids: Rc<Vec<u64>>,
    random: Random,
    /// Offset of the next transfer in its object, bytes.
    at: u64,
    size: u32,
    span: u64,
    durable: bool,
    get: Buf,
    data: Buf,
    /// Objects that it has created.
    made: Vec<u64>,
    /// The next one's id.
    next: u64,
}

impl Client {
    fn command(&mut self) -> Command {
        let lun = self.lun;
        match self.what {
            What::Ping => requests::ping(lun),
            What::Create | What::Fill => {
                let id = Id::new(self.id.partition, self.next);
                self.made.push(self.next);
                self.next += 1;
                requests::create(lun, id, self.durable)
            }
            What::Getattr => requests::get(lun, self.id, &self.get),
            What::Setattr => {
                requests::set(lun, self.id, &requests::set_list(self.random.any()), self.durable)
            }
            What::Lookup => requests::get(lun, Id::new(self.id.partition, self.any()), &self.get),
            What::List => requests::listing(lun, self.id.partition, self.any(), requests::LISTED),
            What::Read => {
                let at = self.step();
                requests::read(lun, self.id, at, self.size)
            }
            What::Write => {
                let at = self.step();
                requests::write(lun, self.id, at, self.data.clone(), self.durable)
            }
            What::DiskRead => {
                let at = self.step();
                requests::disk_read(lun, at, self.size)
            }
        }
    }

    fn any(&mut self) -> u64 {
        let at = self.random.below(self.ids.len().max(1) as u64) as usize;
        self.ids.get(at).copied().unwrap_or(0)
    }

    /// The place of the next transfer, from the beginning to the end and again.
    fn step(&mut self) -> u64 {
        let at = self.at;
        self.at += u64::from(self.size);
        if self.at + u64::from(self.size) > self.span {
            self.at = 0;
        }
        at
    }

    /// Loads until `clock` ends the run; counts commands that end in the window.
    async fn load(mut self, clock: Rc<Clock>) -> (Self, Tally) {
        let mut tally = Tally::default();
        let most = clock.count.unwrap_or(u64::MAX);
        while clock.goes_on(Instant::now()) && tally.latency.count() < most && tally.errors <= MOST_ERRORS {
            let command = self.command();
            self.one(command, &clock, &mut tally).await;
        }
        (self, tally)
    }

    /// Removes the objects that it has created, until `clock` ends the run.
    async fn unload(mut self, clock: Rc<Clock>) -> (Self, Tally) {
        let mut tally = Tally::default();
        while clock.goes_on(Instant::now()) {
            let Some(object) = self.made.pop() else { break };
            let command = requests::remove(self.lun, Id::new(self.id.partition, object), self.durable);
            self.one(command, &clock, &mut tally).await;
        }
        (self, tally)
    }

    async fn one(&self, command: Command, clock: &Clock, tally: &mut Tally) {
        let begin = Instant::now();
        let ended = self.session.execute(command).await.and_then(iscsi_client::Response::ok);
        let end = Instant::now();
        if clock.counts(end) {
            tally.latency.record_time(end - begin);
        }
        if let Err(error) = ended {
            tally.fail(&error);
        }
    }
}

/// Warm-up and measurement, shared by all clients. It begins when the first of them does.
struct Clock {
    warmup: f64,
    /// Seconds that are measured; `None` if a count ends the run.
    time: Option<f64>,
    /// Commands of each client that count.
    count: Option<u64>,
    window: Cell<Option<Window>>,
    /// Whether anything has ended in the window.
    any: Cell<bool>,
    /// Time at which the last counted command ended.
    ended: Cell<Option<Instant>>,
    /// Processor time when counting began, and when it was over.
    before: Cell<Option<Sample>>,
    after: Cell<Option<Sample>>,
    target: Option<u32>,
}

impl Clock {
    fn new(warmup: f64, time: f64, target: Option<u32>) -> Rc<Self> {
        Self::until(warmup, Some(time), None, target)
    }

    fn until(warmup: f64, time: Option<f64>, count: Option<u64>, target: Option<u32>) -> Rc<Self> {
        let (any, ended, before, after) = Default::default();
        Rc::new(Self { warmup, time, count, window: Cell::default(), any, ended, before, after, target })
    }

    /// The measured window. It is set when the first client begins, at `now`.
    fn window(&self, now: Instant) -> Window {
        let window = self.window.get().unwrap_or_else(|| Window::new(now, self.warmup, self.time));
        self.window.set(Some(window));
        window
    }

    /// Whether another command is to begin.
    fn goes_on(&self, now: Instant) -> bool {
        let window = self.window(now);
        let mark = if window.is_over(now) { &self.after } else { &self.before };
        if now >= window.start && mark.get().is_none() {
            mark.set(Some(Sample::take(self.target)));
        }
        !window.is_over(now)
    }

    /// Whether the command that ended at `end` counts. A command that takes longer than the whole
    /// run counts if no other does, so that every run has a result.
    fn counts(&self, end: Instant) -> bool {
        let window = self.window(end);
        let within = window.counts(end);
        let counts = within || end >= window.start && !self.any.get();
        if counts {
            self.any.set(self.any.get() || within);
            self.ended.set(Some(end));
        }
        counts
    }

    /// Seconds in which the counted commands ended: the whole time, or until the end of a longer
    /// command.
    fn seconds(&self) -> f64 {
        self.time.filter(|_| self.any.get()).unwrap_or_else(|| self.seconds_of_work())
    }

    /// When the measured window began, and when the last command that counts ended: seconds since
    /// 1970, which processes can compare.
    fn began_and_ended(&self) -> Option<(f64, f64)> {
        let (now, unix) = (Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH).ok()?);
        let at = |instant: Instant| unix.saturating_sub(now - instant).as_secs_f64();
        Some((at(self.window.get()?.start), at(self.ended.get()?)))
    }

    /// The same up to the end of the last that counts, for clients that may have nothing more to do
    /// before the time is over.
    fn seconds_of_work(&self) -> f64 {
        let took = self.window.get().zip(self.ended.get()).map(|(window, end)| end - window.start);
        took.unwrap_or_default().as_secs_f64()
    }

    fn cpu(&self) -> Option<Spent> {
        let after = self.after.get().filter(|_| self.any.get()).unwrap_or_else(|| Sample::take(self.target));
        self.before.get().map(|before| after.since(&before))
    }
}

async fn connect(args: &OsdBench, url: &Url, number: u16) -> Result<(Session, Lun), LoadError> {
    let options = iscsi_client::Options {
        initiator: format!("{}.{}", args.connect.initiator, number + 1),
        queue_depth: 4,
        error_recovery_level: args.connect.erl.unwrap_or(0),
        reconnect_timeout: args.connect.reconnect_or(Duration::ZERO),
        ..connect::options(url, &args.connect)?
    };
    let session = Session::connect(&connect::place(url), options).await?;
    let ready = async {
        let unit = Unit::new(&session, url.lun.unwrap_or(0))?;
        unit.test_unit_ready().await?;
        Ok(unit.lun())
    };
    match ready.await {
        Ok(lun) => Ok((session, lun)),
        Err(error) => {
            // The first error is the one to report.
            let _ = session.close().await;
            Err(error)
        }
    }
}

async fn measure(args: &OsdBench, url: &Url, partition: u64) -> Result<Value, LoadError> {
    let mut clients = Vec::new();
    let mut ids = Rc::new(Vec::new());
    // Ids that no run before this one has used.
    let run =
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64 & 0xFFFF_FFFF;
    for number in 0..args.clients {
        let (session, lun) = connect(args, url, number).await?;
        let id = Id::new(partition, OBJECT + u64::from(number));
        if number == 0 && !matches!(args.what, What::Ping | What::DiskRead) {
            objects::partition(&session, lun, partition).await?;
            if args.what == What::Fill {
                let begin = Instant::now();
                let made = objects::fill(&session, lun, partition, args.objects).await?;
                let took = begin.elapsed().as_secs_f64();
                session.close().await?;
                return Ok(json!({ "what": "fill", "made": made, "seconds": took }));
            }
            if matches!(args.what, What::Lookup | What::List) {
                ids = Rc::new(objects::ids(&session, lun, partition).await?);
            }
        }
        match args.what {
            What::Getattr | What::Setattr => objects::object(&session, lun, id).await?,
            What::Read | What::Write => {
                objects::object(&session, lun, id).await?;
                objects::contents(&session, lun, id, args.span).await?;
            }
            _ => {}
        }
        clients.push(Client {
            session,
            lun,
            what: args.what,
            id,
            ids: ids.clone(),
            random: Random::new(1, number.into()),
            at: 0,
            size: args.size,
            span: args.span,
            durable: args.durable,
            get: requests::get_list(),
            data: Buf::from(vec![0x5A; args.size as usize]),
            made: Vec::new(),
            next: run << 28 | u64::from(number) << 20 | 1 << 60,
        });
    }
    let bytes = match args.what {
        What::Read | What::Write | What::DiskRead => args.size,
        _ => 0,
    };
    let mut warmup = args.warmup;
    if args.wait {
        (clients, _) = all(clients, &Clock::new(0.0, warmup, None), Client::load).await?;
        warmup = 0.0;
        // No command is in flight meanwhile.
        release::wait().map_err(LoadError::Line)?;
    }
    let time = Some(args.time).filter(|_| args.count.is_none());
    let clock = Clock::until(warmup, time, args.count, args.target_pid);
    let (mut clients, tally) = all(clients, &clock, Client::load).await?;
    let mut found = tally.report(&name(args.what), clock.seconds(), bytes, clock.cpu());
    if let Some((began, ended)) = clock.began_and_ended() {
        found["began_s"] = json!(began);
        found["ended_s"] = json!(ended);
    }
    if args.what == What::Create {
        // All is warm already, and there are only so many objects.
        let clock = Clock::new(0.0, args.time, args.target_pid);
        let (left, tally) = all(clients, &clock, Client::unload).await?;
        found["remove"] = tally.report("remove", clock.seconds_of_work(), 0, clock.cpu());
        let forever = Clock::new(60.0, 0.0, None);
        (clients, _) = all(left, &forever, Client::unload).await?;
    }
    found["clients"] = json!(args.clients);
    found["size"] = json!(bytes);
    found["durable"] = json!(args.durable);
    for client in clients {
        client.session.close().await?;
    }
    Ok(found)
}

/// All clients at once, each to its end.
async fn all<F, Loading>(
    clients: Vec<Client>,
    clock: &Rc<Clock>,
    load: F,
) -> Result<(Vec<Client>, Tally), LoadError>
where
    F: Fn(Client, Rc<Clock>) -> Loading,
    Loading: Future<Output = (Client, Tally)> + 'static,
{
    let tasks: Vec<_> =
        clients.into_iter().map(|client| runtime::spawn(load(client, clock.clone()))).collect();
    let (mut back, mut tally) = (Vec::new(), Tally::default());
    for task in tasks {
        let (client, one) =
            task.await.map_err(|_| LoadError::Answer("a client ended by itself".to_owned()))?;
        tally.add(&one);
        back.push(client);
    }
    Ok((back, tally))
}

fn name(what: What) -> String {
    clap::ValueEnum::to_possible_value(&what).map_or_else(String::new, |value| value.get_name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn what_ends_within_the_time_counts_and_the_time_is_what_it_is_divided_by() {
        let (clock, start) = (Clock::new(0.01, 0.1, None), Instant::now());
        assert!(clock.goes_on(start));
        assert!(!clock.counts(start + 9 * MS), "in the warm-up");
        assert!(clock.counts(start + 10 * MS) && clock.counts(start + 109 * MS));
        assert!(!clock.counts(start + 110 * MS), "after the end");
        assert!(clock.goes_on(start + 109 * MS) && !clock.goes_on(start + 110 * MS));
        assert_eq!((clock.seconds(), clock.seconds_of_work()), (0.1, 0.099));
    }

    #[test]
    fn a_count_is_divided_by_the_time_of_its_last_command() {
        let (clock, start) = (Clock::until(0.01, None, Some(2), None), Instant::now());
        assert!(clock.goes_on(start) && clock.goes_on(start + 900 * MS));
        assert!(!clock.counts(start + 9 * MS), "in the warm-up");
        assert!(clock.counts(start + 500 * MS) && clock.counts(start + 910 * MS));
        assert_eq!(clock.seconds(), 0.9);
        let clock = Clock::new(0.0, 0.1, None);
        let start = Instant::now().checked_sub(MS * 50).unwrap();
        assert!(clock.began_and_ended().is_none());
        assert!(clock.goes_on(start) && clock.counts(start + 40 * MS));
        let (began, ended) = clock.began_and_ended().unwrap();
        assert!((ended - began - 0.04).abs() < 1e-5, "{began} {ended}");
    }

    #[test]
    fn commands_that_take_longer_than_the_time_count_over_what_they_took() {
        let (clock, start) = (Clock::new(0.0, 0.01, None), Instant::now());
        // One client begins later than the first; the commands of both end after the time is over.
        assert!(clock.goes_on(start) && clock.goes_on(start + 2 * MS));
        assert!(clock.counts(start + 30 * MS) && clock.counts(start + 40 * MS));
        assert!(!clock.goes_on(start + 40 * MS));
        assert_eq!((clock.seconds(), clock.seconds_of_work()), (0.04, 0.04));
    }
}
