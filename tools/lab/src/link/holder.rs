//! The process that is a link: it makes the namespaces and devices, carries the packets, and
//! answers its parent's requests, a line of JSON each. It ends when its standard input ends, for
//! whatever reason. Before that it ends every process in the namespaces, and the kernel then
//! removes the namespaces.

use std::fs;
use std::io::{self, BufRead, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU64;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Instant;

use runtime::Urgency;
use serde::{Deserialize, Serialize};
use tun_rs::{DeviceBuilder, SyncDevice};

use super::counters::{Counters, DirectionCounters, Tally};
use super::line::Line;
use super::namespace::{Door, Namespaces, Refusal, sweep};
use super::netem;
use super::netlink::Netlink;
use super::probe::{self, Measured};
use super::shape::Shaper;
use super::spec::{Backend, LinkSpec, Side};

/// The name of the link's device in both namespaces.
const DEVICE: &str = "link0";

/// Packets that may wait in a device for the forwarder: the link's own queue is to decide about
/// bursts.
const DEVICE_QUEUE: u32 = 16_384;

/// The addresses, from the networks that RFC 2544 and RFC 5180 reserve for benchmarks.
const FOUR: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 18, 0, 2)];
const SIX: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 2)];

/// Set-up of a link, for the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// The backend in use: `Tun` or `Netem`.
    pub backend: Backend,
    /// Why this backend was chosen.
    pub why: String,
    /// The IPv4 addresses of side A and side B.
    pub addresses: [Ipv4Addr; 2],
    /// The IPv6 addresses, where the system has IPv6 and the MTU allows it.
    pub addresses6: Option<[Ipv6Addr; 2]>,
    /// Whether the namespaces belong to a user namespace of our own: always, unless root made them.
    pub of_own_user: bool,
    /// The scheduling of the forwarder: `real-time`, `short turns` or `ordinary`.
    pub urgency: String,
    /// TCP's congestion control in the namespaces.
    pub congestion_control: Option<String>,
    /// `net.ipv4.tcp_rmem` in the namespaces: minimum, default and maximum, bytes.
    pub tcp_rmem: Option<[u64; 3]>,
    /// `net.ipv4.tcp_wmem` in the namespaces.
    pub tcp_wmem: Option<[u64; 3]>,
    /// Settings that could not be applied.
    pub remarks: Vec<String>,
}

/// A request of the parent.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Reads the counters since the last reset.
    Counters,
    Reset,
    /// Measures the path, then resets the counters.
    Measure,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Up { setup: Box<Setup>, doors: [Door; 2] },
    Counters(Box<Counters>),
    Measured(Box<Measured>),
    Done,
    Failed(String),
}

/// Writes one line of JSON.
pub(crate) fn say<T: Serialize>(to: &mut impl Write, what: &T) -> io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}

/// The main function of the process.
pub(crate) fn hold() -> ExitCode {
    let mut input = io::stdin().lock().lines();
    let mut output = io::stdout().lock();
    let Some(Ok(first)) = input.next() else { return ExitCode::FAILURE };
    let spec: LinkSpec = match serde_json::from_str(&first) {
        Ok(spec) => spec,
        Err(error) => return refuse(&mut output, &format!("the link's values: {error}")),
    };
    let mut held = match Held::up(&spec) {
        Ok(held) => held,
        Err(error) => return refuse(&mut output, &error),
    };
    let answer = Answer::Up { setup: Box::new(held.setup.clone()), doors: held.doors.clone() };
    if say(&mut output, &answer).is_ok() {
        while let Some(Ok(line)) = input.next() {
            let answer = match serde_json::from_str(&line) {
                Ok(request) => held.answer(&request),
                Err(error) => Answer::Failed(error.to_string()),
            };
            if say(&mut output, &answer).is_err() {
                break;
            }
        }
    }
    sweep(&held.doors);
    ExitCode::SUCCESS
}

fn refuse(output: &mut impl Write, why: &str) -> ExitCode {
    let _ = say(output, &Answer::Failed(why.to_owned()));
    ExitCode::FAILURE
}

/// The state of the process.
struct Held {
    spec: LinkSpec,
    setup: Setup,
    doors: [Door; 2],
    namespaces: Namespaces,
    /// By the sending side.
    tallies: [Arc<Tally>; 2],
    began: Instant,
    before: Counters,
}

