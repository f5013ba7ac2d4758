//! Measures the path as programs at its ends see it: one-way delays, round trip, loss, and the rate
//! of a burst of large packets. Uses UDP, from threads in the two namespaces, before anything else
//! uses the link. Never sends more than the line sends meanwhile and its queue holds.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt::UdpGsoSegment};
use serde::{Deserialize, Serialize};

use super::namespace::{Namespaces, enter};
use super::spec::{LinkSpec, Side};

/// The number of round-trip probes, and the minimum gap between two.
const PROBES: u32 = 1000;
const GAP: Duration = Duration::from_micros(300);
/// The maximum time of all probes together.
const LONGEST: Duration = Duration::from_millis(600);
/// The data of a probe: its number, the time sent, the time returned.
const PROBE_BYTES: usize = 64;
/// IPv4's and UDP's headers.
const HEADERS: u64 = 28;
/// How long the largest packets are sent at the line's rate, and the most of them.
const ROW: Duration = Duration::from_millis(25);
const MOST_IN_ROW: u64 = 40_000;
/// How often that is tried until the line holds its rate: other programs may disturb one.
const ROWS: usize = 5;
/// The part of its rate that a line must have been measured at.
const LEAST_RATE: f64 = 0.9;

/// A distribution of values, µs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    pub min: f64,
    /// The 50th percentile.
    pub median: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 99th percentile.
    pub p99: f64,
    pub max: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_unstable_by(f64::total_cmp);
        let at = |part: f64| {
            let index = (values.len() as f64 * part).ceil() as usize;
            values.get(index.saturating_sub(1)).copied().unwrap_or(0.0)
        };
        Self { min: at(0.0), median: at(0.5), p90: at(0.9), p99: at(0.99), max: at(1.0) }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MeasuredDirection {
    /// The one-way delay of small packets, µs.
    pub one_way_us: Spread,
    pub sent: u64,
    /// Small packets that did not arrive.
    pub lost: u64,
    /// Bits per second on the wire; `None` without a rate limit.
    pub rate_bits_per_second: Option<f64>,
}

/// The measurement of a link.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The time of a small packet from B to A and its answer, µs.
    pub round_trip_us: Spread,
    /// The configured round trip, µs: both delays, and the time of both packets on the line.
    pub round_trip_asked_us: f64,
    /// From side A to side B.
    pub a_to_b: MeasuredDirection,
    /// From side B to side A.
    pub b_to_a: MeasuredDirection,
    /// The time that the measurement took, s.
    pub seconds: f64,
    /// Why the link did not hold its rate or came late, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind: Option<String>,
    /// The lines beside the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Measured>,
}

impl Measured {
    /// What was measured of a line that is slower than asked for, if one is.
    #[must_use]
    pub fn too_slow(&self, spec: &LinkSpec) -> Option<String> {
        std::iter::once(self).chain(&self.others).zip(spec.lines()).find_map(|(line, spec)| line.slower(spec))
    }

    /// The same of its first line alone.
    pub(super) fn slower(&self, spec: &LinkSpec) -> Option<String> {
        [(Side::A, &self.a_to_b), (Side::B, &self.b_to_a)].into_iter().find_map(|(side, way)| {
            let (asked, found) = (spec.from(side).rate? as f64, way.rate_bits_per_second?);
            let (from, to) = (side.name().to_uppercase(), side.other().name().to_uppercase());
            (found < asked * LEAST_RATE).then(|| {
                format!("from {from} to {to} packets passed at {:.0} of {:.0} Mb/s", found / 1e6, asked / 1e6)
            })
        })
    }
}

/// Runs `work` on a thread in one side's namespace.
fn inside<T: Send + 'static>(
    namespaces: &Namespaces,
    side: Side,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<JoinHandle<io::Result<T>>> {
    let namespace = namespaces.of(side).try_clone()?;
    thread::Builder::new().name(format!("probe-{side}")).spawn(move || {
        enter(&namespace)?;
        runtime::be_urgent();
        work()
    })
}

