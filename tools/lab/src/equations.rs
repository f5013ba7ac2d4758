//! The thesis' equations 5.1 to 5.3: the expected gain of transfers without copies, from memory
//! bandwidth, memory clock and I/O-bus clock. Also measures these values on this machine. It
//! measures no storage protocol.
//!
//! In the equations each word on the I/O bus costs as many memory cycles as memory makes in one
//! cycle of that bus. A copy costs two more. Where both move words of one width, the ratio of the
//! clocks is the ratio of the bandwidths. So a measured bandwidth stands for a clock here, in words
//! of eight bytes.
//!
//! No program can time the I/O bus by itself: each path that a program can use copies. So the path
//! is measured with its copy, and equation 5.1, solved for the I/O clock, takes the copy out.

use std::fmt::Write as _;
use std::hint::black_box;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

use crate::context::Pinning;
use crate::measure::Error;
use crate::results::{Found, Results, read_all};

/// The width of the memory bus, bytes.
const WORD: f64 = 8.0;
/// Bytes per copy in the memory measurement: larger than the caches.
const COPIED: usize = 64 << 20;
/// Bytes per send in the loopback measurement.
const SENT: usize = 256 << 10;
/// Calls in a row by which an input is measured.
const CALLS: u32 = 20;
/// A call is the best of so many measurements: other programs can only lower one.
const TIMES: u32 = 4;
/// The most by which the calls may differ, percent of their median, for an input to be trusted.
const TRUSTED_PERCENT: f64 = 10.0;

/// The inputs of the equations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Bytes a second.
    pub memory_bandwidth: f64,
    /// Cycles a second.
    pub memory_clock: f64,
    /// Cycles a second.
    pub io_clock: f64,
}

/// The thesis' example: 400 MHz memory, 80 MHz I/O bus. The thesis gives no bandwidth; PC2100
/// memory has 2.1 GB/s.
pub(crate) const THESIS: Machine = Machine { memory_bandwidth: 2.1e9, memory_clock: 400e6, io_clock: 80e6 };

impl Machine {
    /// A machine with known bandwidths, bytes a second.
    pub(crate) fn of_bandwidths(memory: f64, io: f64) -> Self {
        Self { memory_bandwidth: memory, memory_clock: memory / WORD, io_clock: io / WORD }
    }

    /// A machine whose memory has this bandwidth, and whose path that copies moves `copying`, bytes
    /// a second: equation 5.1, solved for the I/O clock. `None` if the copy alone takes longer.
    pub(crate) fn of_path(memory: f64, copying: f64) -> Option<Self> {
        let io = 1.0 / (1.0 / copying - 2.0 / memory);
        let machine = Self::of_bandwidths(memory, io);
        machine.is_sound().then_some(machine)
    }

    fn cycles(&self) -> f64 {
        self.memory_clock / self.io_clock
    }

    /// Equation 5.1: the I/O throughput with a copy, bytes a second.
    pub(crate) fn with_copies(&self) -> f64 {
        self.memory_bandwidth / (self.cycles() + 2.0)
    }

    /// Equation 5.2: the I/O throughput without a copy, bytes a second.
    pub(crate) fn without_copies(&self) -> f64 {
        self.memory_bandwidth / self.cycles()
    }

    /// Equation 5.3 for both throughputs, percent.
    pub(crate) fn gain_percent(&self) -> f64 {
        gain_percent(self.without_copies(), self.with_copies())
    }

    /// Whether all inputs are finite and above zero.
    pub(crate) fn is_sound(&self) -> bool {
        [self.memory_bandwidth, self.memory_clock, self.io_clock].iter().all(|x| x.is_finite() && *x > 0.0)
    }
}

/// Equation 5.3: the gain as a part of the new throughput, percent.
pub(crate) fn gain_percent(new: f64, old: f64) -> f64 {
    (new - old) / new * 100.0
}

/// Runs `measured` on that processor, where one is named.
fn pinned<T>(processor: Option<usize>, measured: impl FnOnce() -> T) -> T {
    let before = processor.and_then(|_| sched_getaffinity(None).ok());
    if let Some(processor) = processor.filter(|at| *at < CpuSet::MAX_CPU) {
        let mut set = CpuSet::new();
        set.set(processor);
        // Without it the figure is that of any processor.
        let _ = sched_setaffinity(None, &set);
    }
    let found = measured();
    if let Some(before) = before {
        let _ = sched_setaffinity(None, &before);
    }
    found
}

