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
use super::lag;
use super::line::Line;
use super::namespace::{Door, Namespaces, Refusal, sweep};
use super::netem;
use super::netlink::Netlink;
use super::probe::{self, Measured};
use super::pulse::Pulse;
use super::shape::Shaper;
use super::spec::{Backend, LinkSpec, Side};

/// The name of a line's device in both namespaces.
fn device_of(line: usize) -> String {
    format!("link{line}")
}

/// Packets that may wait in a device for the forwarder: the link's own queue is to decide about
/// bursts.
const DEVICE_QUEUE: u32 = 16_384;

/// The addresses, from the networks that RFC 2544 and RFC 5180 reserve for benchmarks.
fn four(line: usize) -> [Ipv4Addr; 2] {
    [1, 2].map(|end| Ipv4Addr::new(198, 18, line as u8, end))
}

fn six(line: usize) -> [Ipv6Addr; 2] {
    [1, 2].map(|end| Ipv6Addr::new(0x2001, 2, 0, line as u16, 0, 0, 0, end))
}

/// Set-up of a link, for the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// The backend in use: `Tun` or `Netem`.
    pub backend: Backend,
    /// Why this backend was chosen.
    pub why: String,
    /// The IPv4 addresses of side A and side B.
    pub addresses: [Ipv4Addr; 2],
    /// The same of the lines beside the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_addresses: Vec<[Ipv4Addr; 2]>,
    /// The IPv6 addresses, where the system has IPv6 and the MTU allows it.
    pub addresses6: Option<[Ipv6Addr; 2]>,
    /// Whether the namespaces belong to a user namespace of our own: always, unless root made them.
    pub of_own_user: bool,
    /// The scheduling of the forwarder: `real-time`, `short turns` or `ordinary`.
    pub urgency: String,
    /// How long it takes to wake a thread of the forwarder, ns, which short links take off their
    /// delay; 0 for netem.
    #[serde(default)]
    pub wake_ns: u64,
    /// TCP's congestion control between the sides: the one that was asked for, or the machine's.
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
    /// Begins counters and plans of rates anew.
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
    /// Of each line, by the sending side.
    tallies: Vec<[Arc<Tally>; 2]>,
    pulse: Arc<Pulse>,
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
            addresses: four(0),
            other_addresses: (1..=spec.others.len()).map(four).collect(),
            addresses6: None,
            of_own_user: namespaces.of_own_user,
            urgency: "ordinary".to_owned(),
            wake_ns: 0,
            congestion_control: None,
            tcp_rmem: None,
            tcp_wmem: None,
            remarks: Vec::new(),
        };
        for side in [Side::A, Side::B] {
            entered(&namespaces, side)?;
            before_devices(spec, side, &mut setup);
        }
        let tallies: Vec<[Arc<Tally>; 2]> = spec.lines().map(|_| Default::default()).collect();
        let pulse = Pulse::new();
        (setup.backend, setup.why) = choose(spec, &namespaces)?;
        if setup.backend == Backend::Tun {
            setup.wake_ns = lag::of_a_wake();
            for (at, (line, tallies)) in spec.lines().zip(&tallies).enumerate() {
                setup.urgency = carry((at, setup.wake_ns), line, &namespaces, tallies, &pulse)?;
            }
        }
        let mut with_six = spec.lines().all(|line| line.mtu >= 1280);
        for (side, at) in [(Side::A, 0), (Side::B, 1)] {
            entered(&namespaces, side)?;
            let failed = |error| Refusal::new("cannot set the link's devices up", error).to_string();
            let netlink = Netlink::open().map_err(failed)?;
            netlink.up("lo", None, None).map_err(failed)?;
            let queue = (setup.backend == Backend::Tun).then_some(DEVICE_QUEUE);
            for (number, line) in spec.lines().enumerate() {
                let device = device_of(number);
                netlink.up(&device, Some(line.mtu), queue).map_err(failed)?;
                netlink.address(&device, IpAddr::V4(four(number)[at]), 24).map_err(failed)?;
                with_six = with_six && netlink.address(&device, IpAddr::V6(six(number)[at]), 64).is_ok();
                if let Some(name) = &spec.congestion {
                    pin_congestion(&netlink, name, number, 1 - at, with_six)?;
                    setup.congestion_control = Some(name.clone());
                }
            }
        }
        setup.addresses6 = with_six.then_some(six(0));
        if !with_six {
            setup.remarks.push("without IPv6".to_owned());
        }
        let mut held = Self {
            spec: spec.clone(),
            setup,
            doors: [door_a, door_b],
            namespaces,
            tallies,
            pulse,
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
                self.anew();
                // The probes expect the first rate.
                self.pulse.begin_plans(false);
                let measured = self.measure();
                self.anew();
                match measured {
                    Ok(measured) => Answer::Measured(Box::new(measured)),
                    Err(error) => Answer::Failed(format!("cannot measure the link: {error}")),
                }
            }
        }
    }

    /// Measures each line by itself.
    fn measure(&self) -> io::Result<Measured> {
        let mut lines = Vec::new();
        for (number, line) in self.spec.lines().enumerate() {
            let before = self.read_line(number, false);
            let [a, b] = four(number).map(IpAddr::V4);
            let mut measured = probe::measure(line, &self.namespaces, (a, b))?;
            let counted = self.read_line(number, false).since(&before);
            measured.behind = measured.slower(line).or_else(|| counted.line_behind(line));
            lines.push(measured);
        }
        let mut lines = lines.into_iter();
        let first = lines.next().unwrap_or_default();
        Ok(Measured { others: lines.collect(), ..first })
    }

    /// Begins counters and plans of rates anew.
    fn anew(&mut self) {
        self.pulse.begin_plans(true);
        self.before = self.read(true);
    }

    /// All counters since the link came up.
    fn read(&self, anew: bool) -> Counters {
        let others = (1..self.tallies.len()).map(|line| self.read_line(line, anew)).collect();
        Counters { others, ..self.read_line(0, anew) }
    }

    fn read_line(&self, line: usize, anew: bool) -> Counters {
        let seconds = self.began.elapsed().as_secs_f64();
        let [a_to_b, b_to_a] = [Side::A, Side::B].map(|side| self.read_side(line, side, anew));
        Counters { seconds, a_to_b, b_to_a, others: Vec::new() }
    }

    /// The counters of packets sent on a line from one side.
    fn read_side(&self, line: usize, side: Side, anew: bool) -> DirectionCounters {
        if self.setup.backend == Backend::Netem {
            return self.read_netem(side).unwrap_or_default();
        }
        let Some(tallies) = self.tallies.get(line) else { return DirectionCounters::default() };
        let tally = match side {
            Side::A => &tallies[0],
            Side::B => &tallies[1],
        };
        let mut counters = tally.read(anew);
        [counters.cpu_seconds, counters.ready_seconds] = schedule(tally.thread.load(Ordering::Relaxed));
        if self.namespaces.enter(side).is_ok() {
            counters.dropped_device = Device::read(line).map_or(0, |device| device.sent_drops);
        }
        counters
    }

    fn read_netem(&self, side: Side) -> io::Result<DirectionCounters> {
        self.namespaces.enter(side)?;
        let sent = Device::read(0)?;
        let drops = Netlink::open()?.discipline_drops(&device_of(0))?;
        self.namespaces.enter(side.other())?;
        let received = Device::read(0)?;
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
    let device = device_of(0);
    let netlink = Netlink::open().map_err(|error| error.to_string())?;
    netlink
        .veth(&device, namespaces.of(Side::B).as_fd())
        .map_err(|error| format!("the kernel makes no veth devices ({error})"))?;
    for (side, seed) in [(Side::A, spec.seed), (Side::B, !spec.seed)] {
        entered(namespaces, side)?;
        let here = Netlink::open().map_err(|error| error.to_string())?;
        let direction = spec.from(side);
        if let Err(error) = netem::set_up(&here, &device, direction, spec, seed) {
            netlink.remove(&device).map_err(|error| format!("cannot remove a device again: {error}"))?;
            return Err(match error.raw_os_error() {
                Some(2) => "the kernel has no netem".to_owned(),
                _ => format!("the kernel's netem refuses ({error})"),
            });
        }
    }
    Ok(())
}