impl Held {
    fn up(spec: &LinkSpec) -> Result<Self, String> {
        // Threads started later inherit the timer slack: they then wake on time instead of up to 50
        // µs later.
        let slack = NonZeroU64::new(1);
        let _ = rustix::thread::set_current_timer_slack(slack);
        let namespaces = Namespaces::make().map_err(|refusal| refusal.to_string())?;
        let doors = [namespaces.door(Side::A), namespaces.door(Side::B)];
        let [Ok(door_a), Ok(door_b)] = doors else {
            return Err("cannot name the network namespaces: is /proc mounted?".to_owned());
        };
        let mut setup = Setup {
            backend: Backend::Tun,
            why: String::new(),
            addresses: FOUR,
            addresses6: None,
            of_own_user: namespaces.of_own_user,
            urgency: "ordinary".to_owned(),
            congestion_control: None,
            tcp_rmem: None,
            tcp_wmem: None,
            remarks: Vec::new(),
        };
        for side in [Side::A, Side::B] {
            entered(&namespaces, side)?;
            before_devices(spec, side, &mut setup);
        }
        let tallies = [Arc::new(Tally::default()), Arc::new(Tally::default())];
        (setup.backend, setup.why) = choose(spec, &namespaces)?;
        if setup.backend == Backend::Tun {
            setup.urgency = carry(spec, &namespaces, &tallies)?;
        }
        let mut six = spec.mtu >= 1280;
        for (side, at) in [(Side::A, 0), (Side::B, 1)] {
            entered(&namespaces, side)?;
            let failed = |error| Refusal::new("cannot set the link's devices up", error).to_string();
            let netlink = Netlink::open().map_err(failed)?;
            netlink.up("lo", None, None).map_err(failed)?;
            let queue = (setup.backend == Backend::Tun).then_some(DEVICE_QUEUE);
            netlink.up(DEVICE, Some(spec.mtu), queue).map_err(failed)?;
            netlink.address(DEVICE, IpAddr::V4(FOUR[at]), 24).map_err(failed)?;
            six = six && netlink.address(DEVICE, IpAddr::V6(SIX[at]), 64).is_ok();
        }
        setup.addresses6 = six.then_some(SIX);
        if !six {
            setup.remarks.push("without IPv6".to_owned());
        }
        let mut held = Self {
            spec: spec.clone(),
            setup,
            doors: [door_a, door_b],
            namespaces,
            tallies,
            began: Instant::now(),
            before: Counters::default(),
        };
        held.anew();
        Ok(held)
    }

    fn answer(&mut self, request: &Request) -> Answer {
        match request {
            Request::Counters => {
                let counted = self.read(false);
                Answer::Counters(Box::new(counted.since(&self.before)))
            }
            Request::Reset => {
                self.anew();
                Answer::Done
            }
            Request::Measure => {
                let [a, b] = [self.setup.addresses[0], self.setup.addresses[1]];
                let measured = probe::measure(&self.spec, &self.namespaces, (a.into(), b.into()));
                self.anew();
                match measured {
                    Ok(measured) => Answer::Measured(Box::new(measured)),
                    Err(error) => Answer::Failed(format!("cannot measure the link: {error}")),
                }
            }
        }
    }

    fn anew(&mut self) {
        self.before = self.read(true);
    }

    /// All counters since the link came up.
    fn read(&self, anew: bool) -> Counters {
        let seconds = self.began.elapsed().as_secs_f64();
        let a = self.read_side(Side::A, anew);
        let b = self.read_side(Side::B, anew);
        Counters { seconds, a_to_b: a, b_to_a: b }
    }

    /// The counters of packets sent from one side.
    fn read_side(&self, side: Side, anew: bool) -> DirectionCounters {
        if self.setup.backend == Backend::Netem {
            return self.read_netem(side).unwrap_or_default();
        }
        let tally = match side {
            Side::A => &self.tallies[0],
            Side::B => &self.tallies[1],
        };
        let mut counters = tally.read(anew);
        counters.cpu_seconds = processor_time(tally.thread.load(Ordering::Relaxed));
        if self.namespaces.enter(side).is_ok() {
            counters.dropped_device = Device::read().map_or(0, |device| device.sent_drops);
        }
        counters
    }