/// Processor time of this thread: a copy during which others had the processor took no longer.
fn thread_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// One input of the equations: what each of several calls in a row has measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration(Vec<f64>);

impl Calibration {
    /// `None` without calls, or if one of them is no measurement.
    pub(crate) fn of(calls: Vec<f64>) -> Option<Self> {
        let sound = calls.iter().all(|x| x.is_finite() && *x > 0.0);
        (sound && !calls.is_empty()).then_some(Self(calls))
    }

    pub(crate) fn calls(&self) -> &[f64] {
        &self.0
    }

    /// The median of the calls.
    pub(crate) fn value(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let half = sorted.len() / 2;
        match sorted.len() % 2 {
            0 => f64::midpoint(sorted[half - 1], sorted[half]),
            _ => sorted[half],
        }
    }

    /// By how much the slowest and the fastest call differ, percent of the median.
    pub(crate) fn spread_percent(&self) -> f64 {
        let least = self.0.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.0.iter().copied().fold(0.0, f64::max);
        (most - least) / self.value() * 100.0
    }

    /// How many calls, their spread, and whether they can be trusted.
    pub(crate) fn words(&self) -> String {
        let (calls, spread) = (self.0.len(), self.spread_percent());
        let verdict = if spread <= TRUSTED_PERCENT { "" } else { ": NOT TRUSTWORTHY, something else ran" };
        format!("{calls} calls in a row within {spread:.1} %{verdict}")
    }
}

/// Bytes that memory reads and writes a second while one thread copies.
pub fn memory_bandwidth() -> Result<Calibration, Error> {
    // Both are written before a copy is timed: the first access to a page takes its fault.
    let from = vec![0x5A_u8; COPIED];
    let mut to = vec![0xA5_u8; COPIED];
    let mut call = || {
        let copies = (0..TIMES).map(|_| {
            let begin = thread_seconds();
            to.copy_from_slice(black_box(&from));
            black_box(&mut to);
            // A copy reads and writes each byte.
            2.0 * COPIED as f64 / (thread_seconds() - begin).max(1e-9)
        });
        copies.fold(0.0, f64::max)
    };
    call();
    Calibration::of((0..CALLS).map(|_| call()).collect())
        .ok_or_else(|| Error::Failed("no time has passed".into()))
}

/// Bytes that a plain TCP connection over loopback moves a second, with its copies into the socket
/// and out of it, by calls of `time` together.
pub(crate) fn loopback_bandwidth(time: Duration, pinning: &Pinning) -> Result<Calibration, Error> {
    let failed = || Error::io("TCP over loopback");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed())?;
    let address = listener.local_addr().map_err(failed())?;
    let (target, client) = (pinning.target.first().copied(), pinning.client.first().copied());
    let sender = std::thread::spawn(move || {
        pinned(target, || -> std::io::Result<()> {
            let mut stream = TcpStream::connect(address)?;
            let data = vec![0x5A_u8; SENT];
            // The receiver hangs up when it has measured.
            while stream.write_all(&data).is_ok() {}
            Ok(())
        })
    });
    let part = time / (CALLS * TIMES);
    let received = pinned(client, move || -> std::io::Result<Vec<f64>> {
        let (mut stream, _) = listener.accept()?;
        let mut data = vec![0_u8; SENT];
        let mut call = || {
            (0..TIMES).try_fold(0.0_f64, |best, _| {
                let (begin, mut bytes) = (Instant::now(), 0_u64);
                while begin.elapsed() < part {
                    match stream.read(&mut data)? {
                        0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                        n => bytes += n as u64,
                    }
                }
                Ok(best.max(bytes as f64 / begin.elapsed().as_secs_f64().max(1e-9)))
            })
        };
        // The first call fills buffers and opens the window.
        call()?;
        (0..CALLS).map(|_| call()).collect()
    });
    let sent =
        sender.join().unwrap_or_else(|_| Err(std::io::Error::other("the sending thread has panicked")));
    let received = received.map_err(failed())?;
    sent.map_err(failed())?;
    Calibration::of(received).ok_or_else(|| Error::Failed("nothing moved over loopback".into()))
}

/// The memory's transfers a second from the firmware: those of the slowest module. `None` if the
/// firmware reports none, or only to root.
pub(crate) fn memory_clock_of_firmware() -> Option<f64> {
    memory_clock(&std::fs::read(Path::new("/sys/firmware/dmi/tables/DMI")).ok()?)
}