/// Makes the TUN devices of a line, and the threads between them, whose wakes take `wake` ns.
/// Returns the scheduling of the threads.
fn carry(
    (number, wake): (usize, u64),
    spec: &LinkSpec,
    namespaces: &Namespaces,
    tallies: &[Arc<Tally>; 2],
    pulse: &Arc<Pulse>,
) -> Result<String, String> {
    let mut devices = Vec::new();
    for side in [Side::A, Side::B] {
        entered(namespaces, side)?;
        let device =
            device(number).map_err(|error| Refusal::new("cannot make a TUN device", error).to_string())?;
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
        let mut line = Line::new(ends, direction, shaper, packet, Arc::clone(tally), Arc::clone(pulse));
        line.take_off(wake);
        let (told, tell) = std::sync::mpsc::channel();
        thread::Builder::new()
            .name(format!("line{number}-from-{side}"))
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

fn device(line: usize) -> io::Result<SyncDevice> {
    let device = DeviceBuilder::new()
        .name(device_of(line))
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
    for line in spec.lines() {
        let packet = u64::from(line.mtu + line.overhead);
        for (name, sender) in [("tcp_wmem", side), ("tcp_rmem", side.other())] {
            let queue = line.from(sender).queue.bytes(packet);
            if let (Some(path), Some([least, first, most])) = (line.bandwidth_delay(sender), triple(name)) {
                // Socket buffers count the memory of packets, up to four times their bytes.
                let wanted = (path.saturating_add(queue)).saturating_mul(4).min(i32::MAX as u64);
                set(name, &format!("{least} {first} {}", most.max(wanted)));
            }
        }
    }
    setup.tcp_rmem = triple("tcp_rmem");
    setup.tcp_wmem = triple("tcp_wmem");
    setup.congestion_control = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control")
        .ok()
        .map(|name| name.trim().to_owned());
}

/// Gives the current side's connections on a line to the other side, whose index is `peer`, this
/// congestion control.
fn pin_congestion(
    netlink: &Netlink,
    name: &str,
    line: usize,
    peer: usize,
    by_six: bool,
) -> Result<(), String> {
    let peers = [Some(IpAddr::V4(four(line)[peer])), by_six.then_some(IpAddr::V6(six(line)[peer]))];
    for peer in peers.into_iter().flatten() {
        if let Err(error) = netlink.pin_congestion(&device_of(line), peer, name) {
            let there = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
            let there = there.unwrap_or_default().trim().replace(' ', ", ");
            return Err(match error.raw_os_error() {
                // EINVAL: no algorithm of that name.
                Some(22) => format!(
                    "the kernel has no congestion control `{name}`; it has {there} (modprobe tcp_{name}, if there is such a module)"
                ),
                _ => format!("the kernel does not pin congestion control `{name}`: {error}"),
            });
        }
    }
    Ok(())
}

/// Reads a setting of three numbers.
fn triple(name: &str) -> Option<[u64; 3]> {
    let text = fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok()?;
    let numbers: Vec<u64> = text.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    numbers.try_into().ok()
}

/// Processor time of a thread of this process, and the time that it was ready and had no processor,
/// s; 0 where the kernel does not report them.
fn schedule(thread: u64) -> [f64; 2] {
    let text = fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).unwrap_or_default();
    let mut words = text.split_whitespace();
    let mut next = || words.next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0) as f64 / 1e9;
    [next(), next()]
}

/// The kernel's counters of a line's device in the current namespace.
#[derive(Debug, Default)]
struct Device {
    received_bytes: u64,
    received: u64,
    sent_bytes: u64,
    sent: u64,
    sent_drops: u64,
}

impl Device {
    fn read(line: usize) -> io::Result<Self> {
        let text = fs::read_to_string("/proc/thread-self/net/dev")?;
        let name = device_of(line);
        let line = text.lines().find_map(|line| line.trim_start().strip_prefix(&name)?.strip_prefix(':'));
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
