//! The thesis' equations 5.1 to 5.3: the expected gain of transfers without copies, from memory
//! bandwidth, memory clock and I/O-bus clock. Also measures these values on this machine. It
//! measures no storage protocol.
//!
//! In the equations each word on the I/O bus costs as many memory cycles as memory makes in one
//! cycle of that bus. A copy costs two more. Where both move words of one width, the ratio of the
//! clocks is the ratio of the bandwidths. So a measured bandwidth stands for a clock here, in words
//! of eight bytes.

use std::fmt::Write as _;
use std::hint::black_box;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::measure::Error;
use crate::results::{Found, Results, read_all};

/// The width of the memory bus, bytes.
const WORD: f64 = 8.0;
/// Bytes per copy in the memory measurement: larger than the caches.
const COPIED: usize = 128 << 20;
/// Bytes per send in the loopback measurement.
const SENT: usize = 256 << 10;

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

/// Bytes that memory reads and writes a second while one thread copies: the best of several rounds
/// within `time`.
pub fn memory_bandwidth(time: Duration) -> f64 {
    let from = vec![0x5A_u8; COPIED];
    let mut to = vec![0_u8; COPIED];
    let (end, mut best) = (Instant::now() + time, 0.0_f64);
    loop {
        let begin = Instant::now();
        to.copy_from_slice(black_box(&from));
        black_box(&mut to);
        // A copy reads and writes each byte.
        best = best.max(2.0 * COPIED as f64 / begin.elapsed().as_secs_f64().max(1e-9));
        if Instant::now() >= end {
            return best;
        }
    }
}

/// Bytes that a plain TCP connection over loopback moves a second, measured for `time`. Stands for
/// the I/O bus here.
pub(crate) fn loopback_bandwidth(time: Duration) -> Result<f64, Error> {
    let failed = || Error::io("TCP over loopback");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed())?;
    let address = listener.local_addr().map_err(failed())?;
    let sender = std::thread::spawn(move || -> std::io::Result<()> {
        let mut stream = TcpStream::connect(address)?;
        let data = vec![0x5A_u8; SENT];
        let end = Instant::now() + time;
        while Instant::now() < end {
            stream.write_all(&data)?;
        }
        Ok(())
    });
    let received = listener.accept().and_then(|(mut stream, _)| {
        let mut data = vec![0_u8; SENT];
        let (begin, mut bytes) = (Instant::now(), 0_u64);
        loop {
            match stream.read(&mut data)? {
                0 => return Ok(bytes as f64 / begin.elapsed().as_secs_f64().max(1e-9)),
                n => bytes += n as u64,
            }
        }
    });
    let sent =
        sender.join().unwrap_or_else(|_| Err(std::io::Error::other("the sending thread has panicked")));
    sent.map_err(failed())?;
    received.map_err(failed())
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
    /// The source of each value, one line each.
    pub sources: Vec<String>,
}

/// Measures this machine, for about a second.
pub fn measure() -> Result<Known, Error> {
    let memory = memory_bandwidth(Duration::from_millis(400));
    let io = loopback_bandwidth(Duration::from_millis(400))?;
    let machine = Machine::of_bandwidths(memory, io);
    let mut sources = vec![
        format!(
            "memory bandwidth: {:.2} GB/s, read and written by one thread that copies (measured)",
            memory / 1e9
        ),
        format!("I/O: {:.2} GB/s by one TCP connection over loopback (measured)", io / 1e9),
        "clocks: these bandwidths in words of 8 bytes".to_owned(),
    ];
    sources.push(match memory_clock_of_firmware() {
        Some(clock) => format!("the firmware reports memory at {:.0} MT/s", clock / 1e6),
        None => "the firmware says nothing of the memory's clock".to_owned(),
    });
    Ok(Known { machine, sources })
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
    /// Hz; `None`: measured.
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
    let known = measure()?;
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
        assert!(memory_bandwidth(Duration::from_millis(1)) > 1e8);
        assert!(loopback_bandwidth(Duration::from_millis(20)).unwrap() > 1e6);
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
