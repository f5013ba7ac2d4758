//! `stag lab link`: a command on an emulated link, and what the link has done. It starts and ends
//! the commands; the link itself is `lab::link`'s.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ::lab::link::{
    Backend, Counters, Direction, DirectionCounters, Link, LinkError, LinkSpec, Measured, Queue, Setup, Side,
};
use runtime::Signals;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use crate::args::lab::LabLink;
use crate::exit::Exit;
use crate::interrupt::ring;

/// Time for a server to listen.
const UNTIL_IT_LISTENS: Duration = Duration::from_secs(10);
/// Time for a server to end after it is asked to.
const UNTIL_IT_ENDS: Duration = Duration::from_secs(3);

/// Whether a signal asked for the end.
static ASKED_TO_END: AtomicBool = AtomicBool::new(false);

/// The document of `--record`.
#[derive(Serialize)]
struct Record<'a> {
    spec: &'a LinkSpec,
    setup: &'a Setup,
    measured: Option<&'a Measured>,
    counters: &'a Counters,
    behind: Option<String>,
}

pub fn link(args: &LabLink) -> ExitCode {
    let spec = match args.options().resolve() {
        Ok(spec) => spec,
        Err(error) => return told(&error, Exit::Usage),
    };
    let link = match Link::up(&spec) {
        Ok(link) => link,
        Err(error @ LinkError::Spec(_)) => return told(&error, Exit::Usage),
        Err(error) => return told(&error, Exit::Startup),
    };
    run(args, &link).unwrap_or_else(|error| told(&error, Exit::Failed))
}

fn told(error: &dyn std::fmt::Display, exit: Exit) -> ExitCode {
    say!("stag lab link: {error}");
    exit.into()
}

fn run(args: &LabLink, link: &Link) -> Result<ExitCode, String> {
    let mut out = io::stderr().lock();
    // A failed message does not end the command.
    let _ = introduce(&mut out, link);
    let measured = args.measure.then(|| link.measure()).transpose().map_err(|error| error.to_string())?;
    if let Some(measured) = &measured {
        let _ = show_measured(&mut out, link.spec(), measured);
    }
    drop(out);
    let server = args.serve.as_deref().map(|command| Server::start(link, command)).transpose()?;
    let mut command = match args.command.split_first() {
        Some((program, arguments)) => {
            let mut command = link.command(Side::B, program);
            command.args(arguments);
            command
        }
        None => link.command(Side::B, std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into())),
    };
    link.reset_counters().map_err(|error| error.to_string())?;
    let mut child = command.spawn().map_err(|error| format!("cannot start the command: {error}"))?;
    // Set up last: the started processes must receive signals as usual.
    pass_signals_on(&child);
    let status = child.wait().map_err(|error| error.to_string())?;
    drop(server);
    let counters = link.counters().map_err(|error| error.to_string())?;
    let behind = counters.behind(link.spec());
    let _ = show_counters(&mut io::stderr().lock(), &counters);
    let _ = not_held(&mut io::stderr().lock(), behind.as_ref());
    if let Some(file) = &args.record {
        let record = Record {
            spec: link.spec(),
            setup: link.setup(),
            measured: measured.as_ref(),
            counters: &counters,
            behind,
        };
        write_record(file, &record).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(code(status))
}

/// A command's status as a shell reports it.
fn code(status: ExitStatus) -> ExitCode {
    use std::os::unix::process::ExitStatusExt;
    if ASKED_TO_END.load(Ordering::Relaxed) {
        return Exit::Interrupted.into();
    }
    match (status.code(), status.signal()) {
        (Some(code), _) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        (None, Some(signal)) => ExitCode::from(u8::try_from(128 + signal).unwrap_or(1)),
        (None, None) => ExitCode::FAILURE,
    }
}

fn write_record(file: &Path, record: &Record<'_>) -> io::Result<()> {
    let mut text = serde_json::to_string_pretty(record)?;
    text.push('\n');
    fs::write(file, text)
}

/// Passes signals that end this process on to the command. On a terminal, Ctrl-C reaches the
/// command by itself.
fn pass_signals_on(child: &Child) {
    let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) else { return };
    // If signals cannot be waited for, they end this process as usual, and the link with it.
    if ring().is_err() {
        return;
    }
    let watched = [runtime::Signal::Interrupt, runtime::Signal::Terminate, runtime::Signal::Hangup];
    let Ok(signals) = Signals::new(&watched) else { return };
    let terminal = io::stdin().is_terminal();
    std::thread::spawn(move || {
        let Ok(ring) = ring() else { return };
        while let Ok(signal) = ring.block_on(signals.next()) {
            if signal == runtime::Signal::Interrupt && terminal {
                continue;
            }
            ASKED_TO_END.store(true, Ordering::Relaxed);
            let _ = kill_process(pid, Signal::TERM);
        }
    });
}