/// From SMBIOS structures of type 17, "Memory Device": "Configured Memory Speed" at 20h, else
/// "Speed" at 15h, in MT/s (System Management BIOS Reference Specification, §7.18).
fn memory_clock(mut table: &[u8]) -> Option<f64> {
    let mut slowest: Option<u16> = None;
    while let [kind, len, ..] = *table {
        let structure = table.get(..usize::from(len)).filter(|structure| structure.len() >= 4)?;
        let word = |at: usize| structure.get(at..at + 2).map(|word| u16::from_le_bytes([word[0], word[1]]));
        if kind == 17 {
            let known = |speed: &u16| (1..0xFFFF).contains(speed);
            if let Some(speed) = word(0x20).filter(known).or_else(|| word(0x15).filter(known)) {
                slowest = Some(slowest.map_or(speed, |before| before.min(speed)));
            }
        }
        // Its strings follow, ended by two zero bytes.
        let texts = table.get(usize::from(len)..)?;
        let end = texts.windows(2).position(|pair| pair == [0, 0])?;
        table = texts.get(end + 2..)?;
    }
    slowest.map(|speed| f64::from(speed) * 1e6)
}

/// The measured values of this machine, and the source of each.
#[derive(Clone, Debug)]
pub struct Known {
    pub machine: Machine,
    /// The memory's bandwidth, bytes a second.
    pub memory: Calibration,
    /// The bandwidth of the path that copies, bytes a second.
    pub copying: Calibration,
    /// The source of each value, one line each.
    pub sources: Vec<String>,
}

/// Measures this machine, for two or three seconds, at the processors of `pinning`.
pub fn measure(pinning: &Pinning) -> Result<Known, Error> {
    let memory_calls = pinned(pinning.client.first().copied(), memory_bandwidth)?;
    let copying_calls = loopback_bandwidth(Duration::from_millis(1000), pinning)?;
    let (memory, copying) = (memory_calls.value(), copying_calls.value());
    let machine = Machine::of_path(memory, copying).ok_or_else(|| {
        Error::Failed(format!(
            "a TCP connection moves {:.2} GB/s, more than the copy alone takes in memory of {:.2} GB/s: the equations do not fit",
            copying / 1e9,
            memory / 1e9
        ))
    })?;
    let mut sources = vec![
        format!(
            "memory bandwidth: {:.2} GB/s, read and written by one thread that copies (measured: {})",
            memory / 1e9,
            memory_calls.words()
        ),
        format!(
            "throughput with copies: {:.2} GB/s by one TCP connection over loopback (measured: {})",
            copying / 1e9,
            copying_calls.words()
        ),
        "I/O: what equation 5.1 leaves for it of that throughput, when the copy is taken out".to_owned(),
        "clocks: these bandwidths in words of 8 bytes".to_owned(),
    ];
    sources.push(match memory_clock_of_firmware() {
        Some(clock) => format!("the firmware reports memory at {:.0} MT/s", clock / 1e6),
        None => "the firmware says nothing of the memory's clock".to_owned(),
    });
    Ok(Known { machine, memory: memory_calls, copying: copying_calls, sources })
}

/// The equations' results in columns, as text.
pub fn table(columns: &[(&str, Machine)]) -> String {
    let mut text = String::new();
    let mut row = |name: &str, cell: &dyn Fn(&Machine) -> String| {
        let _ = write!(text, "{name:<42}");
        for (_, machine) in columns {
            let _ = write!(text, "{:>18}", cell(machine));
        }
        text.push('\n');
    };
    let head: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    row("memory clock", &|machine| format!("{:.1} MHz", machine.memory_clock / 1e6));
    row("I/O bus clock", &|machine| format!("{:.1} MHz", machine.io_clock / 1e6));
    row("memory bandwidth", &|machine| format!("{:.2} GB/s", machine.memory_bandwidth / 1e9));
    row("5.1  throughput with copies", &|machine| format!("{:.3} GB/s", machine.with_copies() / 1e9));
    row("5.2  throughput without", &|machine| format!("{:.3} GB/s", machine.without_copies() / 1e9));
    row("5.3  gain", &|machine| format!("{:.1} %", machine.gain_percent()));
    let mut all = format!("{:<42}", "");
    for name in head {
        let _ = write!(all, "{name:>18}");
    }
    all + "\n" + &text
}