fn socket(namespaces: &Namespaces, side: Side, address: IpAddr) -> io::Result<UdpSocket> {
    let made = inside(namespaces, side, move || UdpSocket::bind((address, 0)))?;
    let socket = ended(made)?;
    // So that no receiver waits forever for a lost packet.
    socket.set_read_timeout(Some(Duration::from_millis(20)))?;
    Ok(socket)
}

fn ended<T>(thread: JoinHandle<io::Result<T>>) -> io::Result<T> {
    thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
}

/// A datagram, or `None` after the socket's timeout.
fn receive(socket: &UdpSocket, into: &mut [u8]) -> io::Result<Option<(usize, SocketAddr)>> {
    match socket.recv_from(into) {
        Ok(came) => Ok(Some(came)),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn number(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|eight| eight.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// Measures the whole path.
pub(crate) fn measure(
    spec: &LinkSpec,
    namespaces: &Namespaces,
    (a, b): (IpAddr, IpAddr),
) -> io::Result<Measured> {
    let start = Instant::now();
    let server = socket(namespaces, Side::A, a)?;
    let client = socket(namespaces, Side::B, b)?;
    let mut measured = round_trips(spec, &server, &client)?;
    measured.a_to_b.rate_bits_per_second = best_row(spec, Side::A, &server, &client)?;
    measured.b_to_a.rate_bits_per_second = best_row(spec, Side::B, &client, &server)?;
    measured.seconds = start.elapsed().as_secs_f64();
    Ok(measured)
}

/// The time that `bytes` of UDP data take on the line.
fn on_the_line(spec: &LinkSpec, side: Side, bytes: u64) -> Duration {
    let wire = bytes + HEADERS + u64::from(spec.overhead);
    spec.from(side)
        .rate
        .map_or(Duration::ZERO, |rate| Duration::from_nanos(wire.saturating_mul(8_000_000_000) / rate))
}

/// Sends small packets from B to A, which returns each.
fn round_trips(spec: &LinkSpec, server: &UdpSocket, client: &UdpSocket) -> io::Result<Measured> {
    let clock = Instant::now();
    let now = move || clock.elapsed().as_nanos() as u64;
    let busy = |side| on_the_line(spec, side, PROBE_BYTES as u64);
    // Probes use at most a tenth of the line.
    let gap = GAP.max(busy(Side::A).max(busy(Side::B)) * 10);
    let probes = PROBES.min((LONGEST.as_nanos() / gap.as_nanos()) as u32).max(10);
    let patience = spec.round_trip() + spec.a_to_b.jitter + spec.b_to_a.jitter + Duration::from_millis(150);
    let stop = Arc::new(AtomicBool::new(false));
    let answered = Arc::new(AtomicU64::new(0));

    // No probe is sent before both sides listen: time in a socket buffer is not time on the path.
    let (ready, listening) = channel();
    let both_ready = ready.clone();
    let (echo, stopped, counted) = (server.try_clone()?, Arc::clone(&stop), Arc::clone(&answered));
    let echo = thread::Builder::new().name("probe-echo".to_owned()).spawn(move || -> io::Result<()> {
        runtime::be_urgent();
        let _ = ready.send(());
        let mut bytes = [0; PROBE_BYTES];
        while !stopped.load(Ordering::Relaxed) {
            if let Some((len, from)) = receive(&echo, &mut bytes)? {
                bytes[16..24].copy_from_slice(&now().to_le_bytes());
                counted.fetch_add(1, Ordering::Relaxed);
                echo.send_to(&bytes[..len], from)?;
            }
        }
        Ok(())
    })?;
    let (listener, stopped) = (client.try_clone()?, Arc::clone(&stop));
    let came = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&came);
    let listener = thread::Builder::new().name("probe-listen".to_owned()).spawn(move || {
        runtime::be_urgent();
        let _ = both_ready.send(());
        let mut bytes = [0; PROBE_BYTES];
        let mut times = Vec::with_capacity(probes as usize);
        while !stopped.load(Ordering::Relaxed) {
            if receive(&listener, &mut bytes)?.is_some() {
                times.push((number(&bytes, 8), number(&bytes, 16), now()));
                seen.fetch_add(1, Ordering::Relaxed);
            }
        }
        io::Result::Ok(times)
    })?;

    for _ in 0..2 {
        let _ = listening.recv();
    }
    let to = server.local_addr()?;
    let began = Duration::from_nanos(now());
    let mut sent = Ok(());
    for probe in 0..probes {
        let due = began + gap * probe;
        if let Some(wait) = due.checked_sub(Duration::from_nanos(now())) {
            thread::sleep(wait);
        }
        let mut bytes = [0; PROBE_BYTES];
        bytes[..8].copy_from_slice(&u64::from(probe).to_le_bytes());
        bytes[8..16].copy_from_slice(&now().to_le_bytes());
        sent = client.send_to(&bytes, to).map(|_| ());
        if sent.is_err() {
            break;
        }
    }
    let last = Instant::now();
    while came.load(Ordering::Relaxed) < u64::from(probes) && last.elapsed() < patience {
        thread::sleep(Duration::from_millis(1));
    }
    stop.store(true, Ordering::Relaxed);
    let times = ended(listener)?;
    ended(echo)?;
    sent?;

    let us = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e3;
    let spread = |of: &dyn Fn(&(u64, u64, u64)) -> f64| Spread::of(times.iter().map(of).collect());
    let (sent, answered) = (u64::from(probes), answered.load(Ordering::Relaxed));
    let asked = spec.round_trip() + busy(Side::A) + busy(Side::B);
    Ok(Measured {
        round_trip_us: spread(&|(sent, _, back)| us(*sent, *back)),
        round_trip_asked_us: asked.as_nanos() as f64 / 1e3,
        b_to_a: MeasuredDirection {
            one_way_us: spread(&|(sent, turned, _)| us(*sent, *turned)),
            sent,
            lost: sent.saturating_sub(answered),
            rate_bits_per_second: None,
        },
        a_to_b: MeasuredDirection {
            one_way_us: spread(&|(_, turned, back)| us(*turned, *back)),
            sent: answered,
            lost: answered.saturating_sub(times.len() as u64),
            rate_bits_per_second: None,
        },
        seconds: 0.0,
        behind: None,
        others: Vec::new(),
    })
}

/// The best rate of a few rows; the first that holds the line's rate is the last.
fn best_row(
    spec: &LinkSpec,
    from: Side,
    sender: &UdpSocket,
    receiver: &UdpSocket,
) -> io::Result<Option<f64>> {
    let enough = spec.from(from).rate.map_or(0.0, |rate| rate as f64 * LEAST_RATE);
    let mut best: Option<f64> = None;
    for _ in 0..ROWS {
        best = best.into_iter().chain(row(spec, from, sender, receiver)?).reduce(f64::max);
        if best.is_none_or(|best| best >= enough) {
            break;
        }
    }
    Ok(best)
}

/// Sends the largest packets from one side, as fast as the line is to send them and half a queue
/// ahead. Returns bits per second on the wire, from the first packet that arrived to the last.
fn row(spec: &LinkSpec, from: Side, sender: &UdpSocket, receiver: &UdpSocket) -> io::Result<Option<f64>> {
    let direction = spec.from(from);
    let Some(rate) = direction.rate else { return Ok(None) };
    let data = u64::from(spec.mtu) - HEADERS;
    let wire = u64::from(spec.mtu + spec.overhead);
    // Bytes that pass in a time.
    let passes = |time: Duration| {
        u64::try_from(u128::from(rate) * time.as_nanos() / 8_000_000_000).unwrap_or(u64::MAX)
    };
    let ahead = (direction.queue.bytes(wire) / 2).max(wire);
    let packets = (passes(ROW) / wire).clamp(2, MOST_IN_ROW);
    let patience = direction.delay
        + direction.jitter
        + on_the_line(spec, from, data) * packets as u32
        + Duration::from_millis(100);
    let to = receiver.local_addr()?;
    let receiver = receiver.try_clone()?;
    let (ready, listening) = channel();
    let listener = thread::Builder::new().name("probe-row".to_owned()).spawn(move || -> io::Result<_> {
        runtime::be_urgent();
        let _ = ready.send(());
        let clock = Instant::now();
        let mut bytes = vec![0; data as usize];
        let (mut first, mut last) = (None, None);
        while clock.elapsed() < patience {
            if let Some((len, _)) = receive(&receiver, &mut bytes)? {
                // A late probe does not belong to the burst.
                if len == data as usize {
                    let came = (number(&bytes, 0), clock.elapsed());
                    first.get_or_insert(came);
                    last = Some(came);
                    if came.0 + 1 == packets {
                        break;
                    }
                }
            }
        }
        Ok((first, last))
    })?;
    // Many packets per call where the kernel segments them, so that the sender is faster than the
    // line.
    let at_once = match setsockopt(sender, UdpGsoSegment, &(data as i32)) {
        Ok(()) => (60_000 / data).clamp(1, 60).min(ahead / wire),
        Err(_) => 1,
    };
    let _ = listening.recv();
    let mut sent = Ok(());
    let mut packet = 0;
    let begun = Instant::now();
    while packet < packets && sent.is_ok() {
        let count = at_once.min(packets - packet);
        while (packet + count) * wire > passes(begun.elapsed()) + ahead {
            thread::sleep(Duration::from_micros(100));
        }
        let mut bytes = vec![0; (data * count) as usize];
        for (at, bytes) in bytes.chunks_exact_mut(data as usize).enumerate() {
            bytes[..8].copy_from_slice(&(packet + at as u64).to_le_bytes());
        }
        sent = sender.send_to(&bytes, to).map(|_| ());
        packet += count;
    }
    let (first, last) = ended(listener)?;
    sent?;
    let (Some((first, began)), Some((last, over))) = (first, last) else { return Ok(None) };
    let took = over.saturating_sub(began);
    // Lost packets used the line as well.
    let bits = last.saturating_sub(first) * wire * 8;
    Ok((bits > 0 && !took.is_zero()).then(|| bits as f64 / took.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_passes_less_than_nine_tenths_of_its_rate_is_too_slow() {
        let lan = LinkSpec::preset("lan").unwrap();
        let spec = LinkSpec { others: vec![lan.clone()], ..lan };
        let line = |rate| {
            let way = MeasuredDirection { rate_bits_per_second: Some(rate), ..MeasuredDirection::default() };
            Measured { b_to_a: way, ..Measured::default() }
        };
        assert_eq!(Measured { others: vec![line(0.91e9)], ..line(0.91e9) }.too_slow(&spec), None);
        let slow = Measured { others: vec![line(0.42e9)], ..line(0.91e9) }.too_slow(&spec).unwrap();
        assert_eq!(slow, "from B to A packets passed at 420 of 1000 Mb/s");
    }

    #[test]
    fn a_spread_is_of_the_values_it_was_given() {
        let spread = Spread::of((1..=1000).rev().map(f64::from).collect());
        assert_eq!(spread, Spread { min: 1.0, median: 500.0, p90: 900.0, p99: 990.0, max: 1000.0 });
        assert_eq!(Spread::of(vec![7.0]), Spread { min: 7.0, median: 7.0, p90: 7.0, p99: 7.0, max: 7.0 });
        assert_eq!(Spread::of(Vec::new()), Spread::default());
    }
}