/// The command of `--serve`. On drop it is asked to end; processes it leaves end with the link.
struct Server(Child);

impl Server {
    /// Starts it, and waits until it listens.
    fn start(link: &Link, command: &str) -> Result<Self, String> {
        let mut shell: Command = link.command(Side::A, "/bin/sh");
        let child = shell
            .args(["-c", command])
            .stdin(Stdio::null())
            .spawn()
            .map_err(|error| format!("cannot start the server: {error}"))?;
        let mut this = Self(child);
        let begun = Instant::now();
        while !this.listens() {
            if let Ok(Some(status)) = this.0.try_wait() {
                return Err(format!("the server has ended with {status}"));
            }
            if begun.elapsed() > UNTIL_IT_LISTENS {
                say!("stag lab link: the server does not listen on any TCP port yet");
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(this)
    }

    /// Whether anything listens on its side.
    fn listens(&self) -> bool {
        let own = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net"));
        let (Ok(ours), Ok(theirs)) = (own("self"), own(&self.0.id().to_string())) else { return false };
        // Before the server has entered the namespace, these are the machine's sockets.
        ours != theirs
            && ["tcp", "tcp6"].iter().any(|family| {
                fs::read_to_string(format!("/proc/{}/net/{family}", self.0.id())).is_ok_and(|sockets| {
                    // proc(5): the fourth word is the state, 0A for one that listens.
                    sockets.lines().any(|line| line.split_whitespace().nth(3) == Some("0A"))
                })
            })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let begun = Instant::now();
        while matches!(self.0.try_wait(), Ok(None)) && begun.elapsed() < UNTIL_IT_ENDS {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn introduce(out: &mut impl Write, link: &Link) -> io::Result<()> {
    let (spec, setup) = (link.spec(), link.setup());
    let by = match setup.backend {
        Backend::Netem => "netem",
        _ => "tun",
    };
    writeln!(out, "link {} by {by} ({}), MTU {}, seed {}", spec.name, setup.why, spec.mtu, spec.seed)?;
    introduce_line(out, spec)?;
    for (at, line) in spec.others.iter().enumerate() {
        let addresses = |side| link.addresses(side).get(at + 1).map(ToString::to_string).unwrap_or_default();
        let (a, b) = (addresses(Side::A), addresses(Side::B));
        writeln!(out, "  line {}    {a} and {b}, MTU {}", at + 2, line.mtu)?;
        introduce_line(out, line)?;
    }
    for (side, what) in [(Side::A, "servers"), (Side::B, "clients")] {
        let six = link.address6(side).map(|address| format!(" {address}")).unwrap_or_default();
        writeln!(out, "  side {}    {}{six} ({what})", side.name().to_uppercase(), link.address(side))?;
    }
    if let Some(name) = &spec.congestion {
        writeln!(out, "  TCP's congestion control at both ends: {name}")?;
    }
    for remark in &setup.remarks {
        writeln!(out, "  {remark}")?;
    }
    Ok(())
}

fn introduce_line(out: &mut impl Write, spec: &LinkSpec) -> io::Result<()> {
    if spec.a_to_b == spec.b_to_a {
        return writeln!(out, "  each way  {}", describe(&spec.a_to_b));
    }
    writeln!(out, "  A to B    {}", describe(&spec.a_to_b))?;
    writeln!(out, "  B to A    {}", describe(&spec.b_to_a))
}

/// The settings of one direction in words.
fn describe(direction: &Direction) -> String {
    let mut text = format!("{:?}", direction.delay);
    if !direction.jitter.is_zero() {
        text += &format!(" ± {:?}", direction.jitter);
    }
    match (direction.rate, direction.queue) {
        (None, _) => text += ", no limit of rate",
        (Some(rate), Queue::Bytes(bytes)) => {
            text += &format!(", {} Mb/s, queue {bytes} bytes", rate as f64 / 1e6);
        }
        (Some(rate), Queue::Packets(packets)) => {
            text += &format!(", {} Mb/s, queue {packets} packets", rate as f64 / 1e6);
        }
    }
    if let Some(plan) = &direction.rate_plan {
        for change in &plan.changes {
            text += &format!(", from {:?} on {} Mb/s", change.at, change.rate as f64 / 1e6);
        }
        text += &plan.period.map(|period| format!(", again after {period:?}")).unwrap_or_default();
    }
    if direction.loss > 0.0 {
        text += &format!(", loses {} %", direction.loss * 100.0);
        if direction.burst > 1.0 {
            text += &format!(" ({} in a row)", direction.burst);
        }
    }
    if direction.reorder > 0.0 {
        text += &format!(", {} % later by {:?}", direction.reorder * 100.0, direction.reorder_by);
    }
    text
}

fn show_measured(out: &mut dyn Write, spec: &LinkSpec, measured: &Measured) -> io::Result<()> {
    let trip = &measured.round_trip_us;
    writeln!(
        out,
        "measured  round trip {:.0} µs (min {:.0}, 99 %: {:.0}, max {:.0}; asked {:.0})",
        trip.median, trip.min, trip.p99, trip.max, measured.round_trip_asked_us
    )?;
    for (name, side, way) in [("A to B", Side::A, &measured.a_to_b), ("B to A", Side::B, &measured.b_to_a)] {
        let asked = spec.from(side).delay.as_nanos() as f64 / 1e3;
        write!(
            out,
            "  {name}    {:.0} µs (min {:.0}, 99 %: {:.0}; asked {asked:.0}), lost {} of {}",
            way.one_way_us.median, way.one_way_us.min, way.one_way_us.p99, way.lost, way.sent
        )?;
        match way.rate_bits_per_second {
            Some(rate) => writeln!(out, ", {:.1} Mb/s", rate / 1e6)?,
            None => writeln!(out)?,
        }
    }
    not_held(out, measured.behind.as_ref())?;
    for (at, (line, measured)) in spec.others.iter().zip(&measured.others).enumerate() {
        write!(out, "line {} ", at + 2)?;
        show_measured(out, line, measured)?;
    }
    Ok(())
}

fn not_held(out: &mut dyn Write, why: Option<&String>) -> io::Result<()> {
    why.map_or(Ok(()), |why| writeln!(out, "this machine did not hold the link's rate: {why}"))
}

fn show_counters(out: &mut dyn Write, counters: &Counters) -> io::Result<()> {
    writeln!(out, "counters of {:.1} s{:>21}{:>16}", counters.seconds, "A to B", "B to A")?;
    let (a, b) = (&counters.a_to_b, &counters.b_to_a);
    let mut line = |name: &str, always: bool, of: &dyn Fn(&DirectionCounters) -> u64| {
        let (a, b) = (of(a), of(b));
        if always || a + b > 0 { writeln!(out, "  {name:<24}{a:>16}{b:>16}") } else { Ok(()) }
    };
    line("packets in", true, &|way| way.packets_in)?;
    line("bytes in", true, &|way| way.bytes_in)?;
    line("packets out", true, &|way| way.packets_out)?;
    line("bytes out", true, &|way| way.bytes_out)?;
    line("lost by the line", true, &|way| way.dropped_loss)?;
    line("dropped, queue full", true, &|way| way.dropped_queue)?;
    line("dropped, no memory", false, &|way| way.dropped_overrun)?;
    line("dropped by the device", false, &|way| way.dropped_device)?;
    line("not taken", false, &|way| way.undeliverable)?;
    line("malformed", false, &|way| way.malformed)?;
    line("reordered", false, &|way| way.reordered)?;
    line("largest packet, bytes", false, &|way| way.largest_packet_bytes)?;
    line("most in the queue, bytes", true, &|way| way.queue_high_water_bytes)?;
    line("late, median, µs", false, &|way| way.late_percentile(0.5))?;
    line("late, 99 %, µs", false, &|way| way.late_percentile(0.99))?;
    line("late, 99.9 %, µs", false, &|way| way.late_percentile(0.999))?;
    line("full rate asked, ms", false, &|way| way.asked_us / 1000)?;
    line("of it idle, ms", false, &|way| way.missed_us / 1000)?;
    line("processor time, ms", false, &|way| (way.cpu_seconds * 1e3) as u64)?;
    line("without a processor, ms", false, &|way| (way.ready_seconds * 1e3) as u64)?;
    for (at, counters) in counters.others.iter().enumerate() {
        write!(out, "line {} ", at + 2)?;
        show_counters(out, counters)?;
    }
    Ok(())
}