/// The inputs of the calculator.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// Bytes a second; `None`: measured.
    pub memory_bandwidth: Option<f64>,
    /// Hz; `None`: from the bandwidth.
    pub memory_clock: Option<f64>,
    /// Hz; `None`: from what a path moves that copies.
    pub io_clock: Option<f64>,
    /// A folder with results of `thesis` or `thesis-equations`, for the measured gain.
    pub results: Option<PathBuf>,
}

/// The equations for the thesis' example, for this machine and for the requested values. Adds the
/// source of each value, and the measured gains.
///
/// # Errors
/// If this machine cannot be measured, the requested values are invalid, or the results cannot be
/// read.
pub fn tell(asked: &Asked) -> Result<String, Error> {
    let known = measure(&Pinning::default())?;
    let mut columns = vec![("thesis", THESIS), ("this machine", known.machine)];
    if asked.memory_bandwidth.is_some() || asked.memory_clock.is_some() || asked.io_clock.is_some() {
        let memory_bandwidth = asked.memory_bandwidth.unwrap_or(known.machine.memory_bandwidth);
        let machine = Machine {
            memory_bandwidth,
            memory_clock: asked.memory_clock.unwrap_or(memory_bandwidth / WORD),
            io_clock: asked.io_clock.unwrap_or(known.machine.io_clock),
        };
        if !machine.is_sound() {
            return Err(Error::Failed("clocks and bandwidths have to be greater than 0".to_owned()));
        }
        columns.push(("as asked", machine));
    }
    let mut text = table(&columns);
    text.push('\n');
    for source in &known.sources {
        let _ = writeln!(text, "{source}");
    }
    let found = match &asked.results {
        Some(path) => read_all(path).map_err(|error| Error::Failed(error.to_string()))?,
        None => Vec::new(),
    };
    let gains: Vec<String> = found.iter().flat_map(measured_gains).collect();
    text.push_str("\ngain of iSER over iSCSI that was measured, by equation 5.3 of both throughputs:\n");
    if gains.is_empty() {
        text.push_str(
            "  none here: `stag lab run thesis` measures it, and --results names the folder of its results\n",
        );
    }
    for gain in gains {
        let _ = writeln!(text, "  {gain}");
    }
    Ok(text)
}