    fn read_netem(&self, side: Side) -> io::Result<DirectionCounters> {
        self.namespaces.enter(side)?;
        let sent = Device::read()?;
        let drops = Netlink::open()?.discipline_drops(DEVICE)?;
        self.namespaces.enter(side.other())?;
        let received = Device::read()?;
        // The device counts Ethernet headers, the link does not.
        let bytes = |bytes: u64, packets: u64| bytes.saturating_sub(packets * 14);
        let mut counters = DirectionCounters {
            packets_in: sent.sent + drops,
            bytes_in: bytes(sent.sent_bytes, sent.sent),
            packets_out: received.received,
            bytes_out: bytes(received.received_bytes, received.received),
            ..DirectionCounters::default()
        };
        // netem does not distinguish loss from a full queue.
        if self.spec.from(side).loss > 0.0 {
            counters.dropped_loss = drops;
        } else {
            counters.dropped_queue = drops;
        }
        Ok(counters)
    }
}

fn entered(namespaces: &Namespaces, side: Side) -> Result<(), String> {
    namespaces
        .enter(side)
        .map_err(|error| Refusal::new("cannot enter a network namespace", error).to_string())
}

/// Chooses the backend, and makes the devices for netem.
fn choose(spec: &LinkSpec, namespaces: &Namespaces) -> Result<(Backend, String), String> {
    if spec.backend == Backend::Tun {
        return Ok((Backend::Tun, "asked for".to_owned()));
    }
    let forced = spec.backend == Backend::Netem;
    let obstacle = netem::obstacle(spec).map(str::to_owned);
    let tried = obstacle.map_or_else(|| try_netem(spec, namespaces), Err);
    match tried {
        Ok(()) if forced => Ok((Backend::Netem, "asked for".to_owned())),
        Ok(()) => Ok((Backend::Netem, "the kernel has it".to_owned())),
        Err(why) if forced => Err(format!("netem cannot be used: {why}")),
        Err(why) => Ok((Backend::Tun, why)),
    }
}

/// A pair of veth devices with netem at both; removes them on failure.
fn try_netem(spec: &LinkSpec, namespaces: &Namespaces) -> Result<(), String> {
    use std::os::fd::AsFd;
    entered(namespaces, Side::A)?;
    let netlink = Netlink::open().map_err(|error| error.to_string())?;
    netlink
        .veth(DEVICE, namespaces.of(Side::B).as_fd())
        .map_err(|error| format!("the kernel makes no veth devices ({error})"))?;
    for (side, seed) in [(Side::A, spec.seed), (Side::B, !spec.seed)] {
        entered(namespaces, side)?;
        let here = Netlink::open().map_err(|error| error.to_string())?;
        let direction = spec.from(side);
        if let Err(error) = netem::set_up(&here, DEVICE, direction, spec, seed) {
            netlink.remove(DEVICE).map_err(|error| format!("cannot remove a device again: {error}"))?;
            return Err(match error.raw_os_error() {
                Some(2) => "the kernel has no netem".to_owned(),
                _ => format!("the kernel's netem refuses ({error})"),
            });
        }
    }
    Ok(())
}

/// Makes the TUN devices and the threads between them. Returns the scheduling of the threads.
fn carry(spec: &LinkSpec, namespaces: &Namespaces, tallies: &[Arc<Tally>; 2]) -> Result<String, String> {
    let mut devices = Vec::new();
    for side in [Side::A, Side::B] {
        entered(namespaces, side)?;
        let device = device().map_err(|error| Refusal::new("cannot make a TUN device", error).to_string())?;
        devices.push(Arc::new(device));
    }
    let [a, b] = &devices[..] else { return Err("two devices were made".to_owned()) };
    let mut urgency = Urgency::Ordinary;
    for (side, from, to) in [(Side::A, a, b), (Side::B, b, a)] {
        let (stream, tally) = match side {
            Side::A => (0, &tallies[0]),
            Side::B => (1, &tallies[1]),
        };
        let direction = spec.from(side);
        let shaper = Shaper::new(direction, spec.overhead, spec.seed, stream);
        let packet = u64::from(spec.mtu + spec.overhead);
        let ends = (Shared(Arc::clone(from)), Shared(Arc::clone(to)));
        let line = Line::new(ends, direction, shaper, packet, Arc::clone(tally));
        let (told, tell) = std::sync::mpsc::channel();
        thread::Builder::new()
            .name(format!("from-{side}"))
            .spawn(move || {
                let _end = EndsTheProcess;
                line.sign();
                let _ = told.send(runtime::be_urgent());
                line.run();
            })
            .map_err(|error| format!("cannot start a thread: {error}"))?;
        urgency = tell.recv().unwrap_or(urgency);
    }
    Ok(match urgency {
        Urgency::RealTime => "real-time",
        Urgency::ShortTurns => "short turns",
        Urgency::Ordinary => "ordinary",
    }
    .to_owned())
}