/// The gain of iSER over iSCSI at each pair of points that differ by `transport` only.
fn measured_gains(results: &Results) -> Vec<String> {
    let found = results.found();
    let over =
        |found: &Found, transport: &str| found.at("transport").is_some_and(|at| at.to_string() == transport);
    let place = |found: &Found| {
        let others = found.coordinates.iter().filter(|(axis, _)| axis != "transport");
        others
            .map(|(axis, value)| {
                format!("{} {}", results.experiment.axis_title(axis), results.experiment.label(axis, value))
            })
            .collect::<Vec<_>>()
            .join(", ")
    };
    let mut gains = Vec::new();
    for new in found.iter().filter(|found| over(found, "iser")) {
        let old = found.iter().find(|old| over(old, "iscsi") && place(old) == place(new));
        let rate = |found: &Found| found.figures.get("mb_s").map(|figure| figure.middle);
        if let Some((new_rate, old_rate)) = rate(new).zip(old.and_then(rate)) {
            gains.push(format!("{:>6.1} %  {}", gain_percent(new_rate, old_rate), place(new)));
        }
    }
    // The experiment `thesis-equations` has computed the gain already.
    for one in found.iter().filter(|found| found.at("transport").is_none()) {
        if let Some(figure) = one.figures.get("measured_percent") {
            gains.push(format!("{:>6.1} %  {}", figure.middle, place(one)));
        }
    }
    gains
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thesis_example_gains_20_to_30_percent() {
        // 400 / 80 = 5 cycles; 5 + 2 with the copy: (1/5 - 1/7) / (1/5) = 2/7.
        assert!((THESIS.gain_percent() - 200.0 / 7.0).abs() < 1e-9);
        assert!((THESIS.with_copies() - 300e6).abs() < 1.0 && (THESIS.without_copies() - 420e6).abs() < 1.0);
        assert!((gain_percent(130.0, 100.0) - 23.076_923).abs() < 1e-3);
    }

    #[test]
    fn the_slower_the_bus_the_less_a_copy_costs() {
        let gain = |io| Machine::of_bandwidths(10e9, io).gain_percent();
        assert!(gain(10e9) > gain(5e9) && gain(5e9) > gain(0.1e9));
        assert!((gain(10e9) - 200.0 / 3.0).abs() < 1e-9);
        assert!(!Machine::of_bandwidths(0.0, 1.0).is_sound() && THESIS.is_sound());
    }

    #[test]
    fn the_machine_is_measured_to_be_alive() {
        assert!(memory_bandwidth().unwrap().value() > 1e8);
        let here = sched_getaffinity(None).unwrap();
        let processor = (0..CpuSet::MAX_CPU).find(|at| here.is_set(*at)).unwrap();
        let pinning = Pinning { target: vec![processor], client: vec![processor] };
        for pinning in [Pinning::default(), pinning] {
            let calls = loopback_bandwidth(Duration::from_millis(80), &pinning).unwrap();
            assert!(calls.value() > 1e6 && calls.calls().len() == CALLS as usize);
        }
        assert!(sched_getaffinity(None).unwrap() == here, "a thread that measured is free again");
    }

    #[test]
    fn an_input_whose_calls_differ_by_more_than_a_tenth_is_not_trusted() {
        let of = |calls: &[f64]| Calibration::of(calls.to_vec());
        let near = of(&[9.6e9, 10e9, 10.5e9, 10e9]).unwrap();
        assert_eq!((near.value(), near.words().as_str()), (10e9, "4 calls in a row within 9.0 %"));
        let far = of(&[9.6e9, 10e9, 10.7e9]).unwrap();
        assert!(far.spread_percent() > 10.0 && far.words().contains("NOT TRUSTWORTHY"), "{}", far.words());
        assert_eq!((of(&[]), of(&[1e9, 0.0]), of(&[f64::NAN])), (None, None, None));
    }

    #[test]
    fn equation_5_1_gives_back_the_throughput_of_the_path_that_copies() {
        let machine = Machine::of_path(20e9, 2.5e9).unwrap();
        assert!((machine.with_copies() - 2.5e9).abs() < 1.0);
        // 1 / 2.5 - 2 / 20 = 0.3: without the copy 3.33 GB/s, of which a quarter is the gain.
        assert!((machine.without_copies() - 1e10 / 3.0).abs() < 1.0);
        assert!((machine.gain_percent() - 25.0).abs() < 1e-9);
        assert_eq!(Machine::of_path(4e9, 2e9), None, "the copy takes all of the time");
        assert_eq!(Machine::of_path(4e9, 3e9), None);
        assert_eq!(Machine::of_path(4e9, 0.0), None);
    }

    fn structure(kind: u8, len: u8, words: &[(usize, u16)], texts: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; usize::from(len)];
        (bytes[0], bytes[1]) = (kind, len);
        for (at, word) in words {
            bytes[*at..at + 2].copy_from_slice(&word.to_le_bytes());
        }
        [&bytes, texts, &[0, 0]].concat()
    }

    /// Malformed tables do not panic.
    #[test]
    fn the_firmware_gives_the_slowest_memory_module() {
        let other = structure(1, 27, &[], b"Maker\0Board");
        let fast = structure(17, 0x28, &[(0x15, 3200), (0x20, 2933)], b"DIMM 0");
        let slow = structure(17, 0x28, &[(0x15, 2666), (0x20, 0)], b"DIMM 1");
        let empty = structure(17, 0x28, &[], b"DIMM 2");
        let table = [other, fast.clone(), slow, empty].concat();
        assert_eq!(memory_clock(&table), Some(2666e6));
        assert_eq!(memory_clock(&fast), Some(2933e6));
        assert_eq!(memory_clock(&[]), None);
        // Truncated, or with wrong lengths: must not panic.
        for end in 0..table.len() {
            let _ = memory_clock(&table[..end]);
        }
        for at in 0..table.len() {
            let mut bent = table.clone();
            bent[at] = 0xFF;
            let _ = memory_clock(&bent);
        }
    }

    #[test]
    fn the_table_has_a_column_for_each_machine() {
        let text = table(&[("thesis", THESIS), ("here", Machine::of_bandwidths(20e9, 4e9))]);
        assert!(text.contains("28.6 %") && text.lines().all(|line| !line.is_empty()), "{text}");
        assert_eq!(text.lines().count(), 7);
    }
}