fn device() -> io::Result<SyncDevice> {
    let device = DeviceBuilder::new()
        .name(DEVICE)
        .enable(false)
        .with(|device| {
            device.offload(true);
        })
        .build_sync()?;
    device.set_nonblocking(true)?;
    Ok(device)
}

/// Ends the process if a line's thread ends: the parent then sees a broken link instead of a
/// stalled one.
struct EndsTheProcess;

impl Drop for EndsTheProcess {
    fn drop(&mut self) {
        std::process::exit(1);
    }
}

/// A device shared by two threads, one reading and one writing.
struct Shared(Arc<SyncDevice>);

impl std::os::fd::AsFd for Shared {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Configures the current namespace: devices without traffic of their own, and buffers that fill
/// the path.
fn before_devices(spec: &LinkSpec, side: Side, setup: &mut Setup) {
    // No packets from the kernel itself: the counters stay exact.
    for (name, value) in
        [("accept_dad", "0"), ("router_solicitations", "0"), ("addr_gen_mode", "1"), ("accept_ra", "0")]
    {
        // Without IPv6 these files do not exist.
        let _ = fs::write(format!("/proc/sys/net/ipv6/conf/default/{name}"), value);
    }
    let mut set = |name: &str, value: &str| {
        if let Err(error) = fs::write(format!("/proc/sys/net/ipv4/{name}"), value) {
            if side == Side::A {
                setup.remarks.push(format!("cannot set net.ipv4.{name}: {error}"));
            }
        }
    };
    set("ip_unprivileged_port_start", "0");
    // All groups; in a user namespace of our own only root's group exists.
    set("ping_group_range", if setup.of_own_user { "0 0" } else { "0 2147483647" });
    // No run uses TCP metrics cached by an earlier one.
    set("tcp_no_metrics_save", "1");
    let packet = u64::from(spec.mtu + spec.overhead);
    for (name, sender) in [("tcp_wmem", side), ("tcp_rmem", side.other())] {
        let queue = spec.from(sender).queue.bytes(packet);
        if let (Some(path), Some([least, first, most])) = (spec.bandwidth_delay(sender), triple(name)) {
            // Socket buffers count the memory of packets, up to four times their bytes.
            let wanted = (path.saturating_add(queue)).saturating_mul(4).min(i32::MAX as u64);
            set(name, &format!("{least} {first} {}", most.max(wanted)));
        }
    }
    setup.tcp_rmem = triple("tcp_rmem");
    setup.tcp_wmem = triple("tcp_wmem");
    setup.congestion_control = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control")
        .ok()
        .map(|name| name.trim().to_owned());
}

/// Reads a setting of three numbers.
fn triple(name: &str) -> Option<[u64; 3]> {
    let text = fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok()?;
    let numbers: Vec<u64> = text.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    numbers.try_into().ok()
}

/// Processor time of a thread of this process, s; 0 where the kernel does not report it.
fn processor_time(thread: u64) -> f64 {
    let text = fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).unwrap_or_default();
    let ns: u64 = text.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0);
    ns as f64 / 1e9
}

/// The kernel's counters of the link's device in the current namespace.
#[derive(Debug, Default)]
struct Device {
    received_bytes: u64,
    received: u64,
    sent_bytes: u64,
    sent: u64,
    sent_drops: u64,
}

impl Device {
    fn read() -> io::Result<Self> {
        let text = fs::read_to_string("/proc/thread-self/net/dev")?;
        let line = text.lines().find_map(|line| line.trim_start().strip_prefix(DEVICE)?.strip_prefix(':'));
        let numbers: Vec<u64> =
            line.unwrap_or_default().split_whitespace().filter_map(|number| number.parse().ok()).collect();
        let get = |at: usize| numbers.get(at).copied().unwrap_or(0);
        Ok(Self {
            received_bytes: get(0),
            received: get(1),
            sent_bytes: get(8),
            sent: get(9),
            sent_drops: get(11),
        })
    }
}
